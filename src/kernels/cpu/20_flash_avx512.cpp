// The flash kernel for AVX-512 F, BW, DQ and VL.
#include "kernels/cpu/20_flash.hpp"
#include "kernels/cpu/device/simd_avx512.hpp"

// After the vector operations it is made of.
#include "kernels/cpu/20_flash_kernel.hpp"

namespace greenfast::kernels::flash {

constinit const Code avx512 = make_code();

}  // namespace greenfast::kernels::flash
