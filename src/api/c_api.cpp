// The C interface: translates structs, keeps the last error of each thread, lets no exception out.
#include <greenfast/greenfast.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include <greenfast/attention.hpp>
#include <greenfast/c_types.hpp>
#include <greenfast/features.hpp>

#include "core/text.hpp"
#include "dispatch/registry.hpp"

namespace {

using greenfast::Status;
using greenfast::StatusCode;
using greenfast::core::concat;

constexpr const char* kOutOfMemory = "out of memory";

struct LastError {
  std::string text;
  const char* fixed = nullptr;  // instead of text, where there was no memory for one
};
thread_local LastError last_error;

gf_status fail(const Status& status) noexcept {
  last_error.fixed = nullptr;
  try {
    last_error.text = status.message();
  } catch (...) {
    last_error.fixed = kOutOfMemory;
  }
  return static_cast<gf_status>(status.code());
}

// Runs a call and turns its Status, or what it throws, into a number.
template <class Call>
gf_status guarded(Call call) noexcept {
  try {
    const Status status = call();
    return status.ok() ? static_cast<gf_status>(GF_OK) : fail(status);
  } catch (const std::bad_alloc&) {
    last_error.fixed = kOutOfMemory;
    return GF_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    try {
      return fail(Status(StatusCode::internal, error.what()));
    } catch (...) {
    }
  } catch (...) {
  }
  last_error.fixed = "internal error";
  return GF_INTERNAL;
}

Status missing(std::string_view name) {
  return {StatusCode::invalid_argument, concat(name, " is null: pass a pointer to one")};
}

// The size that a struct's first version had: what every caller's struct has at least.
template <class Struct>
inline constexpr std::uint32_t kFirst = sizeof(Struct);
template <>
inline constexpr std::uint32_t kFirst<gf_problem> = offsetof(gf_problem, head_dim_v);
template <>
inline constexpr std::uint32_t kFirst<gf_tensors> = offsetof(gf_tensors, cu_q);
template <>
inline constexpr std::uint32_t kFirst<gf_options> = offsetof(gf_options, max_splits);
static_assert(static_cast<int>(greenfast::ScaleKind::none) == GF_SCALE_NONE &&
              static_cast<int>(greenfast::ScaleKind::tensor) == GF_SCALE_TENSOR &&
              static_cast<int>(greenfast::ScaleKind::per_head) == GF_SCALE_PER_HEAD &&
              static_cast<int>(greenfast::ScaleKind::per_block) == GF_SCALE_PER_BLOCK &&
              greenfast::kScaleBlock == GF_SCALE_BLOCK);
static_assert(kFirst<gf_problem> == 264 && kFirst<gf_tensors> == 72 && kFirst<gf_options> == 56,
              "a struct of version 0.1.0 has changed");

// Checks the head of a caller's struct.
template <class Struct>
Status check_head(const Struct* given, std::string_view name) {
  if (given == nullptr) return missing(name);
  const std::string_view initialiser =
      std::is_same_v<Struct, gf_problem> ? "gf_problem_init" : "its GF_..._INIT";
  if (given->abi_version != GF_ABI_VERSION)
    return {
        StatusCode::invalid_argument,
        concat(name, " has ABI version ", given->abi_version, ": this library speaks ",
               GF_ABI_VERSION, "; initialise it with ", initialiser, ", or rebuild the caller")};
  if (given->struct_size < kFirst<Struct>)
    return {StatusCode::invalid_argument,
            concat(name, " has struct_size ", given->struct_size, ": at least ", kFirst<Struct>,
                   " is expected; initialise it with ", initialiser)};
  return {};
}

// The same for what the library reads, and a copy of it: a shorter struct has zeros, which are the
// defaults, for what it lacks. Fields behind those known here must be zero: a newer caller asks for
// something there.
template <class Struct>
Status read(const Struct* given, std::string_view name, Struct& copy) {
  if (Status status = check_head(given, name); !status) return status;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const std::size_t size = given->struct_size, known_size = std::min(size, sizeof(Struct));
  copy = {};
  std::memcpy(&copy, bytes, known_size);
  const bool known =
      std::all_of(bytes + known_size, bytes + size, [](unsigned char byte) { return byte == 0; });
  if (!known)
    return {StatusCode::unsupported,
            concat(name, " sets fields that library version ", greenfast::version(),
                   " does not know; leave them zero, or use the library that the header is of")};
  return {};
}

// Writes the fields that the caller's struct has room for and keeps its head.
template <class Struct>
void write(Struct* to, Struct from) {
  from.struct_size = to->struct_size;
  from.abi_version = to->abi_version;
  std::memcpy(to, &from, sizeof from);
}

template <std::size_t Size>
void copy_text(char (&to)[Size], std::string_view from) {
  const std::size_t length = std::min(from.size(), Size - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

// Reserved fields are zero until a later version gives them a meaning.
Status check_reserved(std::string_view name, std::int32_t value) {
  if (value == 0) return {};
  return {StatusCode::invalid_argument,
          concat(name, "'s reserved field is ", value, ": it must be 0; initialise the struct")};
}

Status problem_of(const gf_problem* from, greenfast::Problem& to) {
  gf_problem problem;
  if (Status status = read(from, "problem", problem); !status) return status;
  for (const std::int32_t reserved :
       {problem.reserved, problem.q.reserved, problem.k.reserved, problem.v.reserved,
        problem.o.reserved, problem.reserved_accuracy}) {
    if (Status status = check_reserved("problem", reserved); !status) return status;
  }
  to = greenfast::from_c(problem);
  return {};
}

Status options_of(const gf_options* from, greenfast::Options& to) {
  if (from == nullptr) return {};
  gf_options options;
  if (Status status = read(from, "options", options); !status) return status;
  if (Status status = check_reserved("options", options.reserved); !status) return status;
  to.device = static_cast<greenfast::DeviceKind>(options.device);
  to.device_index = options.device_index;
  to.stream = options.stream;
  if (options.variant != nullptr) to.variant = options.variant;
  to.batch_invariant = options.batch_invariant != 0;
  to.workspace = options.workspace;
  to.workspace_bytes = options.workspace_bytes;
  to.max_splits = options.max_splits;
  to.validate = options.validate != 0;
  to.allocate = options.allocate;
  to.allocate_context = options.allocate_context;
  return {};
}

gf_device_facts facts_of(const greenfast::DeviceFacts& from) {
  gf_device_facts to = GF_DEVICE_FACTS_INIT;
  to.device = static_cast<gf_device>(from.kind);
  to.index = from.index;
  to.arch = from.arch;
  to.multiprocessors = from.multiprocessors;
  to.shared_per_block = from.shared_per_block;
  to.l2_bytes = from.l2_bytes;
  copy_text(to.name, from.name);
  copy_text(to.isa, from.isa);
  copy_text(to.driver, from.driver);
  return to;
}

// Facts as given, or those of the options' device.
Status facts_of(const gf_device_facts* from, const greenfast::Options& options,
                greenfast::DeviceFacts& to) {
  if (from == nullptr) {
    greenfast::Result<greenfast::DeviceFacts> here =
        greenfast::device_facts(options.device, options.device_index);
    if (!here) return here.status();
    to = *std::move(here);
    return {};
  }
  gf_device_facts copy;
  if (Status status = read(from, "facts", copy); !status) return status;
  from = &copy;
  const auto text = [](const auto& array) {
    return std::string(array, strnlen(array, sizeof array));
  };
  to.kind = static_cast<greenfast::DeviceKind>(from->device);
  to.index = from->index;
  to.arch = from->arch;
  to.multiprocessors = from->multiprocessors;
  to.shared_per_block = from->shared_per_block;
  to.l2_bytes = from->l2_bytes;
  to.name = text(from->name);
  to.isa = text(from->isa);
  to.driver = text(from->driver);
  return {};
}

Status check_index(std::size_t index) {
  const std::size_t rows = greenfast::dispatch::registry().size();
  if (index < rows) return {};
  return {StatusCode::invalid_argument,
          concat("variant ", index, " does not exist: there are ", rows, ", numbered from 0")};
}

// The C names are the C++ ones.
constexpr bool names(gf_feature_value c, greenfast::Feature feature) {
  return static_cast<std::int32_t>(c) == static_cast<std::int32_t>(feature);
}
// Without a default: a feature without a C name does not compile.
constexpr bool has_its_c_name(greenfast::Feature feature) {
  using greenfast::Feature;
  switch (feature) {
    case Feature::in_f32:
      return names(GF_FEATURE_IN_FP32, feature);
    case Feature::in_f16:
      return names(GF_FEATURE_IN_FP16, feature);
    case Feature::in_bf16:
      return names(GF_FEATURE_IN_BF16, feature);
    case Feature::in_e4m3:
      return names(GF_FEATURE_IN_E4M3, feature);
    case Feature::out_f32:
      return names(GF_FEATURE_OUT_FP32, feature);
    case Feature::out_f16:
      return names(GF_FEATURE_OUT_FP16, feature);
    case Feature::out_bf16:
      return names(GF_FEATURE_OUT_BF16, feature);
    case Feature::scales_tensor:
      return names(GF_FEATURE_SCALES_TENSOR, feature);
    case Feature::scales_per_head:
      return names(GF_FEATURE_SCALES_PER_HEAD, feature);
    case Feature::causal:
      return names(GF_FEATURE_CAUSAL, feature);
    case Feature::window:
      return names(GF_FEATURE_WINDOW, feature);
    case Feature::softcap:
      return names(GF_FEATURE_SOFTCAP, feature);
    case Feature::nonpositive_scale:
      return names(GF_FEATURE_NONPOSITIVE_SCALE, feature);
    case Feature::lse:
      return names(GF_FEATURE_LSE, feature);
    case Feature::grouped_heads:
      return names(GF_FEATURE_GROUPED_HEADS, feature);
    case Feature::value_dim:
      return names(GF_FEATURE_VALUE_DIM, feature);
    case Feature::packed_q:
      return names(GF_FEATURE_PACKED_Q, feature);
    case Feature::packed_kv:
      return names(GF_FEATURE_PACKED_KV, feature);
    case Feature::used_q:
      return names(GF_FEATURE_USED_Q, feature);
    case Feature::used_kv:
      return names(GF_FEATURE_USED_KV, feature);
    case Feature::kv_start:
      return names(GF_FEATURE_KV_START, feature);
    case Feature::kv_index:
      return names(GF_FEATURE_KV_INDEX, feature);
    case Feature::pages:
      return names(GF_FEATURE_PAGES, feature);
    case Feature::chunk:
      return names(GF_FEATURE_CHUNK, feature);
    case Feature::sinks:
      return names(GF_FEATURE_SINKS, feature);
    case Feature::alibi:
      return names(GF_FEATURE_ALIBI, feature);
    case Feature::bool_mask:
      return names(GF_FEATURE_BOOL_MASK, feature);
    case Feature::float_mask:
      return names(GF_FEATURE_FLOAT_MASK, feature);
    case Feature::fast_accuracy:
      return names(GF_FEATURE_FAST_ACCURACY, feature);
    case Feature::exact_accuracy:
      return names(GF_FEATURE_EXACT_ACCURACY, feature);
    case Feature::transposed_v:
      return names(GF_FEATURE_TRANSPOSED_V, feature);
    case Feature::scales_per_block:
      return names(GF_FEATURE_SCALES_PER_BLOCK, feature);
    case Feature::example:
    case Feature::unknown:
      return true;
  }
  return true;  // a bit that is no feature's yet
}
static_assert([] {
  for (std::int32_t bit = 0; bit < 64; ++bit)
    if (!has_its_c_name(static_cast<greenfast::Feature>(bit))) return false;
  return true;
}());

// Ids and ideas come from string literals, so they end with a null character.
const char* literal(std::string_view text) { return text.empty() ? "" : text.data(); }

// Everything that gf_plan and gf_explain take.
struct Question {
  greenfast::Problem problem;
  greenfast::DeviceFacts facts;
  greenfast::Options options;
};

Status read_question(const gf_problem* problem, const gf_device_facts* facts,
                     const gf_options* options, Question& question) {
  if (Status status = problem_of(problem, question.problem); !status) return status;
  if (Status status = options_of(options, question.options); !status) return status;
  return facts_of(facts, question.options, question.facts);
}

}  // namespace

gf_status gf_problem_init_sized(gf_problem* problem, size_t struct_size, int64_t batch,
                                int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_kv,
                                int64_t head_dim, gf_dtype dtype, gf_order order) {
  return guarded([&]() -> Status {
    if (problem == nullptr) return missing("problem");
    if (struct_size < kFirst<gf_problem>)
      return {StatusCode::invalid_argument,
              concat("struct_size is ", struct_size, ": a gf_problem has at least ",
                     kFirst<gf_problem>, " bytes")};
    if (order != GF_BHSD && order != GF_BSHD)
      return {StatusCode::invalid_argument,
              concat("order ", order, " does not exist: use GF_BHSD or GF_BSHD")};
    gf_problem made = greenfast::to_c(greenfast::make_problem(
        batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, static_cast<greenfast::DType>(dtype),
        static_cast<greenfast::Order>(order)));
    made.struct_size = static_cast<std::uint32_t>(struct_size);
    // A newer caller's struct is longer, and zero behind what is known here.
    auto* const bytes = reinterpret_cast<unsigned char*>(problem);
    const std::size_t known = std::min(struct_size, sizeof made);
    std::memcpy(bytes, &made, known);
    std::fill(bytes + known, bytes + struct_size, static_cast<unsigned char>(0));
    return {};
  });
}

gf_status(gf_problem_init)(gf_problem* problem, int64_t batch, int64_t heads_q, int64_t heads_kv,
                           int64_t seq_q, int64_t seq_kv, int64_t head_dim, gf_dtype dtype,
                           gf_order order) {
  return gf_problem_init_sized(problem, kFirst<gf_problem>, batch, heads_q, heads_kv, seq_q, seq_kv,
                               head_dim, dtype, order);
}

gf_status gf_check(const gf_problem* problem) {
  return guarded([&]() -> Status {
    greenfast::Problem asked;
    if (Status status = problem_of(problem, asked); !status) return status;
    return greenfast::check(asked);
  });
}

gf_status gf_features(const gf_problem* problem, uint64_t* features) {
  return guarded([&]() -> Status {
    greenfast::Problem asked;
    if (Status status = problem_of(problem, asked); !status) return status;
    if (features == nullptr) return missing("features");
    *features = greenfast::features_of(asked).bits();
    return {};
  });
}

const char* gf_feature_name(int32_t feature) {
  return greenfast::name_of(static_cast<greenfast::Feature>(feature)).data();
}

gf_status gf_attention(const gf_problem* problem, const gf_tensors* tensors,
                       const gf_options* options) {
  return guarded([&]() -> Status {
    greenfast::Problem asked;
    gf_tensors data;
    greenfast::Options how;
    if (Status status = problem_of(problem, asked); !status) return status;
    if (Status status = read(tensors, "tensors", data); !status) return status;
    if (Status status = options_of(options, how); !status) return status;
    return greenfast::attention(asked, greenfast::from_c(data), how);
  });
}

gf_status gf_prepare(const gf_problem* problem, const gf_options* options) {
  return guarded([&]() -> Status {
    greenfast::Problem asked;
    greenfast::Options how;
    if (Status status = problem_of(problem, asked); !status) return status;
    if (Status status = options_of(options, how); !status) return status;
    return greenfast::prepare(asked, how);
  });
}

gf_status gf_merge(const gf_merge_problem* problem, const gf_merge_tensors* tensors,
                   const gf_options* options) {
  return guarded([&]() -> Status {
    gf_merge_problem asked;
    gf_merge_tensors data;
    greenfast::Options how;
    if (Status status = read(problem, "problem", asked); !status) return status;
    for (const std::int32_t reserved : {asked.a.reserved, asked.b.reserved, asked.o.reserved}) {
      if (Status status = check_reserved("problem", reserved); !status) return status;
    }
    if (Status status = read(tensors, "tensors", data); !status) return status;
    if (Status status = options_of(options, how); !status) return status;
    return greenfast::merge(greenfast::from_c(asked), greenfast::from_c(data), how);
  });
}

gf_status gf_append(const gf_append_problem* problem, const gf_append_tensors* tensors,
                    const gf_options* options) {
  return guarded([&]() -> Status {
    gf_append_problem asked;
    gf_append_tensors data;
    greenfast::Options how;
    if (Status status = read(problem, "problem", asked); !status) return status;
    for (const gf_layout& layout :
         {asked.k_new, asked.v_new, asked.k, asked.v, asked.q, asked.q_out}) {
      if (Status status = check_reserved("problem", layout.reserved); !status) return status;
    }
    if (Status status = read(tensors, "tensors", data); !status) return status;
    if (Status status = options_of(options, how); !status) return status;
    return greenfast::append(greenfast::from_c(asked), greenfast::from_c(data), how);
  });
}

gf_status gf_get_device_facts(gf_device device, int32_t index, gf_device_facts* facts) {
  return guarded([&]() -> Status {
    if (Status status = check_head(facts, "facts"); !status) return status;
    const auto here = greenfast::device_facts(static_cast<greenfast::DeviceKind>(device), index);
    if (!here) return here.status();
    write(facts, facts_of(*here));
    return {};
  });
}

gf_status gf_get_model_facts(const char* model, gf_device_facts* facts) {
  return guarded([&]() -> Status {
    if (model == nullptr) return missing("model");
    if (Status status = check_head(facts, "facts"); !status) return status;
    const auto known = greenfast::model_facts(model);
    if (!known) return known.status();
    write(facts, facts_of(*known));
    return {};
  });
}

gf_status gf_plan(const gf_problem* problem, const gf_device_facts* facts,
                  const gf_options* options, gf_plan_info* plan) {
  return guarded([&]() -> Status {
    if (Status status = check_head(plan, "plan"); !status) return status;
    Question question;
    if (Status status = read_question(problem, facts, options, question); !status) return status;
    const auto from = greenfast::plan(question.problem, question.facts, question.options);
    if (!from) return from.status();
    gf_plan_info to = GF_PLAN_INFO_INIT;
    to.variant =
        literal(greenfast::dispatch::find(greenfast::dispatch::registry(), from->variant)->id);
    for (int axis = 0; axis < 3; ++axis) {
      to.grid[axis] = from->grid[axis];
      to.block[axis] = from->block[axis];
      to.cluster[axis] = from->cluster[axis];
    }
    to.tile_q = from->tile_q;
    to.tile_kv = from->tile_kv;
    to.stages = from->stages;
    to.splits = from->splits;
    to.shared_bytes = from->shared_bytes;
    to.workspace_bytes = from->workspace_bytes;
    copy_text(to.kernel, from->kernel);
    copy_text(to.note, from->note);
    write(plan, to);
    return {};
  });
}

gf_status gf_explain(const gf_problem* problem, const gf_device_facts* facts,
                     const gf_options* options, char* text, size_t capacity, size_t* needed) {
  return guarded([&]() -> Status {
    if (text == nullptr && capacity > 0) return missing("text");
    Question question;
    if (Status status = read_question(problem, facts, options, question); !status) return status;
    const greenfast::Selection selection =
        greenfast::explain(question.problem, question.facts, question.options);
    std::string lines;
    for (const greenfast::Candidate& candidate : selection.candidates)
      lines += concat(candidate.variant == selection.chosen ? "* " : "  ", candidate.variant, " ",
                      candidate.rank, " ", candidate.reason, "\n");
    if (selection.chosen.empty()) lines += concat("none: ", selection.refusal, "\n");
    if (needed != nullptr) *needed = lines.size() + 1;
    if (capacity > 0) {
      const std::size_t length = std::min(lines.size(), capacity - 1);
      std::memcpy(text, lines.data(), length);
      text[length] = '\0';
    }
    return {};
  });
}

size_t gf_variant_count(void) { return greenfast::dispatch::registry().size(); }

gf_status gf_variant_info(size_t index, gf_variant* variant) {
  return guarded([&]() -> Status {
    if (Status status = check_head(variant, "variant"); !status) return status;
    if (Status status = check_index(index); !status) return status;
    const greenfast::core::Variant& row = greenfast::dispatch::registry()[index];
    gf_variant to = GF_VARIANT_INIT;
    to.id = literal(row.id);
    to.idea = literal(row.idea);
    to.device = static_cast<gf_device>(row.device);
    to.min_arch = row.min_arch;
    to.built = row.kernel != nullptr;
    to.automatic = row.automatic;
    to.predecessor = literal(row.predecessor);
    to.toggles = literal(row.toggles);
    write(variant, to);
    return {};
  });
}

gf_status gf_variant_takes(size_t index, uint64_t* features) {
  return guarded([&]() -> Status {
    if (features == nullptr) return missing("features");
    if (Status status = check_index(index); !status) return status;
    *features = greenfast::dispatch::registry()[index].takes.bits();
    return {};
  });
}

const char* gf_status_name(gf_status status) {
  return greenfast::name_of(static_cast<StatusCode>(status)).data();
}

const char* gf_last_error(void) {
  return last_error.fixed != nullptr ? last_error.fixed : last_error.text.c_str();
}

void gf_set_log_callback(gf_log_callback callback, void* user) {
  greenfast::set_log_callback(callback, user);
}

const char* gf_version(void) { return greenfast::version().data(); }

uint32_t gf_abi_version(void) { return GF_ABI_VERSION; }
