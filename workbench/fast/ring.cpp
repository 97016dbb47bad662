// Buffers for timed calls.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "workbench/cases/operand_bytes.hpp"
#include "workbench/fast/measure.hpp"

namespace greenfast::workbench {
namespace {

/// How the draw of an operand's signs differs from the others'; nothing for what keeps its values.
/// Q and K from files share their signs, so that scores stay.
std::optional<std::uint64_t> own_draw(OperandId id, bool from_files) {
  switch (id) {
    case OperandId::q:
      return 0;
    case OperandId::k:
      return from_files ? 0 : 0x510e527fade682d1u;
    case OperandId::v:
      return 0x3c6ef372fe94f82bu;
    case OperandId::o:
    case OperandId::lse:
    case OperandId::q_scale:
    case OperandId::k_scale:
    case OperandId::v_scale:
    case OperandId::cu_q:
    case OperandId::cu_kv:
    case OperandId::used_q:
    case OperandId::used_kv:
    case OperandId::kv_start:
    case OperandId::kv_index:
    case OperandId::page_table:
    case OperandId::sinks:
    case OperandId::mask:
    case OperandId::slopes:
      break;
  }
  return std::nullopt;
}

std::size_t size_in_bytes(const Operand& operand) {
  return static_cast<std::size_t>(operand.bytes);
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::make(Device& device, const Case& first,
                                         const Options& options) {
  std::unique_ptr<Ring> ring(new Ring(device));
  std::size_t bytes = 0;
  for (const Operand& operand : operands_of(first.problem)) {
    if (!operand.present) continue;
    ring->operands_.push_back(operand);
    bytes += size_in_bytes(operand);
  }
  // A device that evicts single buffers needs no ring that is larger than its caches: only as many
  // slots that the calls of one sample rarely meet one twice.
  constexpr std::size_t kEvicted = std::size_t{256} << 20;
  std::size_t wanted = options.min_bytes;
  if (wanted == 0) {
    wanted = 2 * device.cache_bytes();
    if (device.evict(nullptr, 0)) wanted = std::min(wanted, kEvicted);
  }
  const std::size_t needed = (wanted + bytes) / std::max<std::size_t>(bytes, 1);
  const int most = options.max_slots != 0             ? options.max_slots
                   : device.kind() == DeviceKind::cpu ? 4096
                                                      : 512;
  const auto count = static_cast<std::size_t>(
      std::clamp<std::size_t>(needed, static_cast<std::size_t>(options.min_slots),
                              static_cast<std::size_t>(std::max(most, options.min_slots))));

  // Inputs read from files are the same for every seed.
  const int distinct = first.distribution == Distribution::file ? 1 : std::max(1, options.distinct);
  std::vector<Inputs>& contents = ring->contents_;
  for (std::size_t i = 0; i < std::min(count, static_cast<std::size_t>(distinct)); ++i) {
    Case c = first;
    c.seed = first.seed + i;
    ring->cases_.push_back(c);
    contents.push_back(options.generate ? options.generate(c) : generate(c));
    // Values before quantisation would not change their signs with the others; nobody asks for them.
    Inputs& inputs = contents.back();
    inputs.q_exact = inputs.k_exact = inputs.v_exact = {};
    for (const Operand& operand : ring->operands_)
      if (operand.role == Role::input && operand.needed && bytes_of(inputs, operand.id).empty())
        return Status(StatusCode::unsupported,
                      fmt::format("{}: timing needs {}, which no case holds yet", first.name,
                                  shown_name(operand)));
  }

  bool exhausted = false;
  const auto keep = [&](std::size_t size) -> void* {
    void* memory = device.allocate(size);
    if (memory == nullptr) {
      exhausted = true;
    } else {
      ring->memory_.push_back(memory);
    }
    return memory;
  };
  for (std::size_t slot = 0; slot < count && !exhausted; ++slot) {
    const Inputs& inputs = contents[slot % contents.size()];
    Tensors tensors;
    // Outputs come behind the inputs: nothing that is timed lies at an end of the device's memory.
    for (const Role role : {Role::input, Role::output}) {
      for (const Operand& operand : ring->operands_) {
        if (operand.role != role || exhausted) continue;
        const std::span<const std::byte> content = bytes_of(inputs, operand.id);
        const bool is_input = role == Role::input;
        void* memory = keep(is_input ? content.size() : size_in_bytes(operand));
        if (memory == nullptr) break;
        if (is_input) device.upload(memory, content.data(), content.size());
        set_data(tensors, operand.id, memory);
      }
    }
    if (!exhausted) ring->slots_.push_back(tensors);
  }
  if (exhausted) {
    return Status(
        StatusCode::out_of_memory,
        fmt::format("{}: timing needs {} sets of inputs of {:.1f} MB each, to keep them out "
                    "of the caches; memory ended after {}. Choose a smaller shape",
                    first.name, count, static_cast<double>(bytes) * 1e-6, ring->slots_.size()));
  }
  ring->draws_.assign(ring->slots_.size(), 0);
  return ring;
}

std::size_t Ring::slot_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Operand& operand : operands_) bytes += size_in_bytes(operand);
  return bytes;
}

Ring::~Ring() {
  for (void* memory : memory_) device_.release(memory);
}

const Case& Ring::content(int slot) const {
  return cases_[static_cast<std::size_t>(slot) % cases_.size()];
}

std::optional<SignFlips> Ring::flips(OperandId id, std::uint64_t from, std::uint64_t to) const {
  const Problem& p = problem();
  const bool from_files = cases_.front().distribution == Distribution::file;
  const std::optional<std::uint64_t> own = own_draw(id, from_files);
  if (!own) return std::nullopt;
  SignFlips flips;
  const std::size_t size = size_of(p.dtype);
  flips.sign_bits = size == 1   ? 0x8080808080808080u
                    : size == 2 ? 0x8000800080008000u
                                : 0x8000000080000000u;
  if (from_files)
    flips.period =
        static_cast<std::size_t>(id == OperandId::v ? value_dim(p) : p.head_dim) * size / 8;
  flips.from = from == 0 ? 0 : from ^ *own;
  flips.to = to == 0 ? 0 : to ^ *own;
  return flips;
}

void Ring::renew(int slot, std::uint64_t draw) {
  std::uint64_t& now = draws_[static_cast<std::size_t>(slot)];
  const Inputs& content = contents_[static_cast<std::size_t>(slot) % contents_.size()];
  for (const Operand& operand : operands_) {
    const std::span<const std::byte> bytes = bytes_of(content, operand.id);
    if (operand.role != Role::input || bytes.empty()) continue;
    if (device_.write_flipped(data(slot, operand), bytes.data(), bytes.size(),
                              flips(operand.id, 0, draw).value_or(SignFlips{})))
      continue;
    if (const auto drawn = flips(operand.id, now, draw))
      device_.flip_signs(data(slot, operand), bytes.size(), *drawn);
  }
  now = draw;
}

const Inputs& Ring::inputs(int slot) {
  now_ = contents_[static_cast<std::size_t>(slot) % contents_.size()];
  for (const Operand& operand : operands_)
    if (const auto drawn = flips(operand.id, 0, draws_[static_cast<std::size_t>(slot)])) {
      const std::span<std::byte> bytes = bytes_of(now_, operand.id);
      flip_signs(bytes.data(), bytes.size(), *drawn);
    }
  return now_;
}

void* Ring::data(int slot, const Operand& operand) const {
  return const_cast<void*>(data_of(tensors(slot), operand.id));
}

std::optional<std::string> Ring::changed_input(int slot, const Inputs& expected) {
  std::vector<std::byte> seen;
  for (const Operand& operand : operands_) {
    const std::span<const std::byte> bytes = bytes_of(expected, operand.id);
    if (bytes.empty()) continue;
    seen.resize(bytes.size());
    device_.download(seen.data(), data(slot, operand), bytes.size());
    if (std::memcmp(seen.data(), bytes.data(), bytes.size()) == 0) continue;
    const auto at = std::mismatch(seen.begin(), seen.end(), bytes.begin()).first - seen.begin();
    return fmt::format("input {} was modified at byte {}", shown_name(operand), at);
  }
  return std::nullopt;
}

CallWork Ring::work() const {
  CallWork mean;
  for (std::size_t i = 0; i < cases_.size(); ++i) {
    const CallWork one = work_of(cases_[i], contents_[i]);
    mean.flops += one.flops / static_cast<double>(cases_.size());
    mean.bytes += one.bytes / static_cast<double>(cases_.size());
  }
  return mean;
}

void Ring::poison(int slot) {
  // All ones is a NaN in every output type.
  for (const Operand& operand : operands_)
    if (operand.role == Role::output)
      device_.fill(data(slot, operand), std::byte{0xff}, size_in_bytes(operand));
}

bool Ring::evict(int slot) {
  return std::all_of(operands_.begin(), operands_.end(), [&](const Operand& operand) {
    return device_.evict(data(slot, operand), size_in_bytes(operand));
  });
}

std::vector<std::byte> Ring::read_output(int slot) {
  std::vector<std::byte> bytes;
  for (const Operand& operand : operands_) {
    if (operand.role != Role::output) continue;
    const std::size_t begin = bytes.size();
    bytes.resize(begin + size_in_bytes(operand));
    device_.download(bytes.data() + begin, data(slot, operand), size_in_bytes(operand));
  }
  return bytes;
}

}  // namespace greenfast::workbench
