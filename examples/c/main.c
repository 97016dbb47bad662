/* Causal attention from C with its log-sum-exp and the variant that computed it. */
#include <math.h>
#include <stdio.h>

#include <greenfast/greenfast.h>

enum { SEQ = 16, DIM = 32 };

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, gf_last_error());
  return 1;
}

int main(void) {
  static float q[SEQ * DIM], k[SEQ * DIM], v[SEQ * DIM], o[SEQ * DIM], lse[SEQ];
  gf_problem problem;
  gf_tensors tensors = GF_TENSORS_INIT;
  gf_plan_info plan = GF_PLAN_INFO_INIT;
  double sum = 0, expected = 0;
  int i, j, d;

  for (i = 0; i < SEQ; ++i) {
    for (d = 0; d < DIM; ++d) {
      q[i * DIM + d] = sinf((float)(i + d));
      k[i * DIM + d] = cosf((float)(2 * i - d));
      v[i * DIM + d] = (float)i + 0.01f * (float)d;
    }
  }
  if (gf_problem_init(&problem, 1, 1, 1, SEQ, SEQ, DIM, GF_FP32, GF_BHSD) != GF_OK)
    return failed("problem");
  problem.mask_right = 0; /* causal */
  problem.lse = 1;
  tensors.q = q;
  tensors.k = k;
  tensors.v = v;
  tensors.o = o;
  tensors.lse = lse;
  if (gf_attention(&problem, &tensors, NULL) != GF_OK) return failed("attention");

  /* Row 5 by the formula. */
  i = 5;
  for (j = 0; j <= i; ++j) {
    double score = 0, weight;
    for (d = 0; d < DIM; ++d) score += (double)q[i * DIM + d] * k[j * DIM + d];
    weight = exp(score / sqrt((double)DIM));
    sum += weight;
    expected += weight * v[j * DIM];
  }
  expected /= sum;
  if (gf_plan(&problem, NULL, NULL, &plan) != GF_OK) return failed("plan");
  printf("greenfast %s, %s: o[5, 0] = %.6f, expected %.6f; lse[5] = %.6f, expected %.6f\n",
         gf_version(), plan.variant, o[i * DIM], expected, lse[i], log(sum));
  return fabs(o[i * DIM] - expected) < 1e-5 && fabs(lse[i] - log(sum)) < 1e-5 ? 0 : 1;
}
