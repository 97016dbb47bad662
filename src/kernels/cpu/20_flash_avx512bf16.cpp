// The flash kernel for AVX-512 with BF16.
#include "kernels/cpu/20_flash.hpp"
#include "kernels/cpu/device/simd_avx512bf16.hpp"

// After the vector operations it is made of.
#include "kernels/cpu/20_flash_kernel.hpp"

namespace greenfast::kernels::flash {

constinit const Code avx512bf16 = make_code();

}  // namespace greenfast::kernels::flash
