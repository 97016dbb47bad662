// The space of cuda.stage_c.three_stage: the toggles of the loop that it shares with its neighbours, stages,
// and registers. Without cp.async nothing is under way that a third stage could hold.
// tune: CP_ASYNC = 0 *1
// tune: WMMA_PV = 0 *1
// tune: FUSED = *0 1
// tune: SWIZZLE = *0 1
// tune: STAGES = 2 *3 4
// tune: BLOCKS = *0 3 4 5
// tune-if: CP_ASYNC == 1 || STAGES == 2
#include "tune/stage_c_loop.hpp"
