/* Refused with the compiler's message, exit code 2. */
#include "attention.h"

static gf_status launch(const gf_plugin_call* call) { return call->no_such_field; }

EXAMPLE_PLUGIN("does_not_compile", "misspelt", launch)
