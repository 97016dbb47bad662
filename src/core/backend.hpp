// What a kind of device must offer so that the API can run on it. Implemented once per kind, in
// src/backends.
#pragma once

#include <span>
#include <string>

#include <greenfast/serving.hpp>

#include "core/executor.hpp"
#include "core/variant.hpp"

namespace greenfast::core {

/// A tensor to quantise.
struct QuantizeCall {
  QuantizeProblem problem;
  QuantizeTensors tensors;
  // Contiguous [B, H, D] at a multiple of 16 bytes: subtracted from values, or from rotated ones. Of
  // codes in rows alone.
  const float* offset = nullptr;
};

/// All functions are thread-safe and none of them prints. Every call of the public API passes
/// through these, so facts, enter and executor allocate nothing once they have succeeded.
struct Backend {
  /// Usable devices now; 0 with the reason in *why (when not null) where there is none.
  int (*count)(std::string* why) noexcept = nullptr;

  /// Facts of a device, read once and kept until the process ends. Null with the reason in *why:
  /// no_device for an index that does not exist, device_error when the driver fails.
  const DeviceFacts* (*facts)(int index, Status* why) noexcept = nullptr;

  /// Whether the calling thread may launch on the device; on CUDA: it is the current device. May
  /// be null, meaning yes.
  Status (*enter)(int index) noexcept = nullptr;

  /// The answer where no query sees any key: writes 0 to every element of O and -inf to the LSE
  /// when the problem asks for it. O has elements and any strides that check() accepts. On CUDA it
  /// is enqueued on context.stream.
  Status (*fill_empty)(const Problem&, const Tensors&, const Context&) = nullptr;

  /// Values to e4m3, one tensor or more of one type; the problems have passed check_quantize and have
  /// a head. context.workspace is null or holds quantize_workspace_bytes of all of them, one behind
  /// the other. On CUDA it is enqueued on context.stream.
  Status (*quantize)(std::span<const QuantizeCall>, const Context&) = nullptr;

  /// core/smooth.hpp's mean of each column of the call's values, rotated as they are, to contiguous
  /// [B, H, D].
  Status (*column_means)(const QuantizeCall&, float* means, const Context&) = nullptr;
  /// Adds what `means`, which were subtracted from K, moved the scores of each row by to its
  /// log-sum-exp: scale * q_scale * (codes of q) . mean. The codes of Q lie as dense BHSD.
  Status (*shift_lse)(const Problem&, const Tensors& codes, const float* means,
                      const Context&) = nullptr;

  /// The calls around attention, of problems that have been checked. Null: not on this device.
  Status (*merge)(const MergeProblem&, const MergeTensors&, const Context&) = nullptr;
  Status (*append)(const AppendProblem&, const AppendTensors&, const Context&) = nullptr;

  /// Options::validate: copies an array of the device to the host, after what stands before it on
  /// context.stream. Null where the host reads the device's memory.
  Status (*fetch)(const void* from, std::size_t bytes, void* to, const Context&) = nullptr;

  /// The CPU's threads; null function on devices that need none. Never returns null: a pool that
  /// cannot start threads works on the caller alone, and one that a fork left without threads
  /// starts anew.
  Executor* (*executor)() noexcept = nullptr;
};

}  // namespace greenfast::core

namespace greenfast::cpu {
/// Defined in src/backends/cpu.
extern const core::Backend backend;
}  // namespace greenfast::cpu

namespace greenfast::cuda {
/// Defined in src/backends/cuda; referred to only where GREENFAST_HAVE_CUDA is 1.
extern const core::Backend backend;
}  // namespace greenfast::cuda
