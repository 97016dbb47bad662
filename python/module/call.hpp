// One call of attention as the Python side passes it: read, and checked for what the library cannot
// see (shapes that do not belong together, devices, element types, read-only memory), before any
// work.
#pragma once

#include "view.hpp"

#include <greenfast/attention.hpp>

namespace greenfast::python {

/// What the library is asked.
struct Request {
  Problem problem;
  Tensors tensors;
  Options options;
};

/// Everything of one call.
struct Call : Request {
  View q, k, v, out, lse;
  std::array<View, 3> scale;
};

enum Argument {
  kQ,
  kK,
  kV,
  kOut,
  kLse,
  kQScale,
  kKScale,
  kVScale,  // tensors; the last five may be None
  kScale,   // float or None
  kSoftcap,
  kLeft,
  kRight,
  kAlign,  // 0 top-left, 1 bottom-right, 2 not said
  kBshd,
  kVariant,  // str or None
  kBatchInvariant,
  kStream,    // int or None
  kAllocate,  // (bytes, index) -> (address, owner), for scratch on CUDA; or None
  kFeatures,  // a tuple of Feature's arguments, or None: a call that has none pays for one pointer
  kArguments
};

/// What the tuple holds; arrays may be None, numbers 0.
enum FeatureArgument {
  kMask,
  kSinks,
  kSlopes,
  kChunk,
  kCuQ,
  kCuKv,
  kMaxQ,   // int or None
  kMaxKv,  // int or None
  kUsedQ,
  kUsedKv,
  kKvStart,
  kKvIndex,
  kPageTable,
  kMaxSplits,
  kValidate,
  kAccuracy,
  kFeatureArguments
};

bool read_call(PyObject* const* args, Py_ssize_t count, Call& call);

/// Scratch for one call: asked for by the library in the middle of it, from the tensors' library.
struct Scratch {
  PyObject* allocate;  // (bytes, device index) -> (address, owner); may be None
  int device_index;
  PyObject* owner = nullptr;
  bool raised = false;  // a Python exception is set

  /// For the call with these options, where `with` is given.
  Scratch(PyObject* with, Options& options) : allocate(with), device_index(options.device_index) {
    if (!given(with)) return;
    options.allocate = give;
    options.allocate_context = this;
  }
  Scratch(const Scratch&) = delete;
  // Its memory is the stream's until the kernel has run: the allocator's rule.
  ~Scratch() { Py_XDECREF(owner); }

  static void* give(std::size_t bytes, void* context) {
    auto& self = *static_cast<Scratch*>(context);
    const PyGILState_STATE state = PyGILState_Ensure();
    void* memory = nullptr;
    self.owner = PyObject_CallFunction(self.allocate, "ni", static_cast<Py_ssize_t>(bytes),
                                       self.device_index);
    if (self.owner != nullptr) memory = PyLong_AsVoidPtr(PyTuple_GetItem(self.owner, 0));
    self.raised = PyErr_Occurred() != nullptr;
    PyGILState_Release(state);
    return memory;
  }
};

/// attention() or attention_quantized().
using Attention = Status(const Problem&, const Tensors&, const Options&);
/// The call; scratch comes from `allocate`, as in Argument. False: an exception is set.
bool run(Request& request, PyObject* allocate, Attention* function = attention);

/// An array of int32, one for each of `count` entries.
bool read_indices(const char* name, PyObject* object, const View& q, std::int64_t count,
                  const char* meaning, const std::int32_t*& out);
/// int32 [batch, entries], rows any distance apart. Keys that a row has room for go to `keys`.
bool read_page_table(PyObject* object, const View& q, std::int64_t batch, const View& k,
                     Pages& pages, const std::int32_t*& out, std::int64_t& keys);
/// Entries of an array of cumulative lengths, less one.
bool count_sequences(const char* name, PyObject* object, const View& q, const std::int32_t*& out,
                     std::int64_t& sequences);

}  // namespace greenfast::python
