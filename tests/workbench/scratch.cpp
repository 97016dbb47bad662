// Tests leave files in the working directory. CTest gives them a folder of their own; of a program that
// is run by hand from the checkout this makes that folder the working directory as well.
#include <filesystem>

namespace {

[[maybe_unused]] const bool moved = [] {
  const bool in_checkout = std::filesystem::current_path() == GREENFAST_SOURCE_DIR;
  if (in_checkout) std::filesystem::current_path(GREENFAST_SCRATCH_DIR);
  return in_checkout;
}();

}  // namespace
