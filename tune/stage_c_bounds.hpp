// Of a stage-C rung's space: BLOCKS, the blocks of a kernel that a multiprocessor should hold, which
// bounds its registers; 0 leaves them to the compiler. Include before the kernel's source.
#pragma once

#if BLOCKS > 0
#define STAGE_C_BOUNDS kThreads, BLOCKS
#endif
