// Buffers for timed calls.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "workbench/cases/operand_bytes.hpp"
#include "workbench/fast/measure.hpp"

namespace greenfast::workbench {
Result<std::unique_ptr<Ring>> Ring::make(Device& device, const Case& first,
                                         const Options& options) {
  const Problem& p = first.problem;
  std::unique_ptr<Ring> ring(new Ring(device));
  ring->output_bytes_ = static_cast<std::size_t>(operand_of(p, OperandId::o).bytes);
  ring->lse_bytes_ = static_cast<std::size_t>(operand_of(p, OperandId::lse).bytes);
  std::size_t bytes = 0;
  for (const Operand& operand : operands_of(p)) bytes += static_cast<std::size_t>(operand.bytes);
  // A device that evicts single buffers needs no ring that is larger than its caches: only as many
  // slots that the calls of one sample rarely meet one twice.
  constexpr std::size_t kEvicted = std::size_t{256} << 20;
  std::size_t wanted = options.min_bytes;
  if (wanted == 0) {
    wanted = 2 * device.cache_bytes();
    if (device.evict(nullptr, 0)) wanted = std::min(wanted, kEvicted);
  }
  const std::size_t needed = (wanted + bytes) / std::max<std::size_t>(bytes, 1);
  const auto count = static_cast<std::size_t>(std::clamp<std::size_t>(
      needed, static_cast<std::size_t>(options.min_slots),
      static_cast<std::size_t>(std::max(options.max_slots, options.min_slots))));

  // Inputs read from files are the same for every seed.
  const int distinct = first.distribution == Distribution::file ? 1 : std::max(1, options.distinct);
  std::vector<Inputs>& contents = ring->contents_;
  for (std::size_t i = 0; i < std::min(count, static_cast<std::size_t>(distinct)); ++i) {
    Case c = first;
    c.seed = first.seed + i;
    ring->cases_.push_back(c);
    contents.push_back(options.generate ? options.generate(c) : generate(c));
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
  const auto put = [&](const void* data, std::size_t size) -> void* {
    void* memory = keep(size);
    if (memory != nullptr) device.upload(memory, data, size);
    return memory;
  };
  for (std::size_t slot = 0; slot < count && !exhausted; ++slot) {
    const Inputs& inputs = contents[slot % contents.size()];
    Tensors tensors;
    for (const Operand& operand : operands_of(p)) {
      if (operand.role != Role::input || !operand.present) continue;
      const std::span<const std::byte> content = bytes_of(inputs, operand.id);
      // Q, K and V have an address even where they hold nothing.
      const bool tensor =
          operand.id == OperandId::q || operand.id == OperandId::k || operand.id == OperandId::v;
      if (tensor || !content.empty())
        set_data(tensors, operand.id, put(content.data(), content.size()));
    }
    tensors.o = keep(ring->output_bytes_);
    if (ring->lse_bytes_ != 0) tensors.lse = static_cast<float*>(keep(ring->lse_bytes_));
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

Ring::~Ring() {
  for (void* memory : memory_) device_.release(memory);
}

const Case& Ring::content(int slot) const {
  return cases_[static_cast<std::size_t>(slot) % cases_.size()];
}

std::vector<Ring::Buffer> Ring::buffers(int slot) const {
  const Tensors& t = tensors(slot);
  return {{const_cast<void*>(t.q), &Inputs::q, "Q"},
          {const_cast<void*>(t.k), &Inputs::k, "K"},
          {const_cast<void*>(t.v), &Inputs::v, "V"}};
}

SignFlips Ring::flips(const Buffer& buffer, std::uint64_t from, std::uint64_t to) const {
  const Problem& p = problem();
  SignFlips flips;
  const std::size_t size = size_of(p.dtype);
  flips.sign_bits = size == 1   ? 0x8080808080808080u
                    : size == 2 ? 0x8000800080008000u
                                : 0x8000000080000000u;
  const bool from_files = cases_.front().distribution == Distribution::file;
  if (from_files)
    flips.period =
        static_cast<std::size_t>(buffer.on_host == &Inputs::v ? value_dim(p) : p.head_dim) * size /
        8;
  // Each tensor has signs of its own, but Q and K from files share them.
  const std::uint64_t own = buffer.on_host == &Inputs::v                  ? 0x3c6ef372fe94f82bu
                            : buffer.on_host == &Inputs::k && !from_files ? 0x510e527fade682d1u
                                                                          : 0;
  flips.from = from == 0 ? 0 : from ^ own;
  flips.to = to == 0 ? 0 : to ^ own;
  return flips;
}

void Ring::renew(int slot, std::uint64_t draw) {
  std::uint64_t& now = draws_[static_cast<std::size_t>(slot)];
  for (const Buffer& buffer : buffers(slot)) {
    const Inputs& content = contents_[static_cast<std::size_t>(slot) % contents_.size()];
    device_.flip_signs(buffer.on_device, (content.*buffer.on_host).size(),
                       flips(buffer, now, draw));
  }
  now = draw;
}

const Inputs& Ring::inputs(int slot) {
  const Inputs& content = contents_[static_cast<std::size_t>(slot) % contents_.size()];
  const std::uint64_t draw = draws_[static_cast<std::size_t>(slot)];
  for (const Buffer& buffer : buffers(slot)) {
    auto& bytes = now_.*buffer.on_host;
    bytes = content.*buffer.on_host;
    flip_signs(bytes.data(), bytes.size(), flips(buffer, 0, draw));
  }
  now_.q_scale = content.q_scale;
  now_.k_scale = content.k_scale;
  now_.v_scale = content.v_scale;
  now_.arrays = content.arrays;
  return now_;
}

std::optional<std::string> Ring::changed_input(int slot, const Inputs& expected) {
  std::vector<std::byte> seen;
  const auto differs = [&](const void* on_device, const void* on_host, std::size_t size,
                           const char* name) -> std::optional<std::string> {
    seen.resize(size);
    device_.download(seen.data(), on_device, size);
    if (size == 0 || std::memcmp(seen.data(), on_host, size) == 0) return std::nullopt;
    const auto* host = static_cast<const std::byte*>(on_host);
    const auto at = std::mismatch(seen.begin(), seen.end(), host).first - seen.begin();
    return fmt::format("input {} was modified at byte {}", name, at);
  };
  for (const Buffer& buffer : buffers(slot)) {
    const auto& bytes = expected.*buffer.on_host;
    if (auto changed = differs(buffer.on_device, bytes.data(), bytes.size(), buffer.name))
      return changed;
  }
  // What signs are not drawn for: scales, lengths, tables, sinks, slopes, masks.
  const Tensors& t = tensors(slot);
  for (const Operand& operand : operands_of(problem())) {
    const bool flipped =
        operand.id == OperandId::q || operand.id == OperandId::k || operand.id == OperandId::v;
    if (operand.role != Role::input || !operand.present || flipped) continue;
    const std::span<const std::byte> bytes = bytes_of(expected, operand.id);
    if (auto changed = differs(data_of(t, operand.id), bytes.data(), bytes.size(),
                               std::string(operand.name).c_str()))
      return changed;
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
  const Tensors& t = tensors(slot);
  // All ones is a NaN in every output type.
  device_.fill(t.o, std::byte{0xff}, output_bytes_);
  if (lse_bytes_ != 0) device_.fill(t.lse, std::byte{0xff}, lse_bytes_);
}

bool Ring::evict(int slot) {
  const Tensors& t = tensors(slot);
  const Inputs& content = contents_[static_cast<std::size_t>(slot) % contents_.size()];
  for (const Buffer& buffer : buffers(slot))
    if (!device_.evict(buffer.on_device, (content.*buffer.on_host).size())) return false;
  return device_.evict(t.o, output_bytes_) && device_.evict(t.lse, lse_bytes_);
}

std::vector<std::byte> Ring::read_output(int slot) {
  std::vector<std::byte> bytes(output_bytes_ + lse_bytes_);
  const Tensors& t = tensors(slot);
  device_.download(bytes.data(), t.o, output_bytes_);
  if (lse_bytes_ != 0) device_.download(bytes.data() + output_bytes_, t.lse, lse_bytes_);
  return bytes;
}

}  // namespace greenfast::workbench
