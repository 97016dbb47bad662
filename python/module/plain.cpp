#include "plain.hpp"

#include <array>
#include <utility>

namespace greenfast::python {
namespace {

// An iterator that gives one object, once, and is filled again.
struct Once {
  PyObject_HEAD PyObject* value;
};
PyObject* next_of_once(PyObject* self) {
  return std::exchange(reinterpret_cast<Once*>(self)->value, nullptr);
}
Once* make_once() {
  static std::array<PyType_Slot, 3> parts{{{Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)},
                                           {Py_tp_iternext, reinterpret_cast<void*>(next_of_once)},
                                           {0, nullptr}}};
  static PyType_Spec spec{"greenfast._core.Once", sizeof(Once), 0, Py_TPFLAGS_DEFAULT,
                          parts.data()};
  PyObject* type = PyType_FromSpec(&spec);
  PyObject* made = type != nullptr ? PyObject_CallNoArgs(type) : nullptr;
  Py_XDECREF(type);
  return reinterpret_cast<Once*>(made);
}

// What PyTorch is asked for. Held for the life of the process.
struct Asked {
  std::array<PyTypeObject*, 2> types{};
  PyObject *is_grad_enabled = nullptr, *dispatch_modes = nullptr, *is_tracing = nullptr;
  PyObject *is_neg = nullptr, *empty_like = nullptr, *scratch = nullptr, *elsewhere = nullptr;
  PyObject* increment_version = nullptr;
  Once* written = nullptr;                              // what it is handed
  bool writing = false;                                 // it is being handed
  PyObject *forward_ad = nullptr, *compiler = nullptr;  // dictionaries of modules
  PyObject* autocast = nullptr;
  PyObject *level = nullptr, *requires_grad = nullptr, *compiling = nullptr;
  PyObject *minus_one = nullptr, *zero = nullptr, *two = nullptr, *no_softcap = nullptr;
  bool one_gpu = false;
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

// The four tensors of a call, the last of which may be None, and what else it says.
struct Said {
  std::array<PyObject*, 4> tensors{};  // Q, K, V, the output
  PyObject *scale = Py_None, *softcap = nullptr, *variant = Py_None;
  bool causal = false, invariant = false;
  bool grouped = true;  // K and V may have fewer heads than Q
  int count() const { return given(tensors[3]) ? 4 : 3; }
};

bool read_bool(PyObject* value, bool& out) {
  out = value == Py_True;
  return out || value == Py_False;
}

// A keyword of attention. False: more is said than a plain call says.
bool read_option(PyObject* name, PyObject* value, Said& out) {
  const auto is = [name](const char* word) {
    return PyUnicode_CompareWithASCIIString(name, word) == 0;
  };
  bool none = false;
  if (is("causal")) return read_bool(value, out.causal);
  if (is("scale")) return out.scale = value, true;
  if (is("softcap")) return out.softcap = value, true;
  if (is("variant")) return out.variant = value, true;
  if (is("batch_invariant")) return read_bool(value, out.invariant);
  if (is("return_lse")) return read_bool(value, none) && !none;
  if (is("layout"))
    return PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "bhsd") == 0;
  for (const char* word :
       {"window", "align", "lse", "q_scale", "k_scale", "v_scale", "out_dtype", "stream"})
    if (is(word)) return value == Py_None;
  return false;
}

bool read_options(PyObject* options, Said& out) {
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(options, &at, &name, &value))
    if (!read_option(name, value, out)) return false;
  return true;
}

bool no_dispatch_modes() {
  PyObject* modes = PyObject_CallNoArgs(asked.dispatch_modes);
  const bool none = modes != nullptr && PyLong_AsLong(modes) == 0;
  Py_XDECREF(modes);
  if (!none) PyErr_Clear();
  return none;
}

// Nobody watches operators, nobody wants gradients, and what memory holds is what tensors say.
bool tensors_are_plain(const Said& said) {
  for (int i = 0; i < said.count(); ++i)
    if (!of_torch(said.tensors[i])) return false;
  if (PyDict_GetItemWithError(asked.compiler, asked.compiling) != Py_False ||
      !answers(PyObject_CallNoArgs(asked.is_tracing), Py_False))
    return false;
  // -1 where forward-mode derivatives are not asked for.
  PyObject* level = PyDict_GetItemWithError(asked.forward_ad, asked.level);
  if (level == nullptr || PyLong_AsLong(level) >= 0) return PyErr_Clear(), false;

  if (!no_dispatch_modes()) return false;
  if (!answers(PyObject_CallNoArgs(asked.is_grad_enabled), Py_False))
    for (int i = 0; i < said.count(); ++i)
      if (!answers(PyObject_GetAttr(said.tensors[i], asked.requires_grad), Py_False)) return false;
  for (int i = 0; i < said.count(); ++i)
    if (!answers(asked.is_neg, said.tensors[i], Py_False)) return false;
  return true;
}

// The caller's memory holds something else now: backward of who saved it before raises.
// PyTorch takes any iterable of tensors: a new tuple and its iterator took 0.045 us longer (2-core
// Xeon, 2026-11-26). What collects garbage on the way may let another thread in here, or this one once
// more: those make a tuple.
bool tell_written(PyObject* out) {
  const bool again = std::exchange(asked.writing, true);
  PyObject* const written =
      again ? PyTuple_Pack(1, out) : Py_NewRef(reinterpret_cast<PyObject*>(asked.written));
  if (!again) asked.written->value = Py_NewRef(out);
  PyObject* done = written != nullptr
                       ? PyObject_CallFunctionObjArgs(asked.increment_version, written, nullptr)
                       : nullptr;
  if (!again) {
    Py_CLEAR(asked.written->value);  // where it was not read
    asked.writing = false;
  }
  Py_XDECREF(written);
  Py_XDECREF(done);
  return done != nullptr;
}

// Whether q lies on the GPU that is this thread's. None says that there is one alone.
bool is_here(PyObject* q) {
  if (asked.one_gpu) return true;
  PyObject* elsewhere = PyObject_CallFunctionObjArgs(asked.elsewhere, q, nullptr);
  if (elsewhere == Py_None) asked.one_gpu = true;
  const bool here = elsewhere == Py_None || elsewhere == Py_False;
  Py_XDECREF(elsewhere);
  return here;
}

PyObject* not_plain() {
  PyErr_Clear();
  return Py_NewRef(Py_NotImplemented);
}

// The output; NotImplemented where the call is not plain. What the library refuses is raised.
PyObject* run_plain(const Said& said, PyObject* align) {
  PyObject* const q = said.tensors[0];
  const bool made = !given(said.tensors[3]);
  PyObject* out =
      made ? PyObject_CallFunctionObjArgs(asked.empty_like, q, nullptr) : said.tensors[3];
  if (out == nullptr) return not_plain();
  if (!made) Py_INCREF(out);

  std::array<PyObject*, kArguments> of_call;
  of_call.fill(Py_None);
  of_call[kQ] = q;
  of_call[kK] = said.tensors[1];
  of_call[kV] = said.tensors[2];
  of_call[kOut] = out;
  of_call[kScale] = said.scale;
  of_call[kSoftcap] = said.softcap != nullptr ? said.softcap : asked.no_softcap;
  of_call[kLeft] = asked.minus_one;
  of_call[kRight] = said.causal ? asked.zero : asked.minus_one;
  of_call[kAlign] = align;
  of_call[kBshd] = asked.zero;
  of_call[kVariant] = said.variant;
  of_call[kBatchInvariant] = said.invariant ? Py_True : Py_False;
  of_call[kAllocate] = asked.scratch;
  Call call;
  const bool plain = read_call(of_call.data(), kArguments, call) &&
                     // An output of e4m3's own type is not what is asked for where none is given.
                     !(made && call.q.dtype == DType::e4m3) &&
                     (said.grouped || call.problem.heads_q == call.problem.heads_kv) &&
                     (call.options.device == DeviceKind::cpu || is_here(q));
  if (!plain) {
    Py_DECREF(out);
    return not_plain();
  }
  if (run(call, asked.scratch) && (made || tell_written(out))) return out;
  Py_DECREF(out);
  return nullptr;
}

}  // namespace

PyObject* py_plain_ready(PyObject*, PyObject* args) {
  PyObject *first = nullptr, *second = nullptr;
  Asked a;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOO", &first, &second, &a.is_grad_enabled,
                        &a.dispatch_modes, &a.is_tracing, &a.is_neg, &a.empty_like, &a.scratch,
                        &a.elsewhere, &a.forward_ad, &a.increment_version, &a.compiler,
                        &a.autocast))
    return nullptr;
  if (!PyType_Check(first) || !PyType_Check(second)) {
    PyErr_SetString(PyExc_TypeError, "two types of tensors are expected");
    return nullptr;
  }
  if (!PyDict_Check(a.forward_ad) || !PyDict_Check(a.compiler))
    return fail(PyExc_TypeError, "the dictionaries of two modules are expected"), nullptr;
  a.types = {reinterpret_cast<PyTypeObject*>(first), reinterpret_cast<PyTypeObject*>(second)};
  for (PyObject* held :
       {first, second, a.is_grad_enabled, a.dispatch_modes, a.is_tracing, a.is_neg, a.empty_like,
        a.scratch, a.elsewhere, a.forward_ad, a.increment_version, a.compiler, a.autocast})
    Py_INCREF(held);
  a.written = make_once();
  if (a.written == nullptr) return nullptr;
  a.level = PyUnicode_InternFromString("_current_level");
  a.requires_grad = PyUnicode_InternFromString("requires_grad");
  a.compiling = PyUnicode_InternFromString("_is_compiling_flag");
  a.minus_one = PyLong_FromLong(-1);
  a.zero = PyLong_FromLong(0);
  a.two = PyLong_FromLong(2);
  a.no_softcap = PyFloat_FromDouble(0.0);
  for (const PyObject* made :
       {a.level, a.requires_grad, a.compiling, a.minus_one, a.zero, a.two, a.no_softcap})
    if (made == nullptr) return nullptr;
  asked = a;
  Py_RETURN_NONE;
}

PyObject* py_plain(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 5 || !PyDict_Check(args[4]))
    return fail(PyExc_TypeError, "expected q, k, v, out and a dict of options"), nullptr;
  Said said{.tensors = {args[0], args[1], args[2], args[3]}};
  if (asked.is_neg == nullptr || !read_options(args[4], said) || !tensors_are_plain(said))
    return not_plain();
  return run_plain(said, asked.two);
}

PyObject* py_plain_sdpa(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6)
    return fail(PyExc_TypeError, "expected q, k, v, is_causal, scale and enable_gqa"), nullptr;
  Said said{.tensors = {args[0], args[1], args[2], Py_None}, .scale = args[4]};
  if (asked.is_neg == nullptr || !read_bool(args[3], said.causal) ||
      !read_bool(args[5], said.grouped) ||
      !answers(PyObject_CallNoArgs(asked.autocast), Py_False) || !tensors_are_plain(said))
    return not_plain();
  PyObject* out = run_plain(said, asked.zero);
  // What the library refuses goes to PyTorch, or is refused by what knows all of the call.
  if (out == nullptr)
    for (PyObject* kind : {PyExc_TypeError, PyExc_ValueError, PyExc_RuntimeError})
      if (PyErr_ExceptionMatches(kind)) return not_plain();
  return out;
}

}  // namespace greenfast::python
