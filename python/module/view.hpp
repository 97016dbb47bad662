// Tensors of any origin as the library's calls need them.
//
// A tensor argument is an object of a type registered with register_type (PyTorch's, read through
// DLPack's function table in 0.1 us), or a tuple (address, shape, strides in elements, element
// type, device, index, read-only[, owner]) that the Python side made of something else.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include <greenfast/operands.hpp>
#include <greenfast/types.hpp>

#include "dlpack.h"

namespace greenfast::python {

constexpr int kMaxRank = 4;

struct View {
  void* data = nullptr;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};
  Element element = Element::number;
  DType dtype = DType::f32;  // of numbers
  DeviceKind device = DeviceKind::cpu;
  int index = 0;
  bool readonly = false;
  const dlpack::ExchangeApi* origin = nullptr;  // whose stream and memory the call is to use
};

/// Which elements an argument may have.
enum class Wanted { number, f32, index, mask };

bool fail(PyObject* type, const std::string& message);
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
/// The Status's own message, as the exception that says the same.
PyObject* raise(const Status& status);

inline bool given(PyObject* object) { return object != Py_None; }
std::string shape_text(const View& view);
/// "int32", "bool", or the number's name.
std::string_view name_of_elements(const View& view);

/// The number that tuples and TensorSpecs carry for an element type: DType's, then these.
constexpr int kIndexCode = 4, kBooleanCode = 5;
int code_of(const View& view);

bool read_view(const char* name, PyObject* object, View& to, Wanted wanted = Wanted::number);
/// What a DLPack capsule describes, whatever its elements are.
bool read_dlpack(const char* name, const dlpack::Tensor& from, View& to);
bool read_double(PyObject* object, double& out);
bool read_int(PyObject* object, std::int64_t& out);
/// PyTorch's or the caller's stream.
bool read_stream(PyObject* object, const View& of, void*& out);

bool same_device(const char* name, const View& view, const View& q);
/// A tensor of [B, H, S, D] from one in the order of the call. Three dimensions are such without
/// the batch, where `packed` allows it.
bool as_bhsd(const char* name, View& view, bool bshd, bool packed);
/// Whether its elements lie one behind the other.
bool contiguous(const View& view);

/// How objects of a registered type are read; null for any other.
const dlpack::ExchangeApi* table_of(const PyTypeObject* type);

/// (type, capsule of its type's __dlpack_c_exchange_api__) -> whether its tensors can be read this
/// way
PyObject* py_register_type(PyObject*, PyObject* args);
PyObject* py_from_dlpack(PyObject*, PyObject* capsule);

}  // namespace greenfast::python
