#include "plain.hpp"

#include <algorithm>
#include <array>
#include <tuple>
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

// A function that is asked at every call, held for the life of the process. Of a built-in one the C function is called,
// as Python would, without what Python does around it.
class Question {
 public:
  Question() = default;
  explicit Question(PyObject* function) : function_(Py_NewRef(function)) {
    if (PyObject_TypeCheck(function, &PyCFunction_Type) == 0) return;
    behind_ = PyCFunction_GetFunction(function);
    self_ = PyCFunction_GetSelf(function);
    takes_ = PyCFunction_GetFlags(function);
  }

  PyObject* operator()() const {
    switch (takes_) {
      case METH_NOARGS:
        return behind_(self_, nullptr);
      case METH_VARARGS | METH_KEYWORDS:  // pybind11's
        return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(behind_))(
            self_, nothing(), nullptr);
      default:
        return PyObject_CallNoArgs(function_);
    }
  }
  PyObject* operator()(PyObject* about) const {
    return takes_ == METH_O ? behind_(self_, about)
                            : PyObject_CallFunctionObjArgs(function_, about, nullptr);
  }
  // With a tuple of arguments.
  PyObject* with(PyObject* arguments) const {
    return takes_ == METH_VARARGS ? behind_(self_, arguments)
                                  : PyObject_CallObject(function_, arguments);
  }
  // Of a method that is bound to some object, about another of its type.
  PyObject* of(PyObject* object) const { return behind_(object, nullptr); }
  bool is_known() const { return function_ != Py_None; }
  bool may_be_of_others() const { return takes_ == METH_NOARGS && self_ != nullptr; }

 private:
  static PyObject* nothing() {
    static PyObject* const tuple = PyTuple_New(0);
    return tuple;
  }

  PyObject* function_ = nullptr;
  PyCFunction behind_ = nullptr;
  PyObject* self_ = nullptr;
  int takes_ = -1;
};

// The keywords that a plain call may say, then those that it leaves at None.
enum class Keyword { causal, scale, softcap, variant, batch_invariant, return_lse, layout };
constexpr std::array<const char*, 15> kKeywords{
    "causal", "scale", "softcap", "variant", "batch_invariant", "return_lse", "layout", "window",
    "align",  "lse",   "q_scale", "k_scale", "v_scale",         "out_dtype",  "stream"};

// What PyTorch is asked for. Held for the life of the process.
struct Asked {
  bool ready = false;
  std::array<PyTypeObject*, 2> types{};
  const dlpack::ExchangeApi* table = nullptr;  // of both
  Question is_grad_enabled, dispatch_modes, is_tracing, is_neg, autocast;
  Question function_modes, transforms;
  Question empty_like, empty_cpu, empty_cuda, increment_version, elsewhere;
  PyObject* scratch = nullptr;
  Once* written = nullptr;                              // what increment_version is handed
  bool writing = false;                                 // it is being handed
  PyObject *forward_ad = nullptr, *compiler = nullptr;  // dictionaries of modules
  PyObject *level = nullptr, *requires_grad = nullptr, *compiling = nullptr, *dtype = nullptr;
  PyObject *minus_one = nullptr, *zero = nullptr, *two = nullptr, *no_softcap = nullptr;
  std::array<PyObject*, kKeywords.size()> keywords{};
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

// Its place among keywords; their number for another word. Words in a program's text are the interned ones.
std::size_t place_of(PyObject* name) {
  const auto found = std::find(asked.keywords.begin(), asked.keywords.end(), name);
  if (found != asked.keywords.end()) return found - asked.keywords.begin();
  return std::find_if(kKeywords.begin(), kKeywords.end(),
                      [name](const char* word) {
                        return PyUnicode_CompareWithASCIIString(name, word) == 0;
                      }) -
         kKeywords.begin();
}

// A keyword of attention. False: more is said than a plain call says.
bool read_option(PyObject* name, PyObject* value, Said& out) {
  bool none = false;
  const std::size_t place = place_of(name);
  switch (static_cast<Keyword>(place)) {
    case Keyword::causal:
      return read_bool(value, out.causal);
    case Keyword::scale:
      return out.scale = value, true;
    case Keyword::softcap:
      return out.softcap = value, true;
    case Keyword::variant:
      return out.variant = value, true;
    case Keyword::batch_invariant:
      return read_bool(value, out.invariant);
    case Keyword::return_lse:
      return read_bool(value, none) && !none;
    case Keyword::layout:
      return PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "bhsd") == 0;
    default:
      return place < kKeywords.size() && value == Py_None;
  }
}

bool read_options(PyObject* options, Said& out) {
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(options, &at, &name, &value))
    if (!read_option(name, value, out)) return false;
  return true;
}

bool no_dispatch_modes() {
  PyObject* modes = asked.dispatch_modes();
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
      !answers(asked.is_tracing(), Py_False))
    return false;
  // -1 where forward-mode derivatives are not asked for.
  PyObject* level = PyDict_GetItemWithError(asked.forward_ad, asked.level);
  if (level == nullptr || PyLong_AsLong(level) >= 0) return PyErr_Clear(), false;

  if (!no_dispatch_modes()) return false;
  if (!answers(asked.is_grad_enabled(), Py_False))
    for (int i = 0; i < said.count(); ++i)
      if (!answers(PyObject_GetAttr(said.tensors[i], asked.requires_grad), Py_False)) return false;
  for (int i = 0; i < said.count(); ++i)
    if (!answers(asked.is_neg.of(said.tensors[i]), Py_False)) return false;
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
  PyObject* done = written != nullptr ? asked.increment_version(written) : nullptr;
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
  PyObject* elsewhere = asked.elsewhere(q);
  if (elsewhere == Py_None) asked.one_gpu = true;
  const bool here = elsewhere == Py_None || elsewhere == Py_False;
  Py_XDECREF(elsewhere);
  return here;
}

PyObject* not_plain() {
  PyErr_Clear();
  Py_RETURN_NONE;
}

// What DLPack says of a tensor, but for where it lies.
struct Form {
  dlpack::Device device;
  dlpack::DataType dtype;
  std::array<std::int64_t, kMaxRank> shape{}, stride{};
  bool filled = false;

  static bool has(const dlpack::Tensor& t) { return t.ndim == kMaxRank && t.strides != nullptr; }
  explicit Form(const dlpack::Tensor& t = {}) : device(t.device), dtype(t.dtype), filled(has(t)) {
    if (!filled) return;
    std::copy_n(t.shape, kMaxRank, shape.begin());
    std::copy_n(t.strides, kMaxRank, stride.begin());
  }
  bool is_of(const dlpack::Tensor& t) const {
    if (!filled || !has(t) ||
        std::tie(device.type, device.index) != std::tie(t.device.type, t.device.index) ||
        std::tie(dtype.code, dtype.bits, dtype.lanes) !=
            std::tie(t.dtype.code, t.dtype.bits, t.dtype.lanes))
      return false;
    std::int64_t differ = 0;  // without a branch each
    for (int dim = 0; dim < kMaxRank; ++dim)
      differ |= (shape[dim] ^ t.shape[dim]) | (stride[dim] ^ t.strides[dim]);
    return differ == 0;
  }
};

void* address_of(const dlpack::Tensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

using Seen = std::array<dlpack::Tensor, 4>;

bool see(PyObject* tensor, dlpack::Tensor& out) {
  if (asked.table->tensor_from_object(tensor, &out) == 0) return true;
  PyErr_Clear();
  return false;
}

// A call that was plain: one whose tensors are the same but for their addresses, as a model's layers make it, is not
// read and checked argument by argument again.
struct Known {
  std::array<Form, 4> forms;
  Request request;            // without addresses and what options say
  PyObject* empty = nullptr;  // the output was made: (shape, strides, type) of it; else null
  int count = 0;              // of tensors that were given; 0: nothing is known

  bool is(const Said& said, const Seen& seen) const {
    if (count != said.count()) return false;
    for (int i = 0; i < count; ++i)
      if (!forms[i].is_of(seen[i])) return false;
    return true;
  }
};
// Guarded by the GIL. A model has few kinds of layers.
std::array<Known, 8> known;
std::size_t next_known = 0;

// What options say, into a request that has the tensors. False: it has to be read with care.
bool say(const Said& said, PyObject* align, Request& request) {
  auto& [p, t, options] = request;
  if (said.causal) {
    if (align == asked.two && p.seq_q != p.seq_kv) return false;
    p.mask = Mask::causal(Alignment::top_left);
  }
  double scale = 0, softcap = 0;
  if (given(said.scale)) {
    if (!read_double(said.scale, scale)) return false;
    p.scale = static_cast<float>(scale);
  }
  if (said.softcap != nullptr) {
    if (!read_double(said.softcap, softcap)) return false;
    p.softcap = static_cast<float>(softcap);
  }
  options.batch_invariant = said.invariant;
  if (given(said.variant)) {
    Py_ssize_t size = 0;
    const char* name = PyUnicode_AsUTF8AndSize(said.variant, &size);
    if (name == nullptr) return false;
    options.variant = std::string_view(name, static_cast<std::size_t>(size));
  }
  return options.device == DeviceKind::cpu ||
         asked.table->current_stream(dlpack::kCuda, options.device_index, &options.stream) == 0;
}

// An output as a known call made it, or null. Whoever watches functions is asked for it as always; and what is made inside a
// transform is a tensor of the transform's.
PyObject* make_again(PyObject* arguments, PyObject* q, bool cuda) {
  if (arguments == nullptr || !answers(asked.function_modes(), Py_False) ||
      !answers(asked.transforms(), Py_False))
    return asked.empty_like(q);
  return (cuda ? asked.empty_cuda : asked.empty_cpu).with(arguments);
}

// The output of a call with such a request; null, maybe with an exception, where it has to be read with care.
PyObject* output_of(const Said& said, PyObject* align, const Form& form, PyObject* arguments,
                    Request& request) {
  const Problem& p = request.problem;
  const bool cuda = request.options.device == DeviceKind::cuda;
  if (!say(said, align, request) || !(said.grouped || p.heads_q == p.heads_kv) ||
      (cuda && !is_here(said.tensors[0])))
    return nullptr;
  if (said.count() == 4) return Py_NewRef(said.tensors[3]);
  PyObject* out = make_again(arguments, said.tensors[0], cuda);
  dlpack::Tensor made{};
  if (out != nullptr && see(out, made) && form.is_of(made)) {
    request.tensors.o = address_of(made);
    return out;
  }
  Py_XDECREF(out);
  return nullptr;
}

// The output of a call that is known, and its request; null, with no exception, where it is not.
PyObject* look_up(const Said& said, PyObject* align, const Seen& seen, Request& request) {
  const auto found = std::find_if(known.begin(), known.end(),
                                  [&](const Known& call) { return call.is(said, seen); });
  if (found == known.end()) return nullptr;
  // Copies: numbers and garbage may let other code in here, and with it calls that take the place of this one.
  request = found->request;
  const Form form = found->forms[3];
  PyObject* const arguments = found->empty;
  Py_XINCREF(arguments);
  request.tensors.q = address_of(seen[0]);
  request.tensors.k = address_of(seen[1]);
  request.tensors.v = address_of(seen[2]);
  if (said.count() == 4) request.tensors.o = address_of(seen[3]);
  PyObject* out = output_of(said, align, form, arguments, request);
  Py_XDECREF(arguments);
  if (out == nullptr) PyErr_Clear();
  return out;
}

// The output of a call that is read argument by argument, and its request; null, maybe with an exception, where it is
// not plain.
PyObject* read_plain(const Said& said, PyObject* align, Request& request) {
  PyObject* const q = said.tensors[0];
  const bool made = said.count() == 3;
  PyObject* out = made ? asked.empty_like(q) : Py_NewRef(said.tensors[3]);
  if (out == nullptr) return nullptr;
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
  if (plain) {
    request = call;
    return out;
  }
  Py_DECREF(out);
  return nullptr;
}

PyObject* tuple_of(const std::array<std::int64_t, kMaxRank>& of) {
  return Py_BuildValue("(LLLL)", static_cast<long long>(of[0]), static_cast<long long>(of[1]),
                       static_cast<long long>(of[2]), static_cast<long long>(of[3]));
}

// Arguments that make an output of this form again; null: it is to be asked for by its example.
PyObject* arguments_of_empty(const Form& form, PyObject* out) {
  const Question& make = form.device.type == dlpack::kCuda ? asked.empty_cuda : asked.empty_cpu;
  PyObject* dtype = make.is_known() ? PyObject_GetAttr(out, asked.dtype) : nullptr;
  PyObject* arguments =
      dtype != nullptr ? Py_BuildValue("(NNO)", tuple_of(form.shape), tuple_of(form.stride), dtype)
                       : nullptr;
  Py_XDECREF(dtype);
  if (arguments == nullptr) PyErr_Clear();
  return arguments;
}

using Forms = std::array<Form, 4>;

Forms forms_of(const Seen& seen) {
  Forms forms;
  std::transform(seen.begin(), seen.end(), forms.begin(), [](const auto& t) { return Form(t); });
  return forms;
}

// Whether the tensors still are what they were before the output was made and the call was read, which other code, and with
// it other threads, may have come between; and whether that is what the request says.
bool stayed(const Said& said, const Forms& forms, const Request& request) {
  Seen now{};
  for (int i = 0; i < said.count(); ++i)
    if (!see(said.tensors[i], now[i]) || !forms[i].is_of(now[i])) return false;
  const Problem& p = request.problem;
  using Shape = std::array<std::int64_t, 4>;
  const auto is = [](const Form& form, const Shape& shape) {
    return std::equal(shape.begin(), shape.end(), form.shape.begin());
  };
  return is(forms[0], {p.batch, p.heads_q, p.seq_q, p.head_dim}) &&
         is(forms[1], {p.batch, p.heads_kv, p.seq_kv, p.head_dim}) &&
         is(forms[2], {p.batch, p.heads_kv, p.seq_kv, value_dim(p)});
}

// Keeps in mind a call that was plain.
void know(const Said& said, const Forms& forms, PyObject* out, const Request& request) {
  Known call{.forms = forms, .request = request, .count = said.count()};
  if (call.count == 3) {
    dlpack::Tensor made{};
    if (!see(out, made)) return;
    call.forms[3] = Form(made);
    call.empty = arguments_of_empty(call.forms[3], out);
  }
  auto& [p, tensors, options] = call.request;
  tensors = {};
  p.mask = Mask::none();
  p.scale = default_scale(p.head_dim);
  p.softcap = 0;
  options = {.device = options.device, .device_index = options.device_index};
  std::swap(known[next_known], call);
  next_known = (next_known + 1) % known.size();
  Py_XDECREF(call.empty);
}

// The output, written; null with an exception where the library refuses.
PyObject* write(const Said& said, Request& request, PyObject* out) {
  if (run(request, asked.scratch) && (said.count() == 3 || tell_written(out))) return out;
  Py_DECREF(out);
  return nullptr;
}

PyObject* run_new(const Said& said, PyObject* align, const Seen& seen) {
  const Forms forms = forms_of(seen);  // before another thread may resize a tensor
  Request request;
  PyObject* out = read_plain(said, align, request);
  if (out == nullptr) return not_plain();
  const bool same = stayed(said, forms, request);
  out = write(said, request, out);
  if (out != nullptr && same) know(said, forms, out, request);
  return out;
}

// The output; None where the call is not plain. What the library refuses is raised.
PyObject* run_plain(const Said& said, PyObject* align) {
  // Any other number may be code, which could change the tensors once they are seen.
  for (PyObject* number : {said.scale, said.softcap})
    if (number != nullptr && number != Py_None && Py_TYPE(number) != &PyFloat_Type &&
        Py_TYPE(number) != &PyLong_Type)
      return not_plain();
  Seen seen{};
  for (int i = 0; i < said.count(); ++i)
    if (!see(said.tensors[i], seen[i])) return not_plain();
  Request request;
  PyObject* out = look_up(said, align, seen, request);
  return out != nullptr ? write(said, request, out) : run_new(said, align, seen);
}

}  // namespace

PyObject* py_plain_ready(PyObject*, PyObject* args, PyObject* keywords) {
  PyObject *first = nullptr, *second = nullptr, *is_neg = nullptr, *grad = nullptr;
  PyObject *dispatch = nullptr, *tracing = nullptr, *functions = nullptr, *transforms = nullptr;
  PyObject *autocast = nullptr, *like = nullptr, *cpu = nullptr, *cuda = nullptr;
  PyObject *increment = nullptr, *elsewhere = nullptr;
  Asked a;
  static std::array<const char*, 18> names{"tensor",
                                           "parameter",
                                           "is_neg",
                                           "is_grad_enabled",
                                           "dispatch_modes",
                                           "is_tracing",
                                           "function_modes",
                                           "transforms",
                                           "autocast",
                                           "empty_like",
                                           "empty_cpu",
                                           "empty_cuda",
                                           "increment_version",
                                           "elsewhere",
                                           "scratch",
                                           "forward_ad",
                                           "compiler",
                                           nullptr};
  if (!PyArg_ParseTupleAndKeywords(
          args, keywords, "OOOOOOOOOOOOOOOOO", const_cast<char**>(names.data()), &first, &second,
          &is_neg, &grad, &dispatch, &tracing, &functions, &transforms, &autocast, &like, &cpu,
          &cuda, &increment, &elsewhere, &a.scratch, &a.forward_ad, &a.compiler))
    return nullptr;
  if (!PyType_Check(first) || !PyType_Check(second))
    return fail(PyExc_TypeError, "two types of tensors are expected"), nullptr;
  if (!PyDict_Check(a.forward_ad) || !PyDict_Check(a.compiler))
    return fail(PyExc_TypeError, "the dictionaries of two modules are expected"), nullptr;
  a.types = {reinterpret_cast<PyTypeObject*>(first), reinterpret_cast<PyTypeObject*>(second)};
  a.table = table_of(a.types[0]);
  a.is_neg = Question(is_neg);
  if (a.table == nullptr || !a.is_neg.may_be_of_others()) Py_RETURN_FALSE;
  a.is_grad_enabled = Question(grad);
  a.dispatch_modes = Question(dispatch);
  a.is_tracing = Question(tracing);
  a.function_modes = Question(functions);
  a.transforms = Question(transforms);
  a.autocast = Question(autocast);
  a.empty_like = Question(like);
  a.empty_cpu = Question(cpu);
  a.empty_cuda = Question(cuda);
  a.increment_version = Question(increment);
  a.elsewhere = Question(elsewhere);
  for (PyObject* held : {first, second, a.scratch, a.forward_ad, a.compiler}) Py_INCREF(held);
  a.written = make_once();
  if (a.written == nullptr) return nullptr;
  a.level = PyUnicode_InternFromString("_current_level");
  a.requires_grad = PyUnicode_InternFromString("requires_grad");
  a.compiling = PyUnicode_InternFromString("_is_compiling_flag");
  a.dtype = PyUnicode_InternFromString("dtype");
  a.minus_one = PyLong_FromLong(-1);
  a.zero = PyLong_FromLong(0);
  a.two = PyLong_FromLong(2);
  a.no_softcap = PyFloat_FromDouble(0.0);
  for (std::size_t i = 0; i < kKeywords.size(); ++i) {
    a.keywords[i] = PyUnicode_InternFromString(kKeywords[i]);
    if (a.keywords[i] == nullptr) return nullptr;
  }
  for (const PyObject* made :
       {a.level, a.requires_grad, a.compiling, a.dtype, a.minus_one, a.zero, a.two, a.no_softcap})
    if (made == nullptr) return nullptr;
  a.ready = true;
  asked = a;
  Py_RETURN_TRUE;
}

PyObject* py_plain(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 5 || !PyDict_Check(args[4]))
    return fail(PyExc_TypeError, "expected q, k, v, out and a dict of options"), nullptr;
  Said said{.tensors = {args[0], args[1], args[2], args[3]}};
  if (!asked.ready || !read_options(args[4], said) || !tensors_are_plain(said)) return not_plain();
  return run_plain(said, asked.two);
}

PyObject* py_plain_sdpa(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6)
    return fail(PyExc_TypeError, "expected q, k, v, is_causal, scale and enable_gqa"), nullptr;
  Said said{.tensors = {args[0], args[1], args[2], Py_None}, .scale = args[4]};
  if (!asked.ready || !read_bool(args[3], said.causal) || !read_bool(args[5], said.grouped) ||
      !answers(asked.autocast(), Py_False) || !tensors_are_plain(said))
    return not_plain();
  PyObject* out = run_plain(said, asked.zero);
  // What the library refuses goes to PyTorch, or is refused by what knows all of the call.
  if (out == nullptr)
    for (PyObject* kind : {PyExc_TypeError, PyExc_ValueError, PyExc_RuntimeError})
      if (PyErr_ExceptionMatches(kind)) return not_plain();
  return out;
}

}  // namespace greenfast::python
