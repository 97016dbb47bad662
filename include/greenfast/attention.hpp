// The calls of the public API: run attention, plan it, and ask which variant would do it and why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <greenfast/features.hpp>
#include <greenfast/types.hpp>

namespace greenfast {

/// Where and how a call runs; the same for every problem.
struct Options {
  DeviceKind device = DeviceKind::cpu;
  int device_index =
      0;  ///< CUDA ordinal; must be the current device of the calling thread for a launch
  void* stream = nullptr;  ///< cudaStream_t; null is the legacy default stream. Ignored on the CPU
  std::string_view variant =
      {};  ///< force this variant id; empty: GREENFAST_VARIANT, else automatic
  /// Selection, tile and split ignore B and the number of threads, so that a row's bits never
  /// depend on its neighbours in the batch: calls that differ in nothing but B and the other
  /// entries' data give an entry the same bits. Its strides, the batch stride too, and whether its
  /// addresses are multiples of 16 bytes are no such difference, for they decide which kernel can
  /// read it: give an entry that runs alone (B = 1, where a batch stride is otherwise not looked
  /// at) the batch stride that it has in a batch. Dense layouts have it; 0 stands for any that is a
  /// multiple of 16 bytes and of the stride between rows.
  bool batch_invariant = false;
  /// Caller's scratch, at least Plan::workspace_bytes, 256-byte aligned, on the device. Where it is
  /// null and `allocate` too, automatic selection passes over variants that want some, and those that
  /// gain by it and can do without (cuda.sm80.mma, whose keys go into parts) do so, with other bits.
  /// These do without where it has fewer bytes than they want, too; for others that is an error.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  /// Most parts that the keys of a row are divided into; 0: as many as pay, 1: none.
  /// Less than 0 is an invalid_argument.
  int max_splits = 0;
  /// Checks arrays of lengths and indices on any device before the launch and names the entry that
  /// is wrong (invalid_argument; nothing has been written), at the price of a copy and a
  /// synchronisation of the stream, so not while it is captured. On the CPU they are always checked;
  /// elsewhere a kernel clamps them to what the problem says.
  bool validate = false;
  /// Gives scratch to a call whose variant wants some and whose `workspace` is null: `bytes` (at
  /// most once a call) of device memory, 256-byte aligned, which must stay the call's until its work
  /// in the stream is done, as memory of a stream-ordered allocator does. Null from it is
  /// out_of_memory, and nothing has been written. Called in the calling thread; must not throw.
  void* (*allocate)(std::size_t bytes, void* context) = nullptr;
  void* allocate_context = nullptr;
};

/// Computes attention. Allocates no device memory but by Options::allocate, never synchronises a
/// stream but for Options::validate; on the CPU it returns when the output is written. Thread-safe. Every address is a multiple of its element's
/// size; o, lse and the workspace overlap nothing else.
/// Errors: invalid_argument (problem, pointers or workspace), unsupported (no variant can, or not
/// the forced one), no_device, out_of_memory (the CPU's own arena, Options::allocate), device_error. After one the
/// output is not defined.
GREENFAST_API Status attention(const Problem& problem, const Tensors& tensors,
                               const Options& options = {});

/// An array mask with its shape. A dimension of size 1 where the problem has more is broadcast.
struct MaskView {
  const void* data = nullptr;  ///< null: none
  MaskKind kind = MaskKind::boolean;
  DType dtype = DType::f32;              ///< additive
  std::array<std::int64_t, 4> shape{};   ///< B, Hq, Sq, Skv, each that of the problem or 1
  std::array<std::int64_t, 4> stride{};  ///< in elements
};

/// The knobs of the convenience call; everything else is read off the tensors.
struct AttentionParams {
  std::optional<float> scale = {};  ///< default 1 / sqrt(D)
  float softcap = 0.0f;
  Mask mask = {};
  float* lse = nullptr;
  ScaleKind scales = ScaleKind::none;
  const float* q_scale = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;

  // Serving; docs/serving.md has the meaning of each. An array that is given is used.
  /// Packed Q (K, V) are views [1, H, total, D]. With packed Q `sequences` says how many there are;
  /// otherwise Q's batch does, and it is that or 0.
  std::int64_t sequences = 0;
  const std::int32_t* cu_q = nullptr;
  const std::int32_t* cu_kv = nullptr;
  const std::int32_t* used_q = nullptr;
  const std::int32_t* used_kv = nullptr;
  const std::int32_t* kv_start = nullptr;
  const std::int32_t* kv_index = nullptr;  ///< K's and V's first dimension is then the cache's
  std::int64_t max_q = 0;                  ///< packed Q: the longest sequence; 0: all rows
  std::int64_t max_kv = 0;  ///< packed K or pages: the same; 0: all rows, a row of the table
  /// [sequences, pages]; K and V are then views [blocks, Hkv, page, D].
  const std::int32_t* page_table = nullptr;
  /// Entries of the table from one sequence to the next; 0 needs max_kv: all share one row.
  std::int64_t page_row_stride = 0;
  const float* sinks = nullptr;
  MaskView mask_view = {};
  const float* slopes = nullptr;
  Alibi alibi = Alibi::none;  ///< which slopes; none with slopes given: per_head
  std::int64_t chunk = 0;
  Accuracy accuracy = Accuracy::exact;
};

/// Builds the Problem from views, checks that their shapes and types agree, then calls
/// attention(problem, …).
GREENFAST_API Status attention(const TensorView& q, const TensorView& k, const TensorView& v,
                               const TensorView& o, const AttentionParams& params = {},
                               const Options& options = {});

/// Does what a first call would do (module loading, shared-memory opt-in, thread start), so that
/// the next call is as fast as any and may be captured into a CUDA graph.
GREENFAST_API Status prepare(const Problem& problem, const Options& options = {});

/// What selection may know of a device: plain facts, so that plans for a GPU can be made without
/// one.
struct DeviceFacts {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  std::string name;
  int arch = 0;             ///< compute capability as 10 * major + minor, e.g. 90; 0 on the CPU
  int multiprocessors = 1;  ///< SMs, or CPU threads the library will use
  std::int64_t shared_per_block = 0;  ///< opt-in limit, bytes
  std::int64_t l2_bytes = 0;          ///< L2, or the CPU's L2 per core
  std::string isa;                    ///< CPU: best instruction set in use, e.g. "avx512bf16"
  std::string driver;                 ///< CUDA driver version, e.g. "13.0"; empty on the CPU
};

/// Facts of a device of this machine; StatusCode::no_device with the reason where there is none.
GREENFAST_API Result<DeviceFacts> device_facts(DeviceKind kind, int index = 0);
/// Facts of a known GPU ("h200", "h100", "a100", "l4"), or of one server "cpu", for planning
/// without it.
GREENFAST_API Result<DeviceFacts> model_facts(std::string_view model);

/// A part of the shared memory of a block, and what lies there.
struct SharedBuffer {
  std::string name;
  std::int64_t bytes = 0;
};

/// What a variant will do with a problem on a device. A pure function of its arguments.
struct Plan {
  std::string variant;
  std::array<int, 3> grid{0, 0, 0};   ///< CPU: {tasks, 1, 1}
  std::array<int, 3> block{0, 0, 0};  ///< CPU: {threads, 1, 1}
  std::array<int, 3> cluster{1, 1, 1};
  std::int64_t shared_bytes = 0;     ///< dynamic shared memory a block; CPU: arena bytes a thread
  std::int64_t workspace_bytes = 0;  ///< scratch the caller provides
  int tile_q = 0, tile_kv = 0;       ///< rows and keys of one tile
  int stages = 1;
  int splits = 1;      ///< parts the keys of one row are divided into
  std::string kernel;  ///< compiled kernel that will run, as kernel_name says; CPU: instruction set
  std::string note;    ///< one line on why this configuration
  /// CUDA: what lies in the shared memory that the kernel lays out itself, in order. They add up to
  /// shared_bytes; where that is 0, to the kernel's static shared memory. Empty on the CPU.
  std::vector<SharedBuffer> shared;
};

/// The plan of the variant that a call with these options would launch; where none fits, a Status
/// with the refusal of every variant. Options::device is not looked at: the facts say which device.
/// For an empty problem nothing is launched and only variant and note are set.
GREENFAST_API Result<Plan> plan(const Problem& problem, const DeviceFacts& facts,
                                const Options& options = {});

/// A compiled kernel's mangled symbol in the words of Plan::kernel: "v2c::kernel<With<Config{64,
/// 1}>>". Without greenfast::cuda, anonymous namespaces, qualifiers of template arguments, zeros
/// that end a list, result and parameters. What cannot be demangled comes back as it is.
GREENFAST_API std::string kernel_name(std::string_view symbol);

/// A toggle of a ladder variant and the value it was compiled with.
struct Toggle {
  std::string name;
  int value = 0;
};

/// One row of the registry.
struct VariantInfo {
  std::string id;    ///< device.family.name
  std::string idea;  ///< one line
  DeviceKind device = DeviceKind::cpu;
  int min_arch = 0;         ///< lowest compute capability, 0 on the CPU
  bool built = true;        ///< compiled into this library
  bool automatic = true;    ///< selection may choose it unasked; ladder rungs run by name only
  std::string predecessor;  ///< ladder: the rung it is compared with
  std::vector<Toggle> toggles;
  /// The rung this one is made from: with one toggle set back, or with clocks in it. Such a variant
  /// belongs to no group ("all", "ladder"); it is asked for by its toggles or its id.
  std::string derived_from;
  /// Phases whose clock cycles it adds up in its workspace, as uint64 [warp][phase]; empty for
  /// every variant whose time means something.
  std::vector<std::string> phases;
  Features takes;  ///< what a problem may need: another is refused by name
};
/// Every variant, ladder order first to last.
GREENFAST_API std::vector<VariantInfo> variants();

/// One variant's answer to a problem.
struct Candidate {
  std::string variant;
  bool accepted = false;
  int rank = 0;        ///< higher is preferred; 0 when refused
  std::string reason;  ///< why it can, or what it would need
};
/// What selection decided and why.
struct Selection {
  std::string chosen;  ///< empty when nothing fits
  bool forced = false;
  std::string refusal;                ///< why nothing was chosen; empty otherwise
  std::vector<Candidate> candidates;  ///< everybody's answer, in registry order
};
/// Runs selection without launching anything. Options::device is not looked at: the facts say which
/// device. Never fails: a problem that check() refuses is refused by every variant with check()'s
/// message.
GREENFAST_API Selection explain(const Problem& problem, const DeviceFacts& facts,
                                const Options& options = {});

/// Receives one line at a time; silent by default. Null turns it off. The callback may be called
/// from any thread.
using LogCallback = void (*)(const char* message, void* user);
/// Sets the callback of the whole process; user is handed to it.
GREENFAST_API void set_log_callback(LogCallback callback, void* user) noexcept;

/// "0.1.0".
GREENFAST_API std::string_view version() noexcept;

}  // namespace greenfast
