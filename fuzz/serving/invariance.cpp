#include "fuzz/serving/invariance.hpp"

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include <greenfast/attention.hpp>
#include <greenfast/operands.hpp>

#include "workbench/cases/operand_bytes.hpp"
#include "workbench/cases/placement.hpp"

namespace greenfast::fuzz {
namespace {

using workbench::Device;
using workbench::Inputs;
using workbench::Placement;

/// Device memory of one call.
class Memory {
 public:
  explicit Memory(Device& device) : device_(device) {}
  ~Memory() {
    for (void* one : held_) device_.release(one);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* take(std::size_t bytes) {
    held_.push_back(device_.allocate(bytes));
    return held_.back();
  }
  void* put(std::span<const std::byte> bytes) {
    void* memory = take(bytes.size());
    if (memory != nullptr && !bytes.empty()) device_.upload(memory, bytes.data(), bytes.size());
    return memory;
  }

 private:
  Device& device_;
  std::vector<void*> held_;
};

struct Buffers {
  Tensors tensors;
  std::size_t o_bytes = 0, lse_bytes = 0;
};

Buffers upload(Device& device, Memory& memory, const Problem& p, const Inputs& inputs) {
  Buffers buffers;
  for (const Operand& operand : operands_of(p)) {
    if (!operand.present) continue;
    const auto bytes = static_cast<std::size_t>(operand.bytes);
    if (operand.role == Role::input) {
      set_data(buffers.tensors, operand.id, memory.put(bytes_of(inputs, operand.id)));
      continue;
    }
    void* to = memory.take(bytes);
    if (to != nullptr) device.fill(to, std::byte{0xff}, bytes);
    set_data(buffers.tensors, operand.id, to);
    (operand.id == OperandId::o ? buffers.o_bytes : buffers.lse_bytes) = bytes;
  }
  return buffers;
}

/// The call of sequence b alone, on the same memory.
void narrow(Problem& p, Tensors& t, std::int64_t b) {
  for (const Operand& operand : operands_of(p)) {
    if (!operand.present || !operand.by_entry) continue;
    const auto* whole = static_cast<const std::byte*>(data_of(t, operand.id));
    if (whole == nullptr) continue;  // it has no element
    const std::int64_t first =
        b * operand.layout.stride[0] * static_cast<std::int64_t>(element_bytes(operand));
    set_data(t, operand.id, const_cast<std::byte*>(whole) + first);
  }
  p.batch = 1;
}

/// The same keys in other pages: page n of the pool becomes page other[n]. Entries that no key needs
/// name no page at all.
Inputs shuffled(const Placement& placement, const Inputs& inputs, std::uint64_t seed) {
  const Problem& p = placement.problem();
  Inputs out = inputs;
  const std::int64_t count = p.pages.count;
  std::vector<std::int64_t> other(static_cast<std::size_t>(count));
  for (std::int64_t n = 0; n < count; ++n) other[static_cast<std::size_t>(n)] = n;
  for (std::int64_t n = count - 1; n > 0; --n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    std::swap(other[static_cast<std::size_t>(n)],
              other[static_cast<std::size_t>((seed >> 33) % static_cast<std::uint64_t>(n + 1))]);
  }
  const auto move = [&](const std::vector<std::byte>& from, std::vector<std::byte>& to,
                        const Layout& layout, std::int64_t dim) {
    const std::size_t bytes = size_of(p.dtype);
    // Element by element: a transposed V has no rows to move.
    for (std::int64_t n = 0; n < count; ++n)
      for (std::int64_t h = 0; h < (layout.stride[1] == 0 ? 1 : p.heads_kv); ++h)
        for (std::int64_t j = 0; j < p.pages.size; ++j)
          for (std::int64_t d = 0; d < dim; ++d) {
            const std::int64_t within =
                h * layout.stride[1] + j * layout.stride[2] + d * layout.stride[3];
            const auto at = [&](std::int64_t page) {
              return static_cast<std::size_t>(page * layout.stride[0] + within) * bytes;
            };
            std::memcpy(to.data() + at(other[static_cast<std::size_t>(n)]), from.data() + at(n),
                        bytes);
          }
  };
  move(inputs.k, out.k, p.k, p.head_dim);
  move(inputs.v, out.v, p.v, value_dim(p));
  for (std::int32_t& entry : out.arrays.page_table) entry = -7;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const workbench::Sequence& own = placement.sequence(b);
    for (std::int64_t n = own.start / p.pages.size; n * p.pages.size < own.keys; ++n) {
      const auto at = static_cast<std::size_t>(b * p.pages.row_stride + n);
      out.arrays.page_table[at] =
          static_cast<std::int32_t>(other[static_cast<std::size_t>(inputs.arrays.page_table[at])]);
    }
  }
  return out;
}

class Calls {
 public:
  Calls(Device& device, const std::string& variant) : device_(device), variant_(variant) {}

  Status run(const Problem& problem, const Tensors& tensors) {
    Options options;
    options.device = device_.kind();
    options.stream = device_.stream();
    options.variant = variant_;
    options.batch_invariant = true;
    const auto planned = plan(problem, device_.facts(), options);
    if (!planned) return planned.status();
    Memory memory(device_);
    options.workspace_bytes = static_cast<std::size_t>(planned->workspace_bytes);
    if (options.workspace_bytes > 0) options.workspace = memory.take(options.workspace_bytes);
    if (Status status = attention(problem, tensors, options); !status) return status;
    return device_.synchronize();
  }

 private:
  Device& device_;
  std::string variant_;
};

}  // namespace

std::optional<std::string> batch_difference(Device& device, const std::string& variant,
                                            const workbench::Case& test, const Inputs& inputs) {
  const Problem& p = test.problem;
  const Placement placement(p, workbench::index_arrays(inputs));
  Calls calls(device, variant);
  Memory memory(device);
  const Buffers whole = upload(device, memory, p, inputs);
  if (const Status status = calls.run(p, whole.tensors); !status) {
    if (status.code() == StatusCode::unsupported) return std::nullopt;
    return "the whole batch: " + status.message();
  }
  const auto read = [&](const Buffers& from) {
    std::vector<std::byte> bytes(from.o_bytes + from.lse_bytes);
    device.download(bytes.data(), from.tensors.o, from.o_bytes);
    if (from.lse_bytes > 0)
      device.download(bytes.data() + from.o_bytes, from.tensors.lse, from.lse_bytes);
    return bytes;
  };
  const std::vector<std::byte> expected = read(whole);
  const auto differs = [&](const std::vector<std::byte>& got, std::int64_t b,
                           const char* what) -> std::optional<std::string> {
    const std::size_t out = size_of(p.out_dtype);
    const std::size_t row = static_cast<std::size_t>(value_dim(p)) * out;
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      for (std::int64_t i = 0; i < placement.sequence(b).rows; ++i) {
        const std::size_t o = static_cast<std::size_t>(placement.o(b, h, i)) * out;
        const std::size_t lse =
            whole.o_bytes + static_cast<std::size_t>(placement.lse(b, h, i)) * sizeof(float);
        const bool same =
            std::memcmp(got.data() + o, expected.data() + o, row) == 0 &&
            (!p.lse || std::memcmp(got.data() + lse, expected.data() + lse, sizeof(float)) == 0);
        if (!same)
          return std::string(what) + ": other bits in b " + std::to_string(b) + " h " +
                 std::to_string(h) + " i " + std::to_string(i);
      }
    return std::nullopt;
  };
  if (p.pages.used()) {
    const Inputs other = shuffled(placement, inputs, test.seed + 1);
    Memory again(device);
    const Buffers buffers = upload(device, again, p, other);
    if (const Status status = calls.run(p, buffers.tensors); !status)
      return "other pages: " + status.message();
    const std::vector<std::byte> got = read(buffers);
    for (std::int64_t b = 0; b < p.batch; ++b)
      if (auto found = differs(got, b, "other pages")) return found;
  }
  if (p.batch < 2) return std::nullopt;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    Memory again(device);
    const Buffers buffers = upload(device, again, p, inputs);
    Problem alone = p;
    Tensors tensors = buffers.tensors;
    narrow(alone, tensors, b);
    if (const Status status = calls.run(alone, tensors); !status)
      return "sequence " + std::to_string(b) + " alone: " + status.message();
    if (auto found = differs(read(buffers), b, "alone")) return found;
  }
  return std::nullopt;
}

}  // namespace greenfast::fuzz
