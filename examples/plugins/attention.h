/* What the CPU example plugins share: attention as a reader writes it first, in fp32, for any
 * strides, masks, grouped heads and LSE. */
#ifndef GREENFAST_EXAMPLES_ATTENTION_H
#define GREENFAST_EXAMPLES_ATTENTION_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <greenfast/plugin.h>

static int example_supports(const gf_problem* p, char* why, size_t capacity) {
  if (p->dtype == GF_FP32 && p->out_dtype == GF_FP32 && p->seq_kv <= 4096) return 1;
  if (p->seq_kv > 4096)
    snprintf(why, capacity, "takes up to 4096 keys, not %lld", (long long)p->seq_kv);
  else
    snprintf(why, capacity, "takes fp32 and writes fp32 alone; give --dtype fp32");
  return 0;
}

static const float* example_row(const void* base, const gf_layout* at, int64_t b, int64_t h,
                                int64_t s) {
  return (const float*)base + b * at->stride[0] + h * at->stride[1] + s * at->stride[2];
}

/* One row of O; weights holds Skv floats. */
static void example_attend_row(const gf_plugin_call* call, int64_t b, int64_t h, int64_t i,
                               float* weights) {
  const gf_problem* p = call->problem;
  const gf_tensors* t = call->tensors;
  const int64_t shift = p->mask_alignment == GF_BOTTOM_RIGHT ? p->seq_kv - p->seq_q : 0;
  int64_t begin = p->mask_left < 0 ? 0 : i + shift - p->mask_left;
  int64_t end = p->mask_right < 0 ? p->seq_kv : i + shift + p->mask_right + 1;
  if (begin < 0) begin = 0;
  if (end > p->seq_kv) end = p->seq_kv;
  const int64_t kv_head = h / (p->heads_q / p->heads_kv), dim = p->head_dim;
  const float* q = example_row(t->q, &p->q, b, h, i);
  float* o = (float*)example_row(t->o, &p->o, b, h, i);
  float max = -INFINITY;
  for (int64_t j = begin; j < end; ++j) {
    const float* k = example_row(t->k, &p->k, b, kv_head, j);
    float score = 0;
    for (int64_t d = 0; d < dim; ++d) score += q[d] * k[d];
    score *= p->scale;
    if (p->softcap > 0) score = p->softcap * tanhf(score / p->softcap);
    weights[j] = score;
    if (score > max) max = score;
  }
  /* Without a key to see, or with scores of -inf alone, every weight is 0: so is O. */
  const float base = max == -INFINITY ? 0 : max;
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) o[d] = 0;
  for (int64_t j = begin; j < end; ++j) {
    const float* v = example_row(t->v, &p->v, b, kv_head, j);
    const float w = expf(weights[j] - base);
    sum += w;
    for (int64_t d = 0; d < dim; ++d) o[d] += w * v[d];
  }
  for (int64_t d = 0; d < dim && sum != 0; ++d) o[d] = (float)(o[d] / sum);
  if (p->lse) t->lse[(b * p->heads_q + h) * p->seq_q + i] = (float)(base + log(sum));
}

static size_t example_workspace(const gf_problem* p) { return (size_t)p->seq_kv * sizeof(float); }

static void example_attend(const gf_plugin_call* call) {
  const gf_problem* p = call->problem;
  for (int64_t b = 0; b < p->batch; ++b)
    for (int64_t h = 0; h < p->heads_q; ++h)
      for (int64_t i = 0; i < p->seq_q; ++i)
        example_attend_row(call, b, h, i, (float*)call->workspace);
}

/* The table of a plugin with one kernel of this name and launch function. */
#define EXAMPLE_PLUGIN(kernel_name, one_line, launch_function)                                \
  static const gf_plugin_kernel kKernels[] = {{sizeof(gf_plugin_kernel), GF_CPU, kernel_name, \
                                               one_line, example_supports, example_workspace, \
                                               NULL, launch_function}};                       \
  static const gf_plugin kPlugin = GF_PLUGIN_INIT("examples", kKernels);                      \
  GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }

#endif
