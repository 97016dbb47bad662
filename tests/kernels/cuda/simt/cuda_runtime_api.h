// Stand-in: what headers of kernels ask of the runtime, none of which a test calls.
#pragma once

using cudaError_t = int;
