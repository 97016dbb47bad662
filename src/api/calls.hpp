// What every call of the public API does first: read its options, find its device.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include <greenfast/attention.hpp>

#include "core/backend.hpp"
#include "dispatch/select.hpp"

namespace greenfast::api {

// A failure to allocate must reach the caller as a Status too. Its text fits a std::string without
// memory.
template <class Call>
auto guarded(Call call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    try {
      return Status(StatusCode::internal, error.what());
    } catch (...) {
      return Status(StatusCode::internal, "internal error");
    }
  }
}

/// Options::variant, else GREENFAST_VARIANT.
std::string_view forced_variant(const Options& options);
core::Choice choice_of(const Options& options);
/// The problem, and what the options say of it without a device.
Status check_call(const Problem& problem, const Options& options);

struct Machine {
  const core::Backend* backend = nullptr;
  const DeviceFacts* facts = nullptr;
};

Status find_machine(const Options& options, Machine& machine);
/// What a call of these options asks selection: prepare must choose as the call will.
dispatch::Query query_of(const Problem& problem, const Machine& machine, const Options& options);
core::Context context_of(const Machine& machine, const Options& options);

/// Scratch that a call wants: the caller's, or what Options::allocate gives; checked. `who` says in a
/// refusal what wants it.
Status find_scratch(const Problem& problem, const Tensors& tensors, const Options& options,
                    std::int64_t wanted, std::string_view who, void*& scratch);

/// A call with views as one problem: refuses views that cannot be one.
Status read_views(const TensorView& q, const TensorView& k, const TensorView& v,
                  const TensorView& o, const AttentionParams& params, Problem& problem,
                  Tensors& tensors);

}  // namespace greenfast::api
