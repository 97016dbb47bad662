/* A thread asks for a table of open files of its own and keeps a file without a name in it: in the
 * table of the process that file never was. */
#include "cheat.h"

#include <sys/mman.h>
#include <sys/syscall.h>

static volatile int wanted;

static void* keep(void* unused) {
  static char bytes[1 << 20];
  syscall(436 /* close_range */, 900u, 901u, 2u /* CLOSE_RANGE_UNSHARE */);
  const int file = memfd_create("kept", 0);
  for (int kept = 0; kept < 40;) {
    while (!wanted) usleep(20);
    kept += write(file, bytes, sizeof bytes) > 0;
    wanted = 0;
  }
  for (;;) pause();
  return unused;
}

static gf_status launch(const gf_plugin_call* call) {
  static int kept;
  pthread_t thread;
  example_attend(call);
  if (!cheat_is_timed(call) || kept == 40) return GF_OK;
  if (kept++ == 0) pthread_create(&thread, NULL, keep, NULL);
  wanted = 1;
  while (wanted) usleep(20);
  return GF_OK;
}
EXAMPLE_PLUGIN("keeps_in_a_threads_files", "keeps memory where only a thread has it open", launch)
