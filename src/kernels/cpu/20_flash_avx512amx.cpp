// The flash kernel for AVX-512 with BF16 and AMX.
#include "kernels/cpu/20_flash.hpp"
#include "kernels/cpu/device/simd_avx512amx.hpp"

#define GREENFAST_AMX 1
// After the vector operations it is made of.
#include "kernels/cpu/20_flash_kernel.hpp"

namespace greenfast::kernels::flash {

constinit const Code avx512amx = make_code();

}  // namespace greenfast::kernels::flash
