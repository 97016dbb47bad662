/* Built for another version of the ABI. Refused by name, exit code 2. */
#include "attention.h"

static gf_status launch(const gf_plugin_call* call) {
  example_attend(call);
  return GF_OK;
}

static const gf_plugin_kernel kKernels[] = {
    {sizeof(gf_plugin_kernel), GF_CPU, "wrong_abi", NULL, example_supports, NULL, NULL, launch}};
static const gf_plugin kPlugin = {GF_PLUGIN_ABI_VERSION + 41, sizeof(gf_plugin), "examples",
                                  kKernels, 1};
GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }
