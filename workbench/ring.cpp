// Buffers for timed calls.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "workbench/measure.hpp"

namespace greenfast::workbench {
namespace {

std::size_t lse_size(const Problem& problem) {
  return problem.lse ? static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q) *
                           sizeof(float)
                     : 0;
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::make(Device& device, const Case& first,
                                         const Options& options) {
  const Problem& p = first.problem;
  std::unique_ptr<Ring> ring(new Ring(device));
  ring->output_bytes_ = extent_bytes(p.o, p.batch, p.heads_q, p.seq_q, p.head_dim, p.out_dtype);
  ring->lse_bytes_ = lse_size(p);
  const std::size_t bytes = extent_bytes(p.q, p.batch, p.heads_q, p.seq_q, p.head_dim, p.dtype) +
                            extent_bytes(p.k, p.batch, p.heads_kv, p.seq_kv, p.head_dim, p.dtype) +
                            extent_bytes(p.v, p.batch, p.heads_kv, p.seq_kv, p.head_dim, p.dtype) +
                            ring->output_bytes_ + ring->lse_bytes_;
  const std::size_t wanted = options.min_bytes != 0 ? options.min_bytes : 2 * device.cache_bytes();
  const std::size_t needed = (wanted + bytes) / std::max<std::size_t>(bytes, 1);
  const auto count = static_cast<std::size_t>(std::clamp<std::size_t>(
      needed, static_cast<std::size_t>(options.min_slots),
      static_cast<std::size_t>(std::max(options.max_slots, options.min_slots))));

  // Inputs read from files are the same for every seed.
  const int distinct = first.distribution == Distribution::file ? 1 : std::max(1, options.distinct);
  std::vector<Inputs> contents;
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
  const auto floats = [&](const std::vector<float>& values) -> const float* {
    return values.empty()
               ? nullptr
               : static_cast<const float*>(put(values.data(), values.size() * sizeof(float)));
  };
  for (std::size_t slot = 0; slot < count && !exhausted; ++slot) {
    const Inputs& inputs = contents[slot % contents.size()];
    Tensors tensors;
    tensors.q = put(inputs.q.data(), inputs.q.size());
    tensors.k = put(inputs.k.data(), inputs.k.size());
    tensors.v = put(inputs.v.data(), inputs.v.size());
    tensors.q_scale = floats(inputs.q_scale);
    tensors.k_scale = floats(inputs.k_scale);
    tensors.v_scale = floats(inputs.v_scale);
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
  // All ones is a NaN in every output type.
  ring->poison_.assign(std::max(ring->output_bytes_, ring->lse_bytes_), std::byte{0xff});
  return ring;
}

Ring::~Ring() {
  for (void* memory : memory_) device_.release(memory);
}

const Case& Ring::content(int slot) const {
  return cases_[static_cast<std::size_t>(slot) % cases_.size()];
}

void Ring::poison(int slot) {
  const Tensors& t = tensors(slot);
  device_.upload(t.o, poison_.data(), output_bytes_);
  if (lse_bytes_ != 0) device_.upload(t.lse, poison_.data(), lse_bytes_);
}

std::vector<std::byte> Ring::read_output(int slot) {
  std::vector<std::byte> bytes(output_bytes_ + lse_bytes_);
  const Tensors& t = tensors(slot);
  device_.download(bytes.data(), t.o, output_bytes_);
  if (lse_bytes_ != 0) device_.download(bytes.data() + output_bytes_, t.lse, lse_bytes_);
  return bytes;
}

}  // namespace greenfast::workbench
