// cpu.flash's generic half, choosing the code of kernel.cpp for "avx512amx".
#define avx512amx avx512amx_in_software
#define cpu_flash cpu_flash_amx_in_software
#include "kernels/cpu/20_flash.cpp"
