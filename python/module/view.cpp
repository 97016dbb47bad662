#include "view.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace greenfast::python {
namespace {

struct Registered {
  PyTypeObject* type = nullptr;
  const dlpack::ExchangeApi* api = nullptr;
};
// PyTorch registers Tensor and Parameter. Guarded by the GIL, as all state here.
std::array<Registered, 8> registered;
std::size_t registered_count = 0;

// "float64", "int64": as every library writes it.
std::string name_of_type(const dlpack::DataType& type) {
  const char* kind = nullptr;
  if (type.code == dlpack::kInt) kind = "int";
  if (type.code == dlpack::kUInt) kind = "uint";
  if (type.code == dlpack::kFloat) kind = "float";
  if (type.code == dlpack::kBfloat) kind = "bfloat";
  if (type.code == dlpack::kComplex) kind = "complex";
  if (kind != nullptr && type.lanes == 1) return text(kind, static_cast<int>(type.bits));
  return text("of DLPack type ", static_cast<int>(type.code), " with ", static_cast<int>(type.bits),
              " bits");
}

bool elements_of(const char* name, const dlpack::DataType& type, View& to) {
  const auto number = [&to](DType dtype) {
    to.dtype = dtype;
    return true;
  };
  if (type.lanes == 1) {
    if (type.code == dlpack::kFloat && type.bits == 32) return number(DType::f32);
    if (type.code == dlpack::kFloat && type.bits == 16) return number(DType::f16);
    if (type.code == dlpack::kBfloat && type.bits == 16) return number(DType::bf16);
    if (type.code == dlpack::kFloat8E4m3fn && type.bits == 8) return number(DType::e4m3);
    if (type.code == dlpack::kInt && type.bits == 32) return to.element = Element::index, true;
    if (type.code == dlpack::kBool && type.bits == 8) return to.element = Element::boolean, true;
  }
  return fail(
      PyExc_TypeError,
      text(name, " is ", name_of_type(type),
           ": tensors may be float32, float16, bfloat16 or float8_e4m3fn, arrays of lengths and "
           "indices int32, masks bool; convert it"));
}

bool fits(const char* name, const View& view, Wanted wanted) {
  const char* possible = "float32, float16, bfloat16 or float8_e4m3fn";
  switch (wanted) {
    case Wanted::number:
      if (view.element == Element::number) return true;
      break;
    case Wanted::f32:
      if (view.element == Element::number && view.dtype == DType::f32) return true;
      possible = "float32";
      break;
    case Wanted::index:
      if (view.element == Element::index) return true;
      possible = "int32";
      break;
    case Wanted::mask:
      if (view.element == Element::boolean ||
          (view.element == Element::number && view.dtype != DType::e4m3))
        return true;
      possible = "bool, float32 or of q's type";
      break;
  }
  return fail(PyExc_TypeError, text(name, " is ", name_of_elements(view), ": ", possible,
                                    " is possible; convert it"));
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
  const long code = PyLong_AsLong(item(3));
  if (code == kIndexCode)
    to.element = Element::index;
  else if (code == kBooleanCode)
    to.element = Element::boolean;
  else
    to.dtype = static_cast<DType>(code);
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

}  // namespace

bool fail(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  return false;
}

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

std::string_view name_of_elements(const View& view) {
  if (view.element == Element::index) return "int32";
  if (view.element == Element::boolean) return "bool";
  return name_of(view.dtype);
}

int code_of(const View& view) {
  if (view.element == Element::index) return kIndexCode;
  if (view.element == Element::boolean) return kBooleanCode;
  return static_cast<int>(view.dtype);
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
  if (!elements_of(name, from.dtype, to)) return false;
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

const dlpack::ExchangeApi* table_of(const PyTypeObject* type) {
  for (std::size_t i = 0; i < registered_count; ++i)
    if (registered[i].type == type) return registered[i].api;
  return nullptr;
}

bool read_view(const char* name, PyObject* object, View& to, Wanted wanted) {
  PyTypeObject* type = Py_TYPE(object);
  to.origin = table_of(type);
  if (to.origin != nullptr) {
    dlpack::Tensor tensor{};
    if (to.origin->tensor_from_object(object, &tensor) != 0) return unreadable(name);
    if (!read_dlpack(name, tensor, to) || !fits(name, to, wanted)) return false;
    settle_strides(to);
    return true;
  }
  if (!PyTuple_Check(object)) {
    PyObject* type_name = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__name__");
    const char* word = type_name != nullptr ? PyUnicode_AsUTF8AndSize(type_name, nullptr) : nullptr;
    fail(PyExc_TypeError, text(name, " is ", word != nullptr ? word : "an object",
                               ": pass an array or a tensor that holds memory, of q's library"));
    Py_XDECREF(type_name);
    return false;
  }
  if (!read_tuple(name, object, to) || !fits(name, to, wanted)) return false;
  settle_strides(to);
  return true;
}

// A number that fits nothing contradicts its call, as any other that is out of range. False.
bool out_of_range(PyObject* object) {
  if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) return false;
  PyErr_Clear();
  PyObject* word = PyObject_Repr(object);
  const char* number = word != nullptr ? PyUnicode_AsUTF8AndSize(word, nullptr) : nullptr;
  if (number == nullptr) PyErr_Clear();
  const bool failed = fail(PyExc_ValueError, text(number != nullptr ? number : "a number",
                                                  " is out of range: 64 bits have to hold it"));
  Py_XDECREF(word);
  return failed;
}

bool read_double(PyObject* object, double& out) {
  out = PyFloat_AsDouble(object);
  return out != -1.0 || PyErr_Occurred() == nullptr || out_of_range(object);
}

bool read_int(PyObject* object, std::int64_t& out) {
  out = PyLong_AsLongLong(object);
  return out != -1 || PyErr_Occurred() == nullptr || out_of_range(object);
}

bool read_stream(PyObject* object, const View& of, void*& out) {
  if (given(object)) {
    out = PyLong_AsVoidPtr(object);
    return PyErr_Occurred() == nullptr || out_of_range(object);
  }
  if (of.device != DeviceKind::cuda || of.origin == nullptr) return true;
  if (of.origin->current_stream(dlpack::kCuda, of.index, &out) == 0) return true;
  return PyErr_Occurred() != nullptr ? false
                                     : fail(PyExc_RuntimeError, "the current stream cannot be had");
}

bool same_device(const char* name, const View& view, const View& q) {
  if (view.device == q.device && view.index == q.index) return true;
  const auto place = [](const View& of) {
    return of.device == DeviceKind::cuda ? text("cuda:", of.index) : std::string("cpu");
  };
  return fail(PyExc_ValueError, text(name, " lies on ", place(view), " and q on ", place(q),
                                     ": all tensors of a call lie on one device; move ", name));
}

bool as_bhsd(const char* name, View& view, bool bshd, bool packed) {
  if (packed && view.rank == 3) {
    std::int64_t extent = 1;
    for (int dim = 0; dim < 3; ++dim) extent = std::max(extent, view.shape[dim] * view.stride[dim]);
    view.shape = {1, view.shape[0], view.shape[1], view.shape[2]};
    view.stride = {extent, view.stride[0], view.stride[1], view.stride[2]};
    view.rank = 4;
  }
  if (view.rank != 4)
    return fail(PyExc_ValueError, text(name, " has shape ", shape_text(view), ": ",
                                       packed ? bshd ? "three dimensions [total, H, D]"
                                                     : "three dimensions [H, total, D]"
                                       : bshd ? "four dimensions [B, S, H, D]"
                                              : "four dimensions [B, H, S, D]",
                                       " are expected"));
  if (bshd) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.stride[1], view.stride[2]);
  }
  return true;
}

bool contiguous(const View& view) {
  for (int dim = 0; dim < view.rank; ++dim)
    if (view.shape[dim] == 0)
      return true;  // whatever its strides, which libraries choose differently
  std::int64_t dense = 1;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    if (view.shape[dim] > 1 && view.stride[dim] != dense) return false;
    dense *= view.shape[dim];
  }
  return true;
}

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

// What __dlpack__ returned, as the tuple that read_view takes. The capsule is its last item: the
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
  return Py_BuildValue("(NNNiiiOO)", PyLong_FromVoidPtr(view.data), shape, stride, code_of(view),
                       static_cast<int>(view.device), view.index,
                       view.readonly ? Py_True : Py_False, capsule);
}

}  // namespace greenfast::python
