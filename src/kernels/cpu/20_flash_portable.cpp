// The flash kernel for the compiler's default instructions; x86-64 and aarch64 alike.
#include "kernels/cpu/20_flash.hpp"
#include "kernels/cpu/device/simd_portable.hpp"

// After the vector operations it is made of.
#include "kernels/cpu/20_flash_kernel.hpp"

namespace greenfast::kernels::flash {

constinit const Code portable = make_code();

}  // namespace greenfast::kernels::flash
