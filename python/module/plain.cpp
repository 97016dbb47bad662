#include "plain.hpp"

#include <array>

namespace greenfast::python {
namespace {

// As greenfast/__init__.py passes them.
enum PlainArgument {
  kPlainQ,
  kPlainK,
  kPlainV,
  kPlainOut,
  kPlainScale,
  kPlainCausal,
  kPlainSoftcap,
  kPlainVariant,
  kPlainInvariant,
  kPlainLayout,
  kPlainFeatures,   // a dict
  kPlainReturnLse,  // False, as the next seven are None, where the call is plain
  kPlainNone,
  kPlainArguments = kPlainNone + 8
};

// What PyTorch is asked for. Held for the life of the process.
struct Asked {
  std::array<PyTypeObject*, 2> types{};
  PyObject *is_grad_enabled = nullptr, *dispatch_modes = nullptr, *trace = nullptr;
  PyObject *is_neg = nullptr, *empty_like = nullptr, *scratch = nullptr, *elsewhere = nullptr;
  PyObject *forward_ad = nullptr, *increment_version = nullptr;
  PyObject *level = nullptr, *requires_grad = nullptr, *minus_one = nullptr, *zero = nullptr,
           *two = nullptr;
};
Asked asked;

bool of_torch(PyObject* x) { return Py_TYPE(x) == asked.types[0] || Py_TYPE(x) == asked.types[1]; }

// Whether a question is answered as a plain call has it. An exception is not: the long way meets it
// again and lets it through.
bool answers(PyObject* answer, PyObject* wanted) {
  if (answer == nullptr) {
    PyErr_Clear();
    return false;
  }
  Py_DECREF(answer);
  return answer == wanted;
}
bool answers(PyObject* question, PyObject* about, PyObject* wanted) {
  return answers(PyObject_CallFunctionObjArgs(question, about, nullptr), wanted);
}

bool said_nothing_more(PyObject* const* args) {
  for (int i = kPlainNone; i < kPlainArguments; ++i)
    if (args[i] != Py_None) return false;
  const auto is_bool = [](PyObject* x) { return x == Py_True || x == Py_False; };
  return args[kPlainReturnLse] == Py_False && is_bool(args[kPlainCausal]) &&
         is_bool(args[kPlainInvariant]) && PyDict_Size(args[kPlainFeatures]) == 0 &&
         PyUnicode_Check(args[kPlainLayout]) &&
         PyUnicode_CompareWithASCIIString(args[kPlainLayout], "bhsd") == 0;
}

// Nobody watches operators, nobody wants gradients, and what memory holds is what tensors say.
bool tensors_are_plain(PyObject* const* args) {
  const int last = args[kPlainOut] == Py_None ? kPlainV : kPlainOut;
  for (int i = kPlainQ; i <= last; ++i)
    if (!of_torch(args[i])) return false;
  if (!answers(PyObject_CallNoArgs(asked.trace), Py_None)) return false;
  PyObject* modes = PyObject_CallNoArgs(asked.dispatch_modes);
  const bool watched = modes == nullptr || PyLong_AsLong(modes) != 0;
  Py_XDECREF(modes);
  if (watched) {
    PyErr_Clear();
    return false;
  }
  // -1 where forward-mode derivatives are not asked for.
  PyObject* level = PyObject_GetAttr(asked.forward_ad, asked.level);
  const bool forward = level == nullptr || PyLong_AsLong(level) >= 0;
  Py_XDECREF(level);
  if (forward) return false;
  if (!answers(PyObject_CallNoArgs(asked.is_grad_enabled), Py_False))
    for (int i = kPlainQ; i <= last; ++i)
      if (!answers(PyObject_GetAttr(args[i], asked.requires_grad), Py_False)) return false;
  for (int i = kPlainQ; i <= last; ++i)
    if (!answers(asked.is_neg, args[i], Py_False)) return false;
  return true;
}

// The caller's memory holds something else now: backward of who saved it before raises.
bool tell_written(PyObject* out) {
  PyObject* written = PyTuple_Pack(1, out);
  PyObject* done = written != nullptr
                       ? PyObject_CallFunctionObjArgs(asked.increment_version, written, nullptr)
                       : nullptr;
  Py_XDECREF(written);
  Py_XDECREF(done);
  return done != nullptr;
}

PyObject* not_plain() {
  PyErr_Clear();
  return Py_NewRef(Py_NotImplemented);
}

}  // namespace

PyObject* py_plain_ready(PyObject*, PyObject* args) {
  PyObject *first = nullptr, *second = nullptr;
  Asked a;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOO", &first, &second, &a.is_grad_enabled, &a.dispatch_modes,
                        &a.trace, &a.is_neg, &a.empty_like, &a.scratch, &a.elsewhere, &a.forward_ad,
                        &a.increment_version))
    return nullptr;
  if (!PyType_Check(first) || !PyType_Check(second)) {
    PyErr_SetString(PyExc_TypeError, "two types of tensors are expected");
    return nullptr;
  }
  a.types = {reinterpret_cast<PyTypeObject*>(first), reinterpret_cast<PyTypeObject*>(second)};
  for (PyObject* held : {first, second, a.is_grad_enabled, a.dispatch_modes, a.trace, a.is_neg,
                         a.empty_like, a.scratch, a.elsewhere, a.forward_ad, a.increment_version})
    Py_INCREF(held);
  a.level = PyUnicode_InternFromString("_current_level");
  a.requires_grad = PyUnicode_InternFromString("requires_grad");
  a.minus_one = PyLong_FromLong(-1);
  a.zero = PyLong_FromLong(0);
  a.two = PyLong_FromLong(2);
  if (a.level == nullptr || a.requires_grad == nullptr || a.minus_one == nullptr ||
      a.zero == nullptr || a.two == nullptr)
    return nullptr;
  asked = a;
  Py_RETURN_NONE;
}

PyObject* py_plain(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != kPlainArguments)
    return fail(PyExc_TypeError,
                text("expected ", static_cast<int>(kPlainArguments), " arguments, got ", count)),
           nullptr;
  if (asked.is_neg == nullptr || !said_nothing_more(args) || !tensors_are_plain(args))
    return not_plain();

  const bool made = args[kPlainOut] == Py_None;
  PyObject* out = made ? PyObject_CallFunctionObjArgs(asked.empty_like, args[kPlainQ], nullptr)
                       : args[kPlainOut];
  if (out == nullptr) return not_plain();
  if (!made) Py_INCREF(out);

  std::array<PyObject*, kArguments> of_call;
  of_call.fill(Py_None);
  of_call[kQ] = args[kPlainQ];
  of_call[kK] = args[kPlainK];
  of_call[kV] = args[kPlainV];
  of_call[kOut] = out;
  of_call[kScale] = args[kPlainScale];
  of_call[kSoftcap] = args[kPlainSoftcap];
  of_call[kLeft] = asked.minus_one;
  of_call[kRight] = args[kPlainCausal] == Py_True ? asked.zero : asked.minus_one;
  of_call[kAlign] = asked.two;
  of_call[kBshd] = asked.zero;
  of_call[kVariant] = args[kPlainVariant];
  of_call[kBatchInvariant] = args[kPlainInvariant];
  of_call[kAllocate] = asked.scratch;
  Call call;
  const bool plain =
      read_call(of_call.data(), kArguments, call) &&
      // An output of e4m3's own type is not what is asked for where none is given.
      !(made && call.q.dtype == DType::e4m3) &&
      (call.options.device == DeviceKind::cpu || answers(asked.elsewhere, args[kPlainQ], Py_False));
  if (!plain) {
    Py_DECREF(out);
    return not_plain();
  }
  if (run(call, asked.scratch) && (made || tell_written(out))) return out;
  Py_DECREF(out);
  return nullptr;
}

}  // namespace greenfast::python
