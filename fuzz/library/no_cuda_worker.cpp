// The CUDA worker of a build without CUDA.
#include <string>

#include "fuzz/library/worker.hpp"

namespace greenfast::fuzz {

std::unique_ptr<Worker> open_cuda_worker(std::string* why) {
  *why = "this build has no CUDA: CUDA=on tools/build ci fuzz_library";
  return nullptr;
}

}  // namespace greenfast::fuzz
