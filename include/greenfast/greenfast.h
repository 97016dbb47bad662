/** @file
 * The C interface of Greenfast, C99: the same calls as greenfast/attention.hpp, for programs and
 * languages without C++.
 *
 * Rules of the ABI. Every struct begins with its size and the ABI version it was written for; the
 * GF_…_INIT macros fill both in. Later versions append fields and never move one: a shorter struct
 * of an older caller takes the defaults for what it lacks, a longer one of a newer caller is
 * accepted as long as what this library does not know is zero. Enumerators keep their numbers. The
 * caller owns every buffer. Functions accept null pointers (and say what is missing), are
 * thread-safe, and let no exception out. */
#ifndef GREENFAST_GREENFAST_H
#define GREENFAST_GREENFAST_H

#include <stddef.h>
#include <stdint.h>

#include <greenfast/export.hpp>

#ifdef __cplusplus
extern "C" {
#endif

/** Changes when a program built for an older number could not run any more. */
#define GF_ABI_VERSION 1u

/** Outcome of a call. */
typedef int32_t gf_status;
/** Values of gf_status. */
enum gf_status_value {
  GF_OK = 0,
  GF_INVALID_ARGUMENT = 1, /**< the call contradicts itself or points at memory it may not use */
  GF_UNSUPPORTED = 2,      /**< a legal problem that no (or not the forced) variant can take */
  GF_NO_DEVICE = 3,        /**< the device or its driver is missing */
  GF_OUT_OF_MEMORY = 4,
  GF_DEVICE_ERROR = 5, /**< the driver reported a failure */
  GF_INTERNAL = 6
};

/** Element type of a tensor. */
typedef int32_t gf_dtype;
/** Values of gf_dtype. */
enum gf_dtype_value { GF_FP32 = 0, GF_FP16 = 1, GF_BF16 = 2, GF_E4M3 = 3 };

/** Kind of device. */
typedef int32_t gf_device;
/** Values of gf_device. */
enum gf_device_value { GF_CPU = 0, GF_CUDA = 1 };

/** Where the diagonal of a causal or windowed mask lies when Sq != Skv. */
typedef int32_t gf_alignment;
/** Values of gf_alignment. */
enum gf_alignment_value { GF_TOP_LEFT = 0, GF_BOTTOM_RIGHT = 1 };

/** Memory order of a dense tensor. */
typedef int32_t gf_order;
/** Values of gf_order. */
enum gf_order_value { GF_BHSD = 0, GF_BSHD = 1 };

/** How far one descale value of an e4m3 tensor reaches. */
typedef int32_t gf_scale_kind;
/** Values of gf_scale_kind. */
enum gf_scale_kind_value {
  GF_SCALE_NONE = 0,
  GF_SCALE_TENSOR = 1,
  GF_SCALE_PER_HEAD = 2, /**< [B, H] */
  GF_SCALE_PER_BLOCK = 3 /**< [B, H, ceil(S / GF_SCALE_BLOCK)] */
};
/** Queries, or keys, of a sequence that share a factor of GF_SCALE_PER_BLOCK. */
#define GF_SCALE_BLOCK 128

/** How near to the exact answer O and the LSE must be. */
typedef int32_t gf_accuracy;
/** Values of gf_accuracy. */
enum gf_accuracy_value {
  GF_ACCURACY_EXACT = 0,
  GF_ACCURACY_FAST = 1 /**< GF_E4M3 only: a kernel may take linear weights (docs/numerics.md) */
};

/** What the elements of an array mask mean. */
typedef int32_t gf_mask_kind;
/** Values of gf_mask_kind. */
enum gf_mask_kind_value {
  GF_MASK_NONE = 0,
  GF_MASK_BOOLEAN = 1, /**< one byte; not 0: the key is visible */
  GF_MASK_ADDITIVE = 2 /**< added to the score behind softcap; -inf hides the key */
};

/** Which slopes ALiBi has. */
typedef int32_t gf_alibi;
/** Values of gf_alibi. */
enum gf_alibi_value {
  GF_ALIBI_NONE = 0,
  GF_ALIBI_PER_HEAD = 1,      /**< fp32 [Hq] */
  GF_ALIBI_PER_BATCH_HEAD = 2 /**< fp32 [B, Hq] */
};

/** Numbers of the bits in a set of features: what a problem needs, what a variant takes. */
enum gf_feature_value {
  GF_FEATURE_IN_FP32 = 0, /**< element type of Q, K and V */
  GF_FEATURE_IN_FP16 = 1,
  GF_FEATURE_IN_BF16 = 2,
  GF_FEATURE_IN_E4M3 = 3,
  GF_FEATURE_OUT_FP32 = 4, /**< element type of O */
  GF_FEATURE_OUT_FP16 = 5,
  GF_FEATURE_OUT_BF16 = 6,
  GF_FEATURE_SCALES_TENSOR = 7, /**< one descale factor a tensor */
  GF_FEATURE_SCALES_PER_HEAD = 8,
  GF_FEATURE_CAUSAL = 9,  /**< keys up to a diagonal, under either alignment */
  GF_FEATURE_WINDOW = 10, /**< any other band of keys */
  GF_FEATURE_SOFTCAP = 11,
  GF_FEATURE_NONPOSITIVE_SCALE = 12,
  GF_FEATURE_LSE = 13,
  GF_FEATURE_GROUPED_HEADS = 14, /**< fewer heads of K and V than of Q */
  GF_FEATURE_VALUE_DIM = 15,     /**< V and O have a head dimension of their own */
  GF_FEATURE_PACKED_Q = 16,
  GF_FEATURE_PACKED_KV = 17,
  GF_FEATURE_USED_Q = 18,
  GF_FEATURE_USED_KV = 19,
  GF_FEATURE_KV_START = 20, /**< left padding */
  GF_FEATURE_KV_INDEX = 21,
  GF_FEATURE_PAGES = 22,
  GF_FEATURE_CHUNK = 23,
  GF_FEATURE_SINKS = 24,
  GF_FEATURE_ALIBI = 25,
  GF_FEATURE_BOOL_MASK = 26,
  GF_FEATURE_FLOAT_MASK = 27,
  GF_FEATURE_FAST_ACCURACY = 28, /**< linear weights are near enough */
  /** They are not, as for every problem that does not ask for fast accuracy. */
  GF_FEATURE_EXACT_ACCURACY = 29,
  GF_FEATURE_TRANSPOSED_V = 30,    /**< e4m3 V with its keys one behind the other */
  GF_FEATURE_SCALES_PER_BLOCK = 31 /**< a descale factor for each GF_SCALE_BLOCK rows */
};

/** Strides in elements for [B, H, S, D]; the last is 1, or of V in e4m3 that of S. alignment: bytes that divide the base
 * address, a power of two. */
typedef struct gf_layout {
  int64_t stride[4];
  int32_t alignment;
  int32_t reserved;
} gf_layout;

/** O = softmax(softcap(scale * Q K^T) + mask) V. Q, O: [B, Hq, Sq, D]; K, V: [B, Hkv, Skv, D].
 * Query i sees key j iff i + shift - mask_left <= j <= i + shift + mask_right, with shift 0
 * (GF_TOP_LEFT) or Skv - Sq (GF_BOTTOM_RIGHT); a negative bound is no bound.
 *
 * What begins with head_dim_v is for serving (docs/serving.md) and zero where it is not asked for.
 * O and V have head_dim_v in place of D. Packed Q and O are [1, Hq, total_q, D], packed K and V
 * [1, Hkv, total_kv, D]; in pages K and V are [page_count, Hkv, page_size, D]. Then batch counts
 * the sequences, and seq_q and seq_kv are the most rows and keys that any of them has: they may be
 * more, never less. */
typedef struct gf_problem {
  uint32_t struct_size;
  uint32_t abi_version;
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv;
  int64_t head_dim;     /**< 8 to 256 in steps of 8 */
  gf_dtype dtype;       /**< of Q, K and V */
  gf_dtype out_dtype;   /**< GF_FP32, GF_FP16 or GF_BF16 */
  gf_scale_kind scales; /**< GF_E4M3 only */
  float scale;          /**< usually 1 / sqrt(head_dim) */
  float softcap;        /**< c > 0: scores become c * tanh(score / c); 0: off */
  gf_alignment mask_alignment;
  int64_t mask_left, mask_right;
  int32_t lse; /**< not 0: also write the natural-log log-sum-exp, fp32 [B, Hq, Sq] */
  int32_t reserved;
  gf_layout q, k, v, o;
  /* Here version 0.1.0 ended. */
  int64_t head_dim_v;        /**< of V and O; 0: head_dim */
  int64_t total_q, total_kv; /**< packed: rows of the tensors, at least cu_q[B], cu_kv[B] */
  int64_t kv_rows;           /**< with kv_index: K's and V's first dimension */
  int64_t page_size;         /**< keys of a page; 0: K and V are not in pages */
  int64_t page_count;        /**< pages of the pool */
  int64_t page_row_stride;   /**< entries of the page table from one sequence to the next */
  int64_t chunk;             /**< keys of an attention chunk, counted from kv_start; 0: off */
  /** Not 0: the call has the array of that name in gf_tensors (packed_q: cu_q). */
  int32_t packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, sinks;
  gf_alibi alibi;
  gf_mask_kind array_mask_kind;
  gf_dtype array_mask_dtype;    /**< additive: GF_FP32 or the type of Q; else 0 */
  int64_t array_mask_stride[4]; /**< for [B, Hq, Sq, Skv]; 0 broadcasts; the last is 0 or 1 */
  gf_accuracy accuracy;
  int32_t reserved_accuracy;
} gf_problem;

/** Data of one call, on the device. What the problem does not need may be null. Lengths and indices
 * are checked before anything is written where the device is the CPU. */
typedef struct gf_tensors {
  uint32_t struct_size;
  uint32_t abi_version;
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;
  const float* q_scale;
  const float* k_scale;
  const float* v_scale;
  /* Here version 0.1.0 ended. */
  const int32_t* cu_q;       /**< [B + 1]: where each sequence of packed Q begins and ends */
  const int32_t* cu_kv;      /**< [B + 1] */
  const int32_t* used_q;     /**< [B]: rows of Q that each sequence has */
  const int32_t* used_kv;    /**< [B]: keys that each sequence has */
  const int32_t* kv_start;   /**< [B]: the first key that may be seen */
  const int32_t* kv_index;   /**< [B]: row of K and V that an entry of the batch reads */
  const int32_t* page_table; /**< [B, pages]: key j of sequence b is in page [b][j / page_size] */
  const float* sinks;        /**< [Hq]: exp of it joins the denominator of each row */
  const void* mask;          /**< [B, Hq, Sq, Skv] by array_mask_stride */
  const float* slopes;       /**< [Hq] or [B, Hq]: -slope * |i + shift - j| joins the score */
} gf_tensors;
/** Initial value of a gf_tensors. */
#define GF_TENSORS_INIT                                                                           \
  {                                                                                               \
    (uint32_t)sizeof(gf_tensors), GF_ABI_VERSION, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL                                \
  }

/** How a call is to be done. Null wherever one is asked for means GF_OPTIONS_INIT. */
typedef struct gf_options {
  uint32_t struct_size;
  uint32_t abi_version;
  gf_device device;
  int32_t device_index;    /**< CUDA ordinal; the calling thread's current device for a launch */
  void* stream;            /**< cudaStream_t; null is the legacy default stream */
  const char* variant;     /**< force this variant; null or "": GREENFAST_VARIANT, else automatic */
  int32_t batch_invariant; /**< selection, tile and split ignore B and the number of threads; give
                                B = 1 the batch stride that the entry has in a batch */
  int32_t reserved;
  void* workspace; /**< gf_plan_info.workspace_bytes, 256-byte aligned. Where it is null and
                        `allocate` too, automatic selection passes over variants that want some, and
                        those that can do without do so, also where it has fewer bytes than they want */
  size_t workspace_bytes;
  /* Here version 0.1.0 ended. */
  int32_t max_splits; /**< most parts that the keys of a row are divided into; 0: as many as pay,
                         1: none; not less than 0 */
  int32_t validate;   /**< not 0: arrays of lengths and indices are checked on any device before the
                         launch, and the entry that is wrong is named, at the price of a copy and
                         a synchronisation of the stream, so not while it is captured. On the CPU
                         they are always checked; elsewhere a kernel clamps them to what the problem
                         says. */
  /** Gives scratch to a call whose variant wants some and whose `workspace` is null: `bytes` (at most
   * once a call) of device memory, 256-byte aligned, which must stay the call's until its work in the
   * stream is done. Null from it is GF_OUT_OF_MEMORY, and nothing has been written. Called in the
   * calling thread. */
  void* (*allocate)(size_t bytes, void* context);
  void* allocate_context;
} gf_options;
/** Initial value of a gf_options: the CPU, automatic selection. */
#define GF_OPTIONS_INIT                                                                       \
  {                                                                                           \
    (uint32_t)sizeof(gf_options), GF_ABI_VERSION, GF_CPU, 0, NULL, NULL, 0, 0, NULL, 0, 0, 0, \
        NULL, NULL                                                                            \
  }

/** Two parts of the same attention over disjoint keys made into one. A part whose LSE is -inf or
 * +inf is empty, and its O is not read; both empty: O = 0, LSE = -inf. One whose LSE is NaN is not:
 * the row's LSE is NaN, and its O as well unless the other part is empty. */
typedef struct gf_merge_problem {
  uint32_t struct_size;
  uint32_t abi_version;
  int64_t batch, heads, seq, head_dim; /**< head_dim: that of O */
  gf_dtype dtype;                      /**< of a and b: GF_FP32, GF_FP16, GF_BF16 */
  gf_dtype out_dtype;                  /**< of o */
  gf_layout a, b, o;                   /**< packed O is [1, H, total, D] */
} gf_merge_problem;
/** Initial value of a gf_merge_problem. */
#define GF_MERGE_PROBLEM_INIT                                                          \
  {                                                                                    \
    (uint32_t)sizeof(gf_merge_problem), GF_ABI_VERSION, 1, 1, 0, 64, GF_FP32, GF_FP32, \
        {{0, 0, 0, 0}, 64, 0}, {{0, 0, 0, 0}, 64, 0}, {                                \
      {0, 0, 0, 0}, 64, 0                                                              \
    }                                                                                  \
  }
/** Data of gf_merge. o and lse may be those of a part, with its type and strides. */
typedef struct gf_merge_tensors {
  uint32_t struct_size;
  uint32_t abi_version;
  const void* a;
  const float* lse_a; /**< fp32 [B, H, S], contiguous, natural log */
  const void* b;
  const float* lse_b;
  void* o;
  float* lse; /**< may be null */
} gf_merge_tensors;
/** Initial value of a gf_merge_tensors. */
#define GF_MERGE_TENSORS_INIT \
  { (uint32_t)sizeof(gf_merge_tensors), GF_ABI_VERSION, NULL, NULL, NULL, NULL, NULL, NULL }

/** Which elements of a head a rotary embedding turns together. */
typedef int32_t gf_rotary;
/** Values of gf_rotary. */
enum gf_rotary_value {
  GF_ROTARY_NONE = 0,
  GF_ROTARY_INTERLEAVED = 1, /**< 2 n and 2 n + 1 */
  GF_ROTARY_NEOX = 2         /**< n and n + rotary_dim / 2 */
};

/** New keys and values, [B, Hkv, S, D], and the cache they go to: token t of sequence b becomes key
 * used_kv[b] + t. */
typedef struct gf_append_problem {
  uint32_t struct_size;
  uint32_t abi_version;
  int64_t batch;
  int64_t heads_q; /**< of Q, which is turned as well; 0: there is no Q */
  int64_t heads_kv;
  int64_t seq_new; /**< new tokens of each sequence, or of the longest */
  int64_t seq_kv;  /**< keys that a sequence may have in the cache */
  int64_t head_dim, head_dim_v;
  int64_t total_new; /**< packed: rows of the new tensors */
  int64_t kv_rows;   /**< with kv_index: the cache's first dimension */
  int64_t page_size, page_count, page_row_stride;
  int64_t rotary_dim; /**< even, at most head_dim */
  int64_t positions;  /**< rows of the tables cos and sin */
  gf_dtype dtype;     /**< of all tensors; GF_E4M3 without rotary */
  gf_rotary rotary;
  int32_t packed, used_new, kv_start, kv_index; /**< not 0: the call has that array */
  gf_layout k_new, v_new, k, v, q, q_out;
} gf_append_problem;
/** Initial value of a gf_append_problem. */
#define GF_APPEND_PROBLEM_INIT                                                                   \
  {                                                                                              \
    (uint32_t)sizeof(gf_append_problem), GF_ABI_VERSION, 1, 0, 1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, \
        0, GF_FP16, GF_ROTARY_NONE, 0, 0, 0, 0, {{0, 0, 0, 0}, 64, 0}, {{0, 0, 0, 0}, 64, 0},    \
        {{0, 0, 0, 0}, 64, 0}, {{0, 0, 0, 0}, 64, 0}, {{0, 0, 0, 0}, 64, 0}, {                   \
      {0, 0, 0, 0}, 64, 0                                                                        \
    }                                                                                            \
  }
/** Data of gf_append. q_out may be q with its strides. */
typedef struct gf_append_tensors {
  uint32_t struct_size;
  uint32_t abi_version;
  const void* k_new;
  const void* v_new;
  void* k;
  void* v;
  const void* q;
  void* q_out;
  const int32_t* cu_new;     /**< [B + 1] */
  const int32_t* used_new;   /**< [B] */
  const int32_t* used_kv;    /**< [B]: keys before the call; null: none */
  const int32_t* kv_start;   /**< [B] */
  const int32_t* kv_index;   /**< [B] */
  const int32_t* page_table; /**< [B, pages] */
  const float* cos;          /**< [positions, rotary_dim / 2] */
  const float* sin;
} gf_append_tensors;
/** Initial value of a gf_append_tensors. */
#define GF_APPEND_TENSORS_INIT                                                                     \
  {                                                                                                \
    (uint32_t)sizeof(gf_append_tensors), GF_ABI_VERSION, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL, NULL, NULL                                                   \
  }

/** Texts are cut to their array and always end with a null character. */
typedef struct gf_device_facts {
  uint32_t struct_size;
  uint32_t abi_version;
  gf_device device;
  int32_t index;
  int32_t arch;            /**< compute capability, 10 * major + minor; 0 on the CPU */
  int32_t multiprocessors; /**< SMs, or CPU threads the library will use */
  int64_t shared_per_block;
  int64_t l2_bytes;
  char name[128];
  char isa[32];
  char driver[32];
} gf_device_facts;
/** Initial value of a gf_device_facts. */
#define GF_DEVICE_FACTS_INIT                                                                  \
  {                                                                                           \
    (uint32_t)sizeof(gf_device_facts), GF_ABI_VERSION, GF_CPU, 0, 0, 0, 0, 0, {0}, {0}, { 0 } \
  }

/** What a variant will do with a problem on a device. */
typedef struct gf_plan_info {
  uint32_t struct_size;
  uint32_t abi_version;
  const char* variant; /**< lives as long as the library */
  int32_t grid[3];     /**< CPU: tasks, 1, 1 */
  int32_t block[3];    /**< CPU: threads, 1, 1 */
  int32_t cluster[3];
  int32_t tile_q, tile_kv; /**< rows and keys of one tile */
  int32_t stages;
  int32_t splits; /**< parts the keys of one row are divided into */
  int64_t shared_bytes;
  int64_t workspace_bytes; /**< scratch the caller provides */
  char kernel[256];
  char note[256];
} gf_plan_info;
/** Initial value of a gf_plan_info. */
#define GF_PLAN_INFO_INIT                                                                         \
  {                                                                                               \
    (uint32_t)sizeof(gf_plan_info), GF_ABI_VERSION, NULL, {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, {0}, { \
      0                                                                                           \
    }                                                                                             \
  }

/** One row of the registry. Texts live as long as the library. */
typedef struct gf_variant {
  uint32_t struct_size;
  uint32_t abi_version;
  const char* id;   /**< device.family.name */
  const char* idea; /**< one line */
  gf_device device;
  int32_t min_arch;
  int32_t built;     /**< compiled into this library */
  int32_t automatic; /**< selection may choose it unasked */
  const char* predecessor;
  const char* toggles; /**< "USE_CP_ASYNC=1 USE_WMMA_PV=0" */
} gf_variant;
/** Initial value of a gf_variant. */
#define GF_VARIANT_INIT \
  { (uint32_t)sizeof(gf_variant), GF_ABI_VERSION, NULL, NULL, GF_CPU, 0, 0, 0, NULL, NULL }

/** Fills in a dense problem with default scale and output type, without mask: struct_size bytes of
 * it, which is sizeof(gf_problem) of the caller. It is checked when it is used. */
GREENFAST_API gf_status gf_problem_init_sized(gf_problem* problem, size_t struct_size,
                                              int64_t batch, int64_t heads_q, int64_t heads_kv,
                                              int64_t seq_q, int64_t seq_kv, int64_t head_dim,
                                              gf_dtype dtype, gf_order order);
/** The same with the size that version 0.1.0 had, for programs built for it. */
GREENFAST_API gf_status gf_problem_init(gf_problem* problem, int64_t batch, int64_t heads_q,
                                        int64_t heads_kv, int64_t seq_q, int64_t seq_kv,
                                        int64_t head_dim, gf_dtype dtype, gf_order order);
/** In programs built for this header: with its size. */
#define gf_problem_init(problem, ...) \
  gf_problem_init_sized((problem), sizeof(gf_problem), __VA_ARGS__)
/** Checks shapes, types, strides, scale, overflow: everything that needs no data. */
GREENFAST_API gf_status gf_check(const gf_problem* problem);

/** The features that the problem needs: bit n is feature n. */
GREENFAST_API gf_status gf_features(const gf_problem* problem, uint64_t* features);
/** "e4m3 inputs"; "an unknown feature" for a number that has no name. */
GREENFAST_API const char* gf_feature_name(int32_t feature);

/** Computes attention. Allocates no device memory but by gf_options.allocate, never synchronises a
 * stream but for gf_options.validate; on the CPU it returns when the output is written. Null options
 * are GF_OPTIONS_INIT. */
GREENFAST_API gf_status gf_attention(const gf_problem* problem, const gf_tensors* tensors,
                                     const gf_options* options);
/** Does what a first call would do, so that the next is as fast as any. */
GREENFAST_API gf_status gf_prepare(const gf_problem* problem, const gf_options* options);

/** Merges two parts, on the CPU or on CUDA; of the options only device, device_index and stream
 * count. */
GREENFAST_API gf_status gf_merge(const gf_merge_problem* problem, const gf_merge_tensors* tensors,
                                 const gf_options* options);
/** Appends new keys and values to a cache and turns Q, on the CPU or on CUDA; of the options only
 * device, device_index, stream and validate count. After a failure nothing has been written. On CUDA
 * tokens without a place in the cache are no failure unless validate is set: they are dropped, and
 * their rows of q_out are not written. */
GREENFAST_API gf_status gf_append(const gf_append_problem* problem,
                                  const gf_append_tensors* tensors, const gf_options* options);

/** Facts of a device of this machine. */
GREENFAST_API gf_status gf_get_device_facts(gf_device device, int32_t index,
                                            gf_device_facts* facts);
/** Facts of a known model: "h200", "h100", "a100", "l4", "cpu". */
GREENFAST_API gf_status gf_get_model_facts(const char* model, gf_device_facts* facts);

/** What the selected variant will do. Null facts: those of the options' device. */
GREENFAST_API gf_status gf_plan(const gf_problem* problem, const gf_device_facts* facts,
                                const gf_options* options, gf_plan_info* plan);
/** Which variant is chosen and every variant's answer, one line each, "id rank reason", the chosen
 * one marked with '*'; where none is, a last line says why. Writes at most `capacity` bytes with
 * the final null character; *needed, when not null, receives how many the whole text takes. */
GREENFAST_API gf_status gf_explain(const gf_problem* problem, const gf_device_facts* facts,
                                   const gf_options* options, char* text, size_t capacity,
                                   size_t* needed);

/** Rows of the registry, ladder order first to last. */
GREENFAST_API size_t gf_variant_count(void);
/** One row of it, 0 to gf_variant_count() - 1. */
GREENFAST_API gf_status gf_variant_info(size_t index, gf_variant* variant);
/** The features that a row takes; a problem that needs others is refused by name. */
GREENFAST_API gf_status gf_variant_takes(size_t index, uint64_t* features);

/** "ok", "invalid argument", … */
GREENFAST_API const char* gf_status_name(gf_status status);
/** Message of this thread's last failed call: what was asked, what is possible, what to change. ""
 * when none failed. Lives until the thread's next failed call. */
GREENFAST_API const char* gf_last_error(void);

/** Receives one line at a time, from any thread. */
typedef void (*gf_log_callback)(const char* message, void* user);
/** Sets who receives the library's messages; null, the default, is nobody. */
GREENFAST_API void gf_set_log_callback(gf_log_callback callback, void* user);

/** "0.1.0". */
GREENFAST_API const char* gf_version(void);
/** GF_ABI_VERSION of the library, to compare with that of the header. */
GREENFAST_API uint32_t gf_abi_version(void);

#ifdef __cplusplus
}
#endif

#endif
