// The flash kernel for AVX2, FMA and F16C.
#include "kernels/cpu/20_flash.hpp"
#include "kernels/cpu/device/simd_avx2.hpp"

// After the vector operations it is made of.
#include "kernels/cpu/20_flash_kernel.hpp"

namespace greenfast::kernels::flash {

constinit const Code avx2 = make_code();

}  // namespace greenfast::kernels::flash
