/* The C interface from a program compiled as C99. Prints the first failed expectation and ends
 * with 1; the rules that it checks are those at the head of greenfast.h. */
#include <greenfast/greenfast.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                              \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      printf("%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
             gf_last_error());                                                         \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

static int says(const char* part) { return strstr(gf_last_error(), part) != NULL; }

static int logged = 0;
static void count_line(const char* message, void* user) {
  *(int*)user += strstr(message, "cpu.naive") != NULL;
}

enum { SEQ = 3, DIM = 8, ELEMENTS = SEQ * DIM };

static void computes(void) {
  /* All scores are equal, so each row is the mean of the visible rows of V. */
  gf_problem problem;
  gf_tensors tensors = GF_TENSORS_INIT;
  gf_options options = GF_OPTIONS_INIT;
  float q[ELEMENTS] = {0}, k[ELEMENTS] = {0}, v[ELEMENTS], o[ELEMENTS], lse[SEQ];
  int row, column;
  for (row = 0; row < SEQ; ++row)
    for (column = 0; column < DIM; ++column) v[row * DIM + column] = (float)row;
  EXPECT(gf_problem_init(&problem, 1, 1, 1, SEQ, SEQ, DIM, GF_FP32, GF_BHSD) == GF_OK);
  problem.mask_right = 0;
  problem.lse = 1;
  tensors.q = q;
  tensors.k = k;
  tensors.v = v;
  tensors.o = o;
  tensors.lse = lse;
  EXPECT(gf_check(&problem) == GF_OK);
  EXPECT(gf_prepare(&problem, NULL) == GF_OK);
  EXPECT(gf_attention(&problem, &tensors, NULL) == GF_OK);
  for (row = 0; row < SEQ; ++row) {
    EXPECT(fabsf(lse[row] - logf((float)(row + 1))) < 1e-6f);
    for (column = 0; column < DIM; ++column)
      EXPECT(fabsf(o[row * DIM + column] - 0.5f * (float)row) < 1e-6f);
  }
  options.variant = "cpu.naive";
  gf_set_log_callback(count_line, &logged);
  EXPECT(gf_attention(&problem, &tensors, &options) == GF_OK);
  gf_set_log_callback(NULL, NULL);
  EXPECT(gf_attention(&problem, &tensors, &options) == GF_OK);
  EXPECT(logged == 1);
  options.variant = "";
  EXPECT(gf_attention(&problem, &tensors, &options) == GF_OK);
  tensors.v = NULL;
  EXPECT(gf_attention(&problem, &tensors, &options) == GF_INVALID_ARGUMENT && says("v is null"));
  options.device = GF_CUDA;
  options.device_index = 1000;
  tensors.v = v;
  EXPECT(gf_attention(&problem, &tensors, &options) == GF_NO_DEVICE);
  options.device = 7;
  EXPECT(gf_attention(&problem, &tensors, &options) == GF_INVALID_ARGUMENT && says("device 7"));
}

static void null_safe(void) {
  gf_problem problem;
  gf_tensors tensors = GF_TENSORS_INIT;
  gf_plan_info plan = GF_PLAN_INFO_INIT;
  size_t needed = 0;
  EXPECT(gf_problem_init(NULL, 1, 1, 1, 1, 1, 8, GF_FP32, GF_BHSD) == GF_INVALID_ARGUMENT);
  EXPECT(gf_problem_init(&problem, 1, 1, 1, 1, 1, 8, GF_FP32, 5) == GF_INVALID_ARGUMENT);
  EXPECT(says("order 5"));
  EXPECT(gf_problem_init(&problem, 1, 1, 1, 1, 1, 8, GF_FP32, GF_BSHD) == GF_OK);
  EXPECT(gf_check(NULL) == GF_INVALID_ARGUMENT && says("problem is null"));
  EXPECT(gf_attention(NULL, &tensors, NULL) == GF_INVALID_ARGUMENT);
  EXPECT(gf_attention(&problem, NULL, NULL) == GF_INVALID_ARGUMENT && says("tensors is null"));
  EXPECT(gf_attention(&problem, &tensors, NULL) == GF_INVALID_ARGUMENT && says("o is null"));
  EXPECT(gf_prepare(NULL, NULL) == GF_INVALID_ARGUMENT);
  EXPECT(gf_plan(NULL, NULL, NULL, &plan) == GF_INVALID_ARGUMENT);
  EXPECT(gf_plan(&problem, NULL, NULL, NULL) == GF_INVALID_ARGUMENT && says("plan is null"));
  EXPECT(gf_explain(NULL, NULL, NULL, NULL, 0, &needed) == GF_INVALID_ARGUMENT);
  EXPECT(gf_explain(&problem, NULL, NULL, NULL, 4, NULL) == GF_INVALID_ARGUMENT);
  EXPECT(gf_get_device_facts(GF_CPU, 0, NULL) == GF_INVALID_ARGUMENT);
  EXPECT(gf_get_model_facts(NULL, NULL) == GF_INVALID_ARGUMENT && says("model is null"));
  EXPECT(gf_variant_info(0, NULL) == GF_INVALID_ARGUMENT && says("variant is null"));
}

static void heads_of_structs(void) {
  struct {
    gf_options options;
    unsigned char later[16];
  } newer;
  gf_problem problem;
  gf_options options = GF_OPTIONS_INIT;
  gf_variant variant = GF_VARIANT_INIT;
  EXPECT(gf_problem_init(&problem, 1, 1, 1, 1, 1, 8, GF_FP32, GF_BHSD) == GF_OK);
  problem.struct_size = 8;
  EXPECT(gf_check(&problem) == GF_INVALID_ARGUMENT && says("struct_size 8"));
  problem.struct_size = (uint32_t)sizeof problem;
  problem.abi_version = 2;
  EXPECT(gf_check(&problem) == GF_INVALID_ARGUMENT && says("ABI version 2"));
  problem.abi_version = GF_ABI_VERSION;
  problem.k.reserved = 1;
  EXPECT(gf_check(&problem) == GF_INVALID_ARGUMENT && says("reserved"));
  problem.k.reserved = 0;
  options.reserved = -1;
  EXPECT(gf_prepare(&problem, &options) == GF_INVALID_ARGUMENT && says("reserved"));
  options.reserved = 0;
  options.max_splits = -3;
  EXPECT(gf_prepare(&problem, &options) == GF_INVALID_ARGUMENT && says("max_splits is -3"));
  /* A newer caller's longer struct passes as long as it asks for nothing new. */
  memset(&newer, 0, sizeof newer);
  newer.options.struct_size = (uint32_t)sizeof newer;
  newer.options.abi_version = GF_ABI_VERSION;
  EXPECT(gf_prepare(&problem, &newer.options) == GF_OK);
  newer.later[9] = 1;
  EXPECT(gf_prepare(&problem, &newer.options) == GF_UNSUPPORTED && says("does not know"));
  variant.abi_version = 0;
  EXPECT(gf_variant_info(0, &variant) == GF_INVALID_ARGUMENT && says("ABI version 0"));
}

static void plans(void) {
  gf_problem problem;
  gf_device_facts facts = GF_DEVICE_FACTS_INIT;
  gf_options options = GF_OPTIONS_INIT;
  gf_plan_info plan = GF_PLAN_INFO_INIT;
  char text[4096], cut[8];
  size_t needed = 0, again = 0;
  EXPECT(gf_problem_init(&problem, 1, 8, 8, 512, 512, 64, GF_BF16, GF_BHSD) == GF_OK);
  EXPECT(gf_get_model_facts("cpu", &facts) == GF_OK);
  EXPECT(facts.device == GF_CPU && facts.multiprocessors > 0 && facts.name[0] != '\0');
  EXPECT(gf_plan(&problem, &facts, NULL, &plan) == GF_OK);
  EXPECT(strncmp(plan.variant, "cpu.", 4) == 0 && plan.grid[0] > 0 && plan.kernel[0] != '\0');
  options.variant = "cpu.naive";
  EXPECT(gf_plan(&problem, NULL, &options, &plan) == GF_OK);
  EXPECT(strcmp(plan.variant, "cpu.naive") == 0);
  EXPECT(gf_explain(&problem, &facts, &options, NULL, 0, &needed) == GF_OK);
  EXPECT(needed > 1 && needed <= sizeof text);
  EXPECT(gf_explain(&problem, &facts, &options, text, sizeof text, &again) == GF_OK);
  EXPECT(again == needed && strlen(text) + 1 == needed && strstr(text, "* cpu.naive ") != NULL);
  EXPECT(gf_explain(&problem, &facts, &options, cut, sizeof cut, NULL) == GF_OK);
  EXPECT(strlen(cut) == sizeof cut - 1 && strncmp(cut, text, sizeof cut - 1) == 0);
  options.variant = "cpu.nothing";
  EXPECT(gf_explain(&problem, &facts, &options, text, sizeof text, NULL) == GF_OK);
  EXPECT(strstr(text, "none: variant 'cpu.nothing' does not exist") != NULL);
  EXPECT(gf_plan(&problem, &facts, &options, &plan) == GF_INVALID_ARGUMENT && says("cpu.naive"));
  EXPECT(gf_get_model_facts("z80", &facts) == GF_INVALID_ARGUMENT && says("h200"));
  EXPECT(gf_get_device_facts(GF_CPU, 0, &facts) == GF_OK && facts.isa[0] != '\0');
  EXPECT(gf_get_device_facts(GF_CPU, 9, &facts) == GF_NO_DEVICE);
  problem.head_dim = 12;
  EXPECT(gf_plan(&problem, &facts, NULL, &plan) == GF_UNSUPPORTED && says("head_dim is 12"));
}

static void registry(void) {
  gf_variant variant = GF_VARIANT_INIT;
  size_t index;
  uint64_t takes = 0;
  int naive = 0;
  EXPECT(gf_variant_count() > 0);
  for (index = 0; index < gf_variant_count(); ++index) {
    EXPECT(gf_variant_info(index, &variant) == GF_OK);
    EXPECT(gf_variant_takes(index, &takes) == GF_OK && takes != 0);
    EXPECT(variant.id[0] != '\0' && variant.idea[0] != '\0');
    EXPECT(variant.predecessor != NULL && variant.toggles != NULL);
    EXPECT(variant.struct_size == sizeof variant);
    naive += strcmp(variant.id, "cpu.naive") == 0 && variant.built;
  }
  EXPECT(naive == 1);
  EXPECT(gf_variant_info(index, &variant) == GF_INVALID_ARGUMENT && says("does not exist"));
  EXPECT(gf_variant_takes(index, &takes) == GF_INVALID_ARGUMENT && says("does not exist"));
  EXPECT(gf_variant_takes(0, NULL) == GF_INVALID_ARGUMENT && says("features is null"));
}

/* What a problem needs, and that a variant which lacks it says so by name. */
static void features(void) {
  const uint64_t plain = (uint64_t)1 << GF_FEATURE_IN_FP16 | (uint64_t)1 << GF_FEATURE_OUT_FP16 |
                         (uint64_t)1 << GF_FEATURE_EXACT_ACCURACY;
  gf_problem problem;
  gf_options options = GF_OPTIONS_INIT;
  gf_device_facts facts = GF_DEVICE_FACTS_INIT;
  gf_plan_info plan = GF_PLAN_INFO_INIT;
  uint64_t needs = 0;
  EXPECT(gf_problem_init(&problem, 1, 4, 4, 64, 64, 64, GF_FP16, GF_BHSD) == GF_OK);
  EXPECT(gf_features(&problem, &needs) == GF_OK && needs == plain);
  problem.softcap = 5.0f;
  problem.lse = 1;
  EXPECT(gf_features(&problem, &needs) == GF_OK &&
         needs == (plain | (uint64_t)1 << GF_FEATURE_SOFTCAP | (uint64_t)1 << GF_FEATURE_LSE));
  EXPECT(gf_features(&problem, NULL) == GF_INVALID_ARGUMENT && says("features is null"));
  EXPECT(gf_features(NULL, &needs) == GF_INVALID_ARGUMENT && says("problem is null"));
  EXPECT(strcmp(gf_feature_name(GF_FEATURE_LSE), "the LSE") == 0);
  EXPECT(strcmp(gf_feature_name(61), "an unknown feature") == 0);
  EXPECT(gf_get_model_facts("h200", &facts) == GF_OK);
  options.variant = "cuda.v2c.v3";
  EXPECT(gf_plan(&problem, &facts, &options, &plan) == GF_UNSUPPORTED &&
         (says("a softcap") || says("not built")));
}

/* A copy of a struct in memory of its own, no longer than a caller of version 0.1.0 had it. */
static void* shortened(const void* whole, size_t size) {
  const uint32_t told = (uint32_t)size;
  void* copy = malloc(size);
  memcpy(copy, whole, size);
  memcpy(copy, &told, sizeof told);
  return copy;
}

static uint32_t told_size(const void* head) {
  uint32_t size;
  memcpy(&size, head, sizeof size);
  return size;
}

/* A program built for version 0.1.0: its structs end where that version's did. */
static void older_callers(void) {
  enum { kProblem = 264, kTensors = 72, kOptions = 56, kValues = 2 * 8 * 16 };
  static float q[kValues], k[kValues], v[kValues], o[kValues], expected[kValues];
  gf_problem problem;
  gf_tensors tensors = GF_TENSORS_INIT;
  gf_options options = GF_OPTIONS_INIT;
  void* old_problem = malloc(kProblem);
  void* old_tensors;
  void* old_options;
  uint64_t needs = 0, old_needs = 0;
  int n;
  for (n = 0; n < kValues; ++n) {
    q[n] = (float)(n % 7) - 3.0f;
    k[n] = (float)(n % 5) - 2.0f;
    v[n] = (float)(n % 11);
  }
  tensors.q = q;
  tensors.k = k;
  tensors.v = v;
  tensors.o = expected;
  EXPECT(gf_problem_init(&problem, 1, 2, 2, 8, 8, 16, GF_FP32, GF_BHSD) == GF_OK);
  EXPECT(problem.struct_size == sizeof problem && problem.head_dim_v == 0);
  EXPECT(gf_attention(&problem, &tensors, &options) == GF_OK);

  /* The function that such a program is linked with, which the macro does not hide from it. */
  EXPECT((gf_problem_init)(old_problem, 1, 2, 2, 8, 8, 16, GF_FP32, GF_BHSD) == GF_OK);
  EXPECT(told_size(old_problem) == kProblem);
  tensors.o = o;
  old_tensors = shortened(&tensors, kTensors);
  old_options = shortened(&options, kOptions);
  EXPECT(gf_check(old_problem) == GF_OK);
  EXPECT(gf_features(&problem, &needs) == GF_OK && gf_features(old_problem, &old_needs) == GF_OK);
  EXPECT(needs == old_needs);
  EXPECT(gf_attention(old_problem, old_tensors, old_options) == GF_OK);
  EXPECT(memcmp(o, expected, sizeof o) == 0);
  free(old_tensors);

  /* One byte less is no version's. */
  old_tensors = shortened(&tensors, kTensors - 1);
  EXPECT(gf_attention(old_problem, old_tensors, old_options) == GF_INVALID_ARGUMENT &&
         says("struct_size 71"));
  EXPECT(gf_problem_init_sized(old_problem, kProblem - 1, 1, 2, 2, 8, 8, 16, GF_FP32, GF_BHSD) ==
             GF_INVALID_ARGUMENT &&
         says("struct_size is 263"));
  free(old_problem);
  free(old_tensors);
  free(old_options);
}

/* A word that version 0.1.0 had not: behind the last field, and only for e4m3. */
static void asks_for_fast_accuracy(void) {
  gf_problem problem;
  uint64_t needs = 0;
  EXPECT(gf_problem_init(&problem, 1, 2, 2, 8, 8, 16, GF_E4M3, GF_BHSD) == GF_OK);
  EXPECT(problem.accuracy == GF_ACCURACY_EXACT);
  EXPECT(gf_features(&problem, &needs) == GF_OK && needs >> GF_FEATURE_EXACT_ACCURACY & 1);
  problem.accuracy = GF_ACCURACY_FAST;
  EXPECT(gf_check(&problem) == GF_OK && gf_features(&problem, &needs) == GF_OK);
  EXPECT(needs >> GF_FEATURE_FAST_ACCURACY & 1 && !(needs >> GF_FEATURE_EXACT_ACCURACY & 1));
  problem.dtype = GF_FP16;
  EXPECT(gf_check(&problem) == GF_INVALID_ARGUMENT && says("only e4m3"));
  problem.dtype = GF_E4M3;
  problem.accuracy = 2;
  EXPECT(gf_check(&problem) == GF_INVALID_ARGUMENT && says("exact or fast"));
  problem.accuracy = GF_ACCURACY_FAST;
  problem.reserved_accuracy = 1;
  EXPECT(gf_check(&problem) == GF_INVALID_ARGUMENT && says("reserved"));
}

/* Packed queries over keys in pages, append and merge: the same through C. */
static void serves(void) {
  static float k_new[3 * 16], cache[4 * 4 * 16], v_cache[4 * 4 * 16], q[3 * 16], o[3 * 16];
  static float lse[3], merged[3 * 16], nothing[3];
  const int32_t cu[3] = {0, 1, 3}, used[2] = {2, 5}, now[2] = {3, 7}, table[4] = {2, 9, 0, 3};
  gf_append_problem append = GF_APPEND_PROBLEM_INIT;
  gf_append_tensors news = GF_APPEND_TENSORS_INIT;
  gf_merge_problem merge = GF_MERGE_PROBLEM_INIT;
  gf_merge_tensors parts = GF_MERGE_TENSORS_INIT;
  gf_tensors tensors = GF_TENSORS_INIT;
  gf_problem problem;
  gf_layout rows = {{0, 16, 16, 1}, 4, 0}, pages = {{64, 16, 16, 1}, 4, 0};
  int n;
  for (n = 0; n < 3 * 16; ++n) {
    k_new[n] = (float)(n % 9) - 4.0f;
    q[n] = (float)(n % 4) - 1.5f;
  }
  for (n = 0; n < 3; ++n) nothing[n] = -INFINITY;
  append.batch = 2;
  append.seq_new = 2;
  append.seq_kv = 8;
  append.head_dim = 16;
  append.packed = 1;
  append.total_new = 3;
  append.dtype = GF_FP32;
  append.page_size = append.page_count = 4;
  append.page_row_stride = 2;
  append.k_new = append.v_new = rows;
  append.k = append.v = pages;
  news.k_new = news.v_new = k_new;
  news.k = news.v = cache;
  news.cu_new = cu;
  news.used_kv = used;
  news.page_table = table;
  EXPECT(gf_append(&append, &news, NULL) == GF_INVALID_ARGUMENT && says("k overlaps v"));
  news.v = v_cache;
  EXPECT(gf_append(&append, &news, NULL) == GF_OK);
  EXPECT(cache[2 * 64 + 2 * 16] == k_new[0] && cache[3 * 64 + 2 * 16 + 1] == k_new[2 * 16 + 1]);
  append.seq_kv = 6;
  EXPECT(gf_append(&append, &news, NULL) == GF_INVALID_ARGUMENT && says("would have 7 keys"));

  EXPECT(gf_problem_init(&problem, 2, 1, 1, 2, 8, 16, GF_FP32, GF_BHSD) == GF_OK);
  problem.packed_q = problem.used_kv = problem.lse = 1;
  problem.total_q = 3;
  problem.page_size = problem.page_count = 4;
  problem.page_row_stride = 2;
  problem.q = problem.o = rows;
  problem.k = problem.v = pages;
  problem.mask_right = 0;
  problem.mask_alignment = GF_BOTTOM_RIGHT;
  tensors.q = q;
  tensors.k = cache;
  tensors.v = v_cache;
  tensors.o = o;
  tensors.lse = lse;
  tensors.cu_q = cu;
  tensors.used_kv = now;
  tensors.page_table = table;
  EXPECT(gf_attention(&problem, &tensors, NULL) == GF_OK && o[2 * 16 + 1] != 0.0f);
  tensors.used_kv = NULL;
  EXPECT(gf_attention(&problem, &tensors, NULL) == GF_INVALID_ARGUMENT && says("used_kv is null"));

  merge.seq = 3;
  merge.head_dim = 16;
  merge.a = merge.b = merge.o = rows;
  parts.a = o;
  parts.lse_a = lse;
  parts.b = q; /* not read: its part is empty */
  parts.lse_b = nothing;
  parts.o = merged;
  EXPECT(gf_merge(&merge, &parts, NULL) == GF_OK && memcmp(merged, o, sizeof o) == 0);
  parts.lse_b = NULL;
  EXPECT(gf_merge(&merge, &parts, NULL) == GF_INVALID_ARGUMENT && says("lse_b is null"));
}

int main(void) {
  EXPECT(strcmp(gf_last_error(), "") == 0);
  EXPECT(gf_abi_version() == GF_ABI_VERSION);
  EXPECT(strchr(gf_version(), '.') != NULL);
  EXPECT(strcmp(gf_status_name(GF_NO_DEVICE), "no device") == 0);
  EXPECT(strcmp(gf_status_name(1234), "unknown") == 0);
  computes();
  null_safe();
  heads_of_structs();
  plans();
  registry();
  features();
  older_callers();
  asks_for_fast_accuracy();
  serves();
  puts("all true");
  return 0;
}
