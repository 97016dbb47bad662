// greenfast._core: the library's calls for Python, over tensors of any origin. Limited API of
// Python 3.10, no header of any tensor library: one binary for every Python from 3.10 and for every
// PyTorch, or none.
//
// A tensor argument is an object of a type registered with register_type (PyTorch's, read through
// DLPack's function table in 0.1 us), or a tuple (address, shape, strides in elements, dtype,
// device, index, read-only[, owner]) that the Python side made of something else. What is checked
// here is what the library cannot see: shapes that do not belong together, devices, read-only
// memory. All of it comes before any work.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include <greenfast/attention.hpp>
#include <greenfast/quantize.hpp>

#include "dlpack.h"

namespace greenfast {
namespace {

constexpr int kMaxRank = 4;

struct View {
  void* data = nullptr;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  int index = 0;
  bool readonly = false;
  const dlpack::ExchangeApi* origin = nullptr;  // whose stream and memory the call is to use
};

struct Registered {
  PyTypeObject* type = nullptr;
  const dlpack::ExchangeApi* api = nullptr;
};
// PyTorch registers Tensor and Parameter. Guarded by the GIL, as all state here.
std::array<Registered, 8> registered;
std::size_t registered_count = 0;

bool fail(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  return false;
}
template <class... Pieces>
std::string text(const Pieces&... pieces) {
  std::string out;
  const auto add = [&out](const auto& piece) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(piece)>>)
      out += std::to_string(piece);
    else
      out += piece;
  };
  (add(pieces), ...);
  return out;
}

// The Status's own message, as the exception that says the same.
PyObject* raise(const Status& status) {
  PyObject* type = PyExc_RuntimeError;
  switch (status.code()) {
    case StatusCode::invalid_argument:
      type = PyExc_ValueError;
      break;
    case StatusCode::unsupported:
      type = PyExc_NotImplementedError;
      break;
    case StatusCode::out_of_memory:
      type = PyExc_MemoryError;
      break;
    default:
      break;
  }
  PyErr_SetString(type, status.message().c_str());
  return nullptr;
}

std::string shape_text(const View& view) {
  std::string out = "[";
  for (int dim = 0; dim < view.rank; ++dim)
    out += (dim > 0 ? ", " : "") + std::to_string(view.shape[dim]);
  return out + "]";
}

bool dtype_of(const char* name, const dlpack::DataType& type, DType& out) {
  if (type.lanes == 1) {
    if (type.code == dlpack::kFloat && type.bits == 32) return out = DType::f32, true;
    if (type.code == dlpack::kFloat && type.bits == 16) return out = DType::f16, true;
    if (type.code == dlpack::kBfloat && type.bits == 16) return out = DType::bf16, true;
    if (type.code == dlpack::kFloat8E4m3fn && type.bits == 8) return out = DType::e4m3, true;
  }
  return fail(PyExc_TypeError,
              text(name, "'s element type (DLPack code ", static_cast<int>(type.code), ", ",
                   static_cast<int>(type.bits),
                   " bits) is not supported: use float32, float16, bfloat16 or float8_e4m3fn"));
}

bool read_dlpack(const char* name, const dlpack::Tensor& from, View& to) {
  if (from.device.type == dlpack::kCuda) {
    to.device = DeviceKind::cuda;
    to.index = from.device.index;
  } else if (from.device.type != dlpack::kCpu && from.device.type != dlpack::kCudaHost) {
    return fail(PyExc_TypeError, text(name, " lies on a device of DLPack type ", from.device.type,
                                      ": only CPU and CUDA tensors can be read; move it there"));
  }
  if (from.ndim < 0 || from.ndim > kMaxRank)
    return fail(PyExc_ValueError, text(name, " has ", from.ndim, " dimensions: at most ", kMaxRank,
                                       " are possible; flatten those before the heads"));
  if (!dtype_of(name, from.dtype, to.dtype)) return false;
  to.rank = from.ndim;
  std::int64_t dense = 1;
  for (int dim = from.ndim - 1; dim >= 0; --dim) {
    to.shape[dim] = from.shape[dim];
    to.stride[dim] = from.strides != nullptr ? from.strides[dim] : dense;
    dense *= from.shape[dim];
  }
  to.data = static_cast<char*>(from.data) + from.byte_offset;
  return true;
}

bool read_integers(const char* name, PyObject* tuple, std::array<std::int64_t, kMaxRank>& out,
                   int& count) {
  const Py_ssize_t size = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
  if (size < 0 || size > kMaxRank)
    return fail(PyExc_ValueError,
                text(name, " has ", size, " dimensions: at most ", kMaxRank, " are possible"));
  for (Py_ssize_t i = 0; i < size; ++i) out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
  count = static_cast<int>(size);
  return PyErr_Occurred() == nullptr;
}

bool read_tuple(const char* name, PyObject* object, View& to) {
  if (PyTuple_Size(object) < 7)
    return fail(PyExc_TypeError, text(name, " is a tuple: pass an array or a tensor"));
  const auto item = [object](Py_ssize_t i) { return PyTuple_GetItem(object, i); };
  to.data = PyLong_AsVoidPtr(item(0));
  if (PyErr_Occurred() != nullptr) return false;
  int strides = 0;
  if (!read_integers(name, item(1), to.shape, to.rank) ||
      !read_integers(name, item(2), to.stride, strides))
    return false;
  to.dtype = static_cast<DType>(PyLong_AsLong(item(3)));
  to.device = static_cast<DeviceKind>(PyLong_AsLong(item(4)));
  to.index = static_cast<int>(PyLong_AsLong(item(5)));
  to.readonly = PyObject_IsTrue(item(6)) == 1;
  return PyErr_Occurred() == nullptr;
}

// A dimension of one element has no stride worth speaking of, and what libraries write there (1, 0)
// would look misaligned or broadcast: it gets that of a dense tensor.
void settle_strides(View& view) {
  std::int64_t extent = 1;
  bool empty = false;
  for (int dim = 0; dim < view.rank; ++dim) {
    empty = empty || view.shape[dim] == 0;
    if (view.shape[dim] > 1) extent = std::max(extent, view.shape[dim] * view.stride[dim]);
  }
  if (empty) {  // NumPy gives it strides of 0
    std::int64_t dense = 1;
    for (int dim = view.rank - 1; dim >= 0; --dim) {
      view.stride[dim] = dense;
      dense *= std::max<std::int64_t>(view.shape[dim], 1);
    }
    return;
  }
  for (int dim = 0; dim < view.rank; ++dim)
    if (view.shape[dim] <= 1) view.stride[dim] = dim + 1 == view.rank ? 1 : extent;
}

// The table's own error, in which a tensor is sparse, nested, meta, quantised or inside a
// transform, with the argument's name. Its first line says which; a stack of C++ functions follows
// it.
bool unreadable(const char* name) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* words = value != nullptr ? PyObject_Str(value) : nullptr;
  const char* said = words != nullptr ? PyUnicode_AsUTF8AndSize(words, nullptr) : nullptr;
  const std::string why = said != nullptr ? std::string(said) : std::string();
  fail(PyExc_TypeError, text(name, " cannot be read (", why.substr(0, why.find('\n')),
                             "): pass a plain strided tensor that holds memory"));
  Py_XDECREF(words);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return false;
}

bool read_view(const char* name, PyObject* object, View& to) {
  PyTypeObject* type = Py_TYPE(object);
  for (std::size_t i = 0; i < registered_count; ++i) {
    if (registered[i].type != type) continue;
    dlpack::Tensor tensor{};
    to.origin = registered[i].api;
    if (to.origin->tensor_from_object(object, &tensor) != 0) return unreadable(name);
    if (!read_dlpack(name, tensor, to)) return false;
    settle_strides(to);
    return true;
  }
  if (!PyTuple_Check(object)) {
    PyObject* type_name = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__name__");
    const char* word = type_name != nullptr ? PyUnicode_AsUTF8AndSize(type_name, nullptr) : nullptr;
    fail(PyExc_TypeError, text(name, " is ", word != nullptr ? word : "an object",
                               ": pass an array or a tensor that holds memory"));
    Py_XDECREF(type_name);
    return false;
  }
  if (!read_tuple(name, object, to)) return false;
  settle_strides(to);
  return true;
}

bool read_double(PyObject* object, double& out) {
  out = PyFloat_AsDouble(object);
  return out != -1.0 || PyErr_Occurred() == nullptr;
}
bool read_int(PyObject* object, std::int64_t& out) {
  out = PyLong_AsLongLong(object);
  return out != -1 || PyErr_Occurred() == nullptr;
}

// [B, H, S, D] of a tensor in the order of the call.
std::array<std::int64_t, 4> ordered(const std::array<std::int64_t, 4>& dims, bool bshd) {
  if (bshd) return {dims[0], dims[2], dims[1], dims[3]};
  return dims;
}

// Everything of one call, read from its arguments and checked.
struct Call {
  Problem problem;
  Tensors tensors;
  Options options;
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
  kArguments
};

bool given(PyObject* object) { return object != Py_None; }

bool same_device(const char* name, const View& view, const View& q) {
  if (view.device == q.device && view.index == q.index) return true;
  const auto place = [](const View& of) {
    return of.device == DeviceKind::cuda ? text("cuda:", of.index) : std::string("cpu");
  };
  return fail(PyExc_ValueError, text(name, " lies on ", place(view), " and q on ", place(q),
                                     ": all tensors of a call lie on one device; move ", name));
}

// One value, or one for each (batch, head): the same for all three.
bool read_scales(PyObject* const* args, Call& call) {
  constexpr std::array<const char*, 3> names{"q_scale", "k_scale", "v_scale"};
  const Problem& p = call.problem;
  if (!given(args[kQScale]) && !given(args[kKScale]) && !given(args[kVScale])) return true;
  bool one = true, per_head = true;
  std::string shapes;
  for (int i = 0; i < 3; ++i) {
    View& view = call.scale[i];
    if (!given(args[kQScale + i]))
      return fail(PyExc_ValueError, text(names[i],
                                         " is missing: scales are given for Q, K and V, "
                                         "or for none"));
    if (!read_view(names[i], args[kQScale + i], view) || !same_device(names[i], view, call.q))
      return false;
    if (view.dtype != DType::f32)
      return fail(PyExc_TypeError,
                  text(names[i], " is ", name_of(view.dtype), ": scales are float32"));
    const std::int64_t heads = i == 0 ? p.heads_q : p.heads_kv;
    std::int64_t elements = 1;
    for (int dim = 0; dim < view.rank; ++dim) elements *= view.shape[dim];
    one = one && elements == 1;
    per_head = per_head && view.rank == 2 && view.shape[0] == p.batch && view.shape[1] == heads &&
               (heads <= 1 || view.stride[1] == 1) && (p.batch <= 1 || view.stride[0] == heads);
    shapes += (i > 0 ? ", " : "") + shape_text(view);
  }
  if (!one && !per_head)
    return fail(PyExc_ValueError, text("the scales of Q, K and V have shapes ", shapes,
                                       ": all three hold one value, or are contiguous [", p.batch,
                                       ", ", p.heads_q, "], [", p.batch, ", ", p.heads_kv, "], [",
                                       p.batch, ", ", p.heads_kv, "], one for each (batch, head)"));
  call.problem.scales = one ? ScaleKind::tensor : ScaleKind::per_head;
  call.tensors.q_scale = static_cast<const float*>(call.scale[0].data);
  call.tensors.k_scale = static_cast<const float*>(call.scale[1].data);
  call.tensors.v_scale = static_cast<const float*>(call.scale[2].data);
  return true;
}

bool read_tensors(PyObject* const* args, Call& call) {
  View &q = call.q, &k = call.k, &v = call.v;
  if (!read_view("q", args[kQ], q) || !read_view("k", args[kK], k) || !read_view("v", args[kV], v))
    return false;
  std::int64_t bshd = 0;
  if (!read_int(args[kBshd], bshd)) return false;
  const char* words = bshd != 0 ? "[B, S, H, D]" : "[B, H, S, D]";
  const std::array<std::pair<const char*, View*>, 3> inputs{{{"q", &q}, {"k", &k}, {"v", &v}}};
  for (const auto& [name, view] : inputs) {
    if (view->rank != 4)
      return fail(PyExc_ValueError, text(name, " has shape ", shape_text(*view),
                                         ": four dimensions ", words, " are expected"));
    if (!same_device(name, *view, q)) return false;
    if (view->dtype != q.dtype)
      return fail(PyExc_TypeError,
                  text("q is ", name_of(q.dtype), " and ", name, " ", name_of(view->dtype),
                       ": Q, K and V must have one type; convert them"));
    view->shape = ordered(view->shape, bshd != 0);
    view->stride = ordered(view->stride, bshd != 0);
  }
  if (k.shape[0] != q.shape[0] || k.shape[3] != q.shape[3])
    return fail(PyExc_ValueError,
                text("k has batch ", k.shape[0], " and head_dim ", k.shape[3], ", q has ",
                     q.shape[0], " and ", q.shape[3], ": they must be equal"));
  if (v.shape[3] != k.shape[3] && v.shape[0] == k.shape[0] && v.shape[1] == k.shape[1] &&
      v.shape[2] == k.shape[2])
    return fail(PyExc_NotImplementedError,
                text("v has head_dim ", v.shape[3], " and k ", k.shape[3],
                     ": they must be equal; pad the smaller one with zero columns"));
  if (v.shape != k.shape)
    return fail(PyExc_ValueError, text("v's [B, H, S, D] is ", shape_text(v), " and k's ",
                                       shape_text(k), ": they must be equal"));

  Problem& p = call.problem;
  p.batch = q.shape[0];
  p.heads_q = q.shape[1];
  p.heads_kv = k.shape[1];
  p.seq_q = q.shape[2];
  p.seq_kv = k.shape[2];
  p.head_dim = q.shape[3];
  p.dtype = q.dtype;
  p.out_dtype = default_out_dtype(q.dtype);
  p.q.stride = q.stride;
  p.k.stride = k.stride;
  p.v.stride = v.stride;
  call.tensors.q = q.data;
  call.tensors.k = k.data;
  call.tensors.v = v.data;

  View& out = call.out;
  if (given(args[kOut])) {
    if (!read_view("out", args[kOut], out) || !same_device("out", out, q)) return false;
    if (out.rank == 4) {
      out.shape = ordered(out.shape, bshd != 0);
      out.stride = ordered(out.stride, bshd != 0);
    }
    if (out.rank != 4 || out.shape != q.shape)
      return fail(PyExc_ValueError, text("out has [B, H, S, D] ", shape_text(out), ": ",
                                         shape_text(q), ", the shape of q, is expected"));
    if (out.readonly)
      return fail(PyExc_ValueError, "out is read-only: pass memory that may be written");
    p.out_dtype = out.dtype;
    p.o.stride = out.stride;
    call.tensors.o = out.data;
  } else {
    p.o = dense_layout(bshd != 0 ? Order::bshd : Order::bhsd, p.batch, p.heads_q, p.seq_q,
                       p.head_dim);
  }

  View& lse = call.lse;
  if (given(args[kLse])) {
    if (!read_view("lse", args[kLse], lse) || !same_device("lse", lse, q)) return false;
    const bool fits = lse.rank == 3 && lse.shape[0] == p.batch && lse.shape[1] == p.heads_q &&
                      lse.shape[2] == p.seq_q;
    if (lse.dtype != DType::f32)
      return fail(PyExc_TypeError, text("lse is ", name_of(lse.dtype), ": it must be float32"));
    if (!fits)
      return fail(PyExc_ValueError, text("lse has shape ", shape_text(lse), ": [B, Hq, Sq] = [",
                                         p.batch, ", ", p.heads_q, ", ", p.seq_q, "] is expected"));
    if ((p.seq_q > 1 && lse.stride[2] != 1) || (p.heads_q > 1 && lse.stride[1] != p.seq_q) ||
        (p.batch > 1 && lse.stride[0] != p.heads_q * p.seq_q))
      return fail(PyExc_ValueError, "lse is not contiguous: pass contiguous [B, Hq, Sq]");
    if (lse.readonly)
      return fail(PyExc_ValueError, "lse is read-only: pass memory that may be written");
    p.lse = true;
    call.tensors.lse = static_cast<float*>(lse.data);
  }
  return read_scales(args, call);
}

bool read_call(PyObject* const* args, Py_ssize_t count, Call& call) {
  if (count != kArguments)
    return fail(PyExc_TypeError,
                text("expected ", static_cast<int>(kArguments), " arguments, got ", count));
  if (!read_tensors(args, call)) return false;
  Problem& p = call.problem;
  double scale = 0, softcap = 0;
  std::int64_t align = 0, invariant = 0;
  if (!read_double(args[kSoftcap], softcap) || !read_int(args[kLeft], p.mask.left) ||
      !read_int(args[kRight], p.mask.right) || !read_int(args[kAlign], align) ||
      !read_int(args[kBatchInvariant], invariant))
    return false;
  if (given(args[kScale])) {
    if (!read_double(args[kScale], scale)) return false;
    p.scale = static_cast<float>(scale);
  } else {
    p.scale = default_scale(p.head_dim);
  }
  p.softcap = static_cast<float>(softcap);
  if (!p.mask.is_none() && align == 2 && p.seq_q != p.seq_kv)
    return fail(
        PyExc_ValueError,
        text("the mask has no align and Sq = ", p.seq_q, ", Skv = ", p.seq_kv,
             " differ: say align='top_left' (query i faces key i) or 'bottom_right' (the last "
             "query faces the last key)"));
  p.mask.alignment = align == 1 ? Alignment::bottom_right : Alignment::top_left;

  Options& o = call.options;
  o.device = call.q.device;
  o.device_index = call.q.index;
  o.batch_invariant = invariant != 0;
  if (given(args[kVariant])) {
    Py_ssize_t size = 0;
    const char* name = PyUnicode_AsUTF8AndSize(args[kVariant], &size);
    if (name == nullptr) return false;
    o.variant = std::string_view(name, static_cast<std::size_t>(size));
  }
  if (given(args[kStream])) {
    o.stream = PyLong_AsVoidPtr(args[kStream]);
    if (PyErr_Occurred() != nullptr) return false;
  } else if (o.device == DeviceKind::cuda && call.q.origin != nullptr) {
    if (call.q.origin->current_stream(dlpack::kCuda, call.q.index, &o.stream) != 0) {
      if (PyErr_Occurred() == nullptr) fail(PyExc_RuntimeError, "the current stream cannot be had");
      return false;
    }
  }
  return true;
}

Status run(const Call& call) {
  if (call.options.device != DeviceKind::cpu)
    return attention(call.problem, call.tensors, call.options);
  Status status;
  Py_BEGIN_ALLOW_THREADS status = attention(call.problem, call.tensors, call.options);
  Py_END_ALLOW_THREADS return status;
}

// Runs the call with scratch of the size that its plan asks for. The plan is only made after a call
// without scratch was refused: making it takes longer than a launch, and most kernels need none.
PyObject* run_with_workspace(Call& call, PyObject* allocate, const Status& refused) {
  const auto facts = device_facts(call.options.device, call.options.device_index);
  if (!facts) return raise(refused);
  const auto planned = plan(call.problem, *facts, call.options);
  if (!planned || planned->workspace_bytes == 0) return raise(refused);
  const auto bytes = static_cast<std::size_t>(planned->workspace_bytes);
  constexpr std::size_t kAlignment = 256;
  PyObject* owner = nullptr;
  std::unique_ptr<void, decltype(&std::free)> memory(nullptr, &std::free);
  if (call.options.device == DeviceKind::cpu) {
    memory.reset(
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
    if (memory == nullptr) return PyErr_NoMemory();
    call.options.workspace = memory.get();
  } else {
    if (!given(allocate)) return raise(refused);
    owner = PyObject_CallFunction(allocate, "ni", static_cast<Py_ssize_t>(bytes),
                                  call.options.device_index);
    if (owner == nullptr) return nullptr;
    call.options.workspace = PyLong_AsVoidPtr(PyTuple_GetItem(owner, 0));
  }
  call.options.workspace_bytes = bytes;
  const Status status = run(call);
  Py_XDECREF(owner);  // its memory is the stream's until the kernel has run: the allocator's rule
  if (!status) return raise(status);
  Py_RETURN_NONE;
}

PyObject* py_attention(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Call call;
  if (!read_call(args, count, call)) return nullptr;
  if (!given(args[kOut])) {
    fail(PyExc_TypeError, "out is None: pass the tensor to write");
    return nullptr;
  }
  const Status status = run(call);
  if (status.ok()) Py_RETURN_NONE;
  if (status.code() == StatusCode::invalid_argument && call.options.workspace == nullptr)
    return run_with_workspace(call, args[kAllocate], status);
  return raise(status);
}

PyObject* unicode(std::string_view from) {
  return PyUnicode_DecodeUTF8(from.data(), static_cast<Py_ssize_t>(from.size()), "replace");
}

PyObject* facts_dict(const DeviceFacts& facts) {
  return Py_BuildValue(
      "{s:N,s:i,s:N,s:i,s:i,s:L,s:L,s:N,s:N}", "kind", unicode(name_of(facts.kind)), "index",
      facts.index, "name", unicode(facts.name), "arch", facts.arch, "multiprocessors",
      facts.multiprocessors, "shared_per_block", static_cast<long long>(facts.shared_per_block),
      "l2_bytes", static_cast<long long>(facts.l2_bytes), "isa", unicode(facts.isa), "driver",
      unicode(facts.driver));
}

// device: None (the tensors'), a str (a model: "h200"), or a tuple (kind, index).
bool facts_for(PyObject* device, const Options& options, DeviceFacts& out) {
  Result<DeviceFacts> facts = Status(StatusCode::internal, "");
  if (!given(device)) {
    facts = device_facts(options.device, options.device_index);
  } else if (PyUnicode_Check(device)) {
    const char* name = PyUnicode_AsUTF8AndSize(device, nullptr);
    if (name == nullptr) return false;
    facts = model_facts(name);
  } else {
    int kind = 0, index = 0;
    if (!PyArg_ParseTuple(device, "ii", &kind, &index)) return false;
    facts = device_facts(static_cast<DeviceKind>(kind), index);
  }
  if (!facts) return raise(facts.status()), false;
  out = *std::move(facts);
  return true;
}

PyObject* py_device_facts(PyObject*, PyObject* device) {
  DeviceFacts facts;
  return facts_for(device, {}, facts) ? facts_dict(facts) : nullptr;
}

PyObject* plan_dict(const Plan& plan) {
  const auto three = [](const std::array<int, 3>& of) {
    return Py_BuildValue("(iii)", of[0], of[1], of[2]);
  };
  return Py_BuildValue("{s:N,s:N,s:N,s:N,s:L,s:L,s:i,s:i,s:i,s:i,s:N,s:N}", "variant",
                       unicode(plan.variant), "grid", three(plan.grid), "block", three(plan.block),
                       "cluster", three(plan.cluster), "shared_bytes",
                       static_cast<long long>(plan.shared_bytes), "workspace_bytes",
                       static_cast<long long>(plan.workspace_bytes), "tile_q", plan.tile_q,
                       "tile_kv", plan.tile_kv, "stages", plan.stages, "splits", plan.splits,
                       "kernel", unicode(plan.kernel), "note", unicode(plan.note));
}

// The arguments of attention, then the device and the name of the output's type or None.
PyObject* py_explain(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Call call;
  if (count != kArguments + 2) {
    PyErr_SetString(PyExc_TypeError,
                    "expected the arguments of attention, a device and an output type");
    return nullptr;
  }
  if (!read_call(args, kArguments, call)) return nullptr;
  if (given(args[kArguments + 1]))
    call.problem.out_dtype = static_cast<DType>(PyLong_AsLong(args[kArguments + 1]));
  DeviceFacts facts;
  if (PyErr_Occurred() != nullptr || !facts_for(args[kArguments], call.options, facts))
    return nullptr;
  const Selection selection = explain(call.problem, facts, call.options);
  PyObject* rows = PyList_New(0);
  for (const Candidate& candidate : selection.candidates) {
    PyObject* row =
        Py_BuildValue("(NOiN)", unicode(candidate.variant), candidate.accepted ? Py_True : Py_False,
                      candidate.rank, unicode(candidate.reason));
    if (row == nullptr || PyList_Append(rows, row) != 0) {
      Py_XDECREF(row);
      Py_DECREF(rows);
      return nullptr;
    }
    Py_DECREF(row);
  }
  PyObject* planned = Py_None;
  Py_INCREF(planned);
  if (!selection.chosen.empty()) {
    if (const auto made = plan(call.problem, facts, call.options); made.ok()) {
      Py_DECREF(planned);
      planned = plan_dict(*made);
    }
  }
  return Py_BuildValue("(NONNNNN)", unicode(selection.chosen),
                       selection.forced ? Py_True : Py_False, unicode(selection.refusal), rows,
                       planned, unicode(to_string(call.problem)), facts_dict(facts));
}

PyObject* py_variants(PyObject*, PyObject*) {
  PyObject* rows = PyList_New(0);
  for (const VariantInfo& row : variants()) {
    PyObject* toggles = PyDict_New();
    for (const Toggle& toggle : row.toggles) {
      PyObject* value = PyLong_FromLong(toggle.value);
      PyDict_SetItemString(toggles, toggle.name.c_str(), value);
      Py_DECREF(value);
    }
    PyObject* made =
        Py_BuildValue("(NNNiOONN)", unicode(row.id), unicode(row.idea),
                      unicode(name_of(row.device)), row.min_arch, row.built ? Py_True : Py_False,
                      row.automatic ? Py_True : Py_False, unicode(row.predecessor), toggles);
    if (made == nullptr || PyList_Append(rows, made) != 0) {
      Py_XDECREF(made);
      Py_DECREF(rows);
      return nullptr;
    }
    Py_DECREF(made);
  }
  return rows;
}

// (values, codes, scale or None, compute, bshd, stream or None)
PyObject* py_quantize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) {
    PyErr_SetString(PyExc_TypeError, "expected 6 arguments");
    return nullptr;
  }
  View from, to, scale;
  std::int64_t compute = 0, bshd = 0;
  if (!read_view("values", args[0], from) || !read_view("out", args[1], to) ||
      !read_int(args[3], compute) || !read_int(args[4], bshd) || !same_device("out", to, from))
    return nullptr;
  if (from.rank != 4 || to.rank != 4 || from.shape != to.shape || to.dtype != DType::e4m3 ||
      to.readonly) {
    fail(PyExc_ValueError, text("values have shape ", shape_text(from), " and out ",
                                name_of(to.dtype), " ", shape_text(to),
                                ": four dimensions, an out of the same shape, e4m3, that may be "
                                "written, are expected"));
    return nullptr;
  }
  QuantizeProblem problem;
  const auto shape = ordered(from.shape, bshd != 0);
  problem.batch = shape[0];
  problem.heads = shape[1];
  problem.seq = shape[2];
  problem.head_dim = shape[3];
  problem.dtype = from.dtype;
  problem.from.stride = ordered(from.stride, bshd != 0);
  problem.to.stride = ordered(to.stride, bshd != 0);
  problem.compute_scales = compute != 0;
  problem.scales = ScaleKind::none;
  QuantizeTensors tensors{.from = from.data, .to = to.data};
  if (given(args[2])) {
    if (!read_view("scale", args[2], scale) || !same_device("scale", scale, from)) return nullptr;
    std::int64_t elements = 1;
    for (int dim = 0; dim < scale.rank; ++dim) elements *= scale.shape[dim];
    const bool per_head = scale.rank == 2 && scale.shape[0] == shape[0] &&
                          scale.shape[1] == shape[1] && (shape[1] <= 1 || scale.stride[1] == 1) &&
                          (shape[0] <= 1 || scale.stride[0] == shape[1]);
    if (scale.dtype != DType::f32 || (compute != 0 && scale.readonly) ||
        (!per_head && elements != 1)) {
      fail(PyExc_ValueError, text("scale is ", name_of(scale.dtype), " ", shape_text(scale),
                                  ": one float32, or contiguous [", shape[0], ", ", shape[1],
                                  "] of them, that may be written, is expected"));
      return nullptr;
    }
    problem.scales = per_head ? ScaleKind::per_head : ScaleKind::tensor;
    tensors.scale = static_cast<float*>(scale.data);
  }
  Options options;
  options.device = from.device;
  options.device_index = from.index;
  if (given(args[5])) {
    options.stream = PyLong_AsVoidPtr(args[5]);
    if (PyErr_Occurred() != nullptr) return nullptr;
  } else if (options.device == DeviceKind::cuda && from.origin != nullptr) {
    if (from.origin->current_stream(dlpack::kCuda, from.index, &options.stream) != 0)
      return nullptr;
  }
  const Status status = quantize_e4m3(problem, tensors, options);
  if (!status) return raise(status);
  Py_RETURN_NONE;
}

// (type, capsule of its type's __dlpack_c_exchange_api__) -> whether its tensors can be read this
// way
PyObject* py_register_type(PyObject*, PyObject* args) {
  PyObject *type = nullptr, *capsule = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &type, &capsule)) return nullptr;
  auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (api == nullptr) return nullptr;
  while (api != nullptr && api->version.major != 1) api = api->previous;
  if (api == nullptr || api->tensor_from_object == nullptr || api->current_stream == nullptr)
    Py_RETURN_FALSE;
  for (std::size_t i = 0; i < registered_count; ++i)
    if (reinterpret_cast<PyObject*>(registered[i].type) == type) Py_RETURN_TRUE;
  if (registered_count == registered.size()) Py_RETURN_FALSE;
  Py_INCREF(type);
  Py_INCREF(capsule);  // the table lives as long as the process either way
  registered[registered_count++] = {reinterpret_cast<PyTypeObject*>(type), api};
  Py_RETURN_TRUE;
}

// What __dlpack__ returned, as the tuple that attention takes. The capsule is its last item: the
// memory stays valid as long as the tuple lives. The capsule is not consumed, so its own destructor
// frees it.
PyObject* py_from_dlpack(PyObject*, PyObject* capsule) {
  View view;
  if (PyCapsule_IsValid(capsule, "dltensor_versioned") != 0) {
    const auto* managed = static_cast<const dlpack::ManagedVersioned*>(
        PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != 1) {
      fail(PyExc_TypeError,
           text("DLPack version ", managed->version.major, " is not known: 1 is expected"));
      return nullptr;
    }
    if (!read_dlpack("the array", managed->tensor, view)) return nullptr;
    view.readonly = (managed->flags & dlpack::kReadOnly) != 0;
  } else {
    const auto* managed =
        static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
    if (managed == nullptr || !read_dlpack("the array", managed->tensor, view)) return nullptr;
  }
  PyObject *shape = PyTuple_New(view.rank), *stride = PyTuple_New(view.rank);
  for (int dim = 0; dim < view.rank; ++dim) {
    PyTuple_SetItem(shape, dim, PyLong_FromLongLong(view.shape[dim]));
    PyTuple_SetItem(stride, dim, PyLong_FromLongLong(view.stride[dim]));
  }
  return Py_BuildValue("(NNNiiiOO)", PyLong_FromVoidPtr(view.data), shape, stride,
                       static_cast<int>(view.dtype), static_cast<int>(view.device), view.index,
                       view.readonly ? Py_True : Py_False, capsule);
}

template <class Function>
PyCFunction function(Function* of) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(of));
}

PyMethodDef methods[] = {
    {"attention", function(py_attention), METH_FASTCALL, nullptr},
    {"explain", function(py_explain), METH_FASTCALL, nullptr},
    {"variants", function(py_variants), METH_NOARGS, nullptr},
    {"device_facts", function(py_device_facts), METH_O, nullptr},
    {"quantize_e4m3", function(py_quantize), METH_FASTCALL, nullptr},
    {"register_type", function(py_register_type), METH_VARARGS, nullptr},
    {"from_dlpack", function(py_from_dlpack), METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

int exec(PyObject* module) {
  return PyModule_AddStringConstant(module, "version", std::string(version()).c_str());
}

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(exec)},
    {0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "greenfast._core",
                          nullptr,
                          0,
                          methods,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace greenfast

PyMODINIT_FUNC PyInit__core() { return PyModuleDef_Init(&greenfast::definition); }
