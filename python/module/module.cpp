// greenfast._core: the library's calls for Python, over tensors of any origin. Limited API of
// Python 3.10, no header of any tensor library: one binary for every Python from 3.10 and for every
// PyTorch, or none.
#include "call.hpp"

#include <cstddef>
#include <string>
#include <string_view>

#include <greenfast/arithmetic.hpp>
#include <greenfast/attention.hpp>
#include <greenfast/quantize.hpp>

#include "plain.hpp"
#include "serving.hpp"

namespace greenfast::python {
namespace {
PyObject* attend(PyObject* const* args, Py_ssize_t count, Attention* function) {
  Call call;
  if (!read_call(args, count, call)) return nullptr;
  if (!given(args[kOut])) {
    fail(PyExc_TypeError, "out is None: pass the tensor to write");
    return nullptr;
  }
  if (!run(call, args[kAllocate], function)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_attention(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return attend(args, count, attention);
}

template <bool kSmooth, bool kRotate>
Status quantized(const Problem& problem, const Tensors& tensors, const Options& options) {
  return attention_quantized(problem, tensors, options, {.smooth_k = kSmooth, .rotate = kRotate});
}

// The arguments of attention, then whether K is smoothed, and whether Q and K are rotated.
PyObject* py_attention_quantized(PyObject*, PyObject* const* args, Py_ssize_t count) {
  std::int64_t smooth = 0, rotate = 0;
  if (count != kArguments + 2) {
    PyErr_SetString(PyExc_TypeError, "expected the arguments of attention, smooth_k and rotate");
    return nullptr;
  }
  if (!read_int(args[kArguments], smooth) || !read_int(args[kArguments + 1], rotate))
    return nullptr;
  if (smooth != 0)
    return attend(args, kArguments, rotate != 0 ? quantized<true, true> : quantized<true, false>);
  return attend(args, kArguments, rotate != 0 ? quantized<false, true> : quantized<false, false>);
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

// A call that is not to be made: the arguments of attention, then a device and the number of the
// output's type or None.
bool read_unmade(PyObject* const* args, Py_ssize_t count, Call& call) {
  if (count != kArguments + 2)
    return fail(PyExc_TypeError,
                "expected the arguments of attention, a device and an output type");
  if (!read_call(args, kArguments, call)) return false;
  if (given(args[kArguments + 1]))
    call.problem.out_dtype = static_cast<DType>(PyLong_AsLong(args[kArguments + 1]));
  // As in a call of PyTorch's or CuPy's tensors, whose allocators give scratch: without, selection
  // would pass over those that want some.
  call.options.allocate = [](std::size_t, void*) -> void* { return nullptr; };
  return PyErr_Occurred() == nullptr;
}

PyObject* py_explain(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Call call;
  DeviceFacts facts;
  if (!read_unmade(args, count, call) || !facts_for(args[kArguments], call.options, facts))
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

PyObject* py_prepare(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Call call;
  if (!read_unmade(args, count, call)) return nullptr;
  Status status;
  Py_BEGIN_ALLOW_THREADS status = prepare(call.problem, call.options);
  Py_END_ALLOW_THREADS if (!status) return raise(status);
  Py_RETURN_NONE;
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

// (values, codes, scale or None, compute, bshd, rotate, allocate as in Argument, stream or None)
PyObject* py_quantize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 8) {
    PyErr_SetString(PyExc_TypeError, "expected 8 arguments");
    return nullptr;
  }
  View from, to, scale;
  std::int64_t compute = 0, bshd = 0, rotate = 0;
  if (!read_view("values", args[0], from) || !read_view("out", args[1], to) ||
      !read_int(args[3], compute) || !read_int(args[4], bshd) || !read_int(args[5], rotate) ||
      !same_device("out", to, from))
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
  if (!as_bhsd("values", from, bshd != 0, false) || !as_bhsd("out", to, bshd != 0, false))
    return nullptr;
  const auto& shape = from.shape;
  problem.batch = shape[0];
  problem.heads = shape[1];
  problem.seq = shape[2];
  problem.head_dim = shape[3];
  problem.dtype = from.dtype;
  problem.from.stride = from.stride;
  problem.to.stride = to.stride;
  problem.compute_scales = compute != 0;
  problem.rotate = rotate != 0;
  problem.scales = ScaleKind::none;
  QuantizeTensors tensors{.from = from.data, .to = to.data};
  if (given(args[2])) {
    if (!read_view("scale", args[2], scale) || !same_device("scale", scale, from)) return nullptr;
    std::int64_t elements = 1;
    for (int dim = 0; dim < scale.rank; ++dim) elements *= scale.shape[dim];
    const bool per_head = scale.rank == 2 && scale.shape[0] == shape[0] &&
                          scale.shape[1] == shape[1] && contiguous(scale);
    const std::int64_t blocks = ceil_div(shape[2], kScaleBlock);
    const bool per_block = scale.rank == 3 && scale.shape[0] == shape[0] &&
                           scale.shape[1] == shape[1] && scale.shape[2] == blocks &&
                           contiguous(scale);
    if (scale.dtype != DType::f32 || (compute != 0 && scale.readonly) ||
        (!per_head && !per_block && elements != 1)) {
      fail(PyExc_ValueError,
           text("scale is ", name_of(scale.dtype), " ", shape_text(scale),
                ": one float32, or contiguous [", shape[0], ", ", shape[1], "] or [", shape[0],
                ", ", shape[1], ", ", blocks, "] of them, that may be written, is expected"));
      return nullptr;
    }
    problem.scales = per_block  ? ScaleKind::per_block
                     : per_head ? ScaleKind::per_head
                                : ScaleKind::tensor;
    tensors.scale = static_cast<float*>(scale.data);
  }
  Options options;
  options.device = from.device;
  options.device_index = from.index;
  if (!read_stream(args[7], from, options.stream)) return nullptr;
  const Scratch scratch(args[6], options);
  const Status status = quantize_e4m3(problem, tensors, options);
  if (scratch.raised) return nullptr;
  if (!status) return raise(status);
  Py_RETURN_NONE;
}

template <class Function>
PyCFunction function(Function* of) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(of));
}

PyMethodDef methods[] = {
    {"attention", function(py_attention), METH_FASTCALL, nullptr},
    {"attention_quantized", function(py_attention_quantized), METH_FASTCALL, nullptr},
    {"plain", function(py_plain), METH_FASTCALL, nullptr},
    {"plain_sdpa", function(py_plain_sdpa), METH_FASTCALL, nullptr},
    {"plain_ready", function(py_plain_ready), METH_VARARGS | METH_KEYWORDS, nullptr},
    {"explain", function(py_explain), METH_FASTCALL, nullptr},
    {"prepare", function(py_prepare), METH_FASTCALL, nullptr},
    {"merge", function(py_merge), METH_FASTCALL, nullptr},
    {"append", function(py_append), METH_FASTCALL, nullptr},
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
}  // namespace greenfast::python

PyMODINIT_FUNC PyInit__core() { return PyModuleDef_Init(&greenfast::python::definition); }
