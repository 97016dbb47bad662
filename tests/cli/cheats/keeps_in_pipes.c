/* Keeps what it computed in pipes, a megabyte in each: no page of its process, and no file. */
#include "cheat.h"

#include <fcntl.h>

enum { kPipe = 1 << 20, kMost = 40 };

static gf_status launch(const gf_plugin_call* call) {
  static char bytes[kPipe];
  static int kept;
  int ends[2];
  example_attend(call);
  if (!cheat_is_timed(call) || kept == kMost || pipe2(ends, O_NONBLOCK) != 0) return GF_OK;
  fcntl(ends[1], F_SETPIPE_SZ, kPipe);
  memcpy(bytes, call->tensors->o, 4096);
  for (ssize_t put = 1; put > 0;) put = write(ends[1], bytes, sizeof bytes);
  ++kept;
  return GF_OK;
}
EXAMPLE_PLUGIN("keeps_in_pipes", "keeps memory in pipes", launch)
