/* A kernel with a space to search: queries and keys in tiles, and how many partial sums a dot
 * product has, which is what lets a compiler use vectors. Verdict: GREEN, exit code 0. `greenfast
 * tune tiled.c` chooses. */
/* tune: TILE_Q = *1 4 8 */
/* tune: TILE_K = *16 64 */
/* tune: LANES = *1 4 8 16 */
/* tune-if: TILE_Q * TILE_K <= 256 */
#include "attention.h"

#ifndef TILE_Q
#define TILE_Q 1
#define TILE_K 16
#define LANES 1
#endif

static float dot(const float* a, const float* b, int64_t dim) {
  float sum[LANES] = {0};
  for (int64_t d = 0; d < dim; d += LANES)
    for (int64_t e = 0; e < LANES; ++e) sum[e] += a[d + e] * b[d + e];
  for (int64_t half = LANES / 2; half > 0; half /= 2)
    for (int64_t e = 0; e < half; ++e) sum[e] += sum[e + half];
  return sum[0];
}

/* Rows [first, first + rows) of one head, online softmax over tiles of keys. */
static void attend_tile(const gf_plugin_call* call, int64_t b, int64_t h, int64_t first,
                        int64_t rows) {
  const gf_problem* p = call->problem;
  const int64_t kv_head = h / (p->heads_q / p->heads_kv), dim = p->head_dim;
  float o[TILE_Q][256] = {{0}}, max[TILE_Q], sum[TILE_Q] = {0};
  for (int64_t r = 0; r < rows; ++r) max[r] = -INFINITY;
  for (int64_t begin = 0; begin < p->seq_kv; begin += TILE_K) {
    const int64_t keys = p->seq_kv - begin < TILE_K ? p->seq_kv - begin : TILE_K;
    for (int64_t r = 0; r < rows; ++r) {
      const float* q = example_row(call->tensors->q, &p->q, b, h, first + r);
      float score[TILE_K], highest = max[r];
      for (int64_t j = 0; j < keys; ++j) {
        const float* k = example_row(call->tensors->k, &p->k, b, kv_head, begin + j);
        score[j] = dot(q, k, dim) * p->scale;
        if (score[j] > highest) highest = score[j];
      }
      /* Where all scores are -inf so far, all weights are 0. */
      const float base = highest == -INFINITY ? 0 : highest, rescale = expf(max[r] - base);
      max[r] = highest;
      sum[r] *= rescale;
      for (int64_t d = 0; d < dim; ++d) o[r][d] *= rescale;
      for (int64_t j = 0; j < keys; ++j) {
        const float* v = example_row(call->tensors->v, &p->v, b, kv_head, begin + j);
        const float w = expf(score[j] - base);
        sum[r] += w;
        for (int64_t d = 0; d < dim; ++d) o[r][d] += w * v[d];
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* out = (float*)example_row(call->tensors->o, &p->o, b, h, first + r);
    for (int64_t d = 0; d < dim; ++d) out[d] = sum[r] == 0 ? 0 : o[r][d] / sum[r];
  }
}

static int supports(const gf_problem* p, char* why, size_t capacity) {
  if (!example_supports(p, why, capacity)) return 0;
  const int plain = p->mask_left < 0 && p->mask_right < 0 && p->softcap == 0 && !p->lse;
  if (plain && p->head_dim % LANES == 0) return 1;
  snprintf(why, capacity, "takes no mask, no softcap, writes no LSE, and D in steps of %d", LANES);
  return 0;
}

static gf_status launch(const gf_plugin_call* call) {
  const gf_problem* p = call->problem;
  for (int64_t b = 0; b < p->batch; ++b)
    for (int64_t h = 0; h < p->heads_q; ++h)
      for (int64_t i = 0; i < p->seq_q; i += TILE_Q)
        attend_tile(call, b, h, i, p->seq_q - i < TILE_Q ? p->seq_q - i : TILE_Q);
  return GF_OK;
}

static const gf_plugin_kernel kKernels[] = {{sizeof(gf_plugin_kernel), GF_CPU, "tiled",
                                             "tiles of queries and keys", supports, NULL, NULL,
                                             launch}};
static const gf_plugin kPlugin = GF_PLUGIN_INIT("examples", kKernels);
GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }
