#include "serving.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include <greenfast/serving.hpp>

#include "call.hpp"

namespace greenfast::python {
namespace {

PyObject* refuse_count(int wanted) {
  PyErr_SetString(PyExc_TypeError, text("expected ", wanted, " arguments").c_str());
  return nullptr;
}

bool writable(const char* name, const View& view) {
  return !view.readonly ||
         fail(PyExc_ValueError, text(name, " is read-only: pass memory that may be written"));
}

// Packed tensors have three dimensions; the library wants the batch of one in front.
bool read_tensor(const char* name, PyObject* object, const View& first, bool bshd, View& out) {
  if (!read_view(name, object, out) || !same_device(name, out, first)) return false;
  return as_bhsd(name, out, bshd, out.rank == 3);
}

// What the problem has of the rows before and after it: [B, H, S], or [H, total].
bool read_lse(const char* name, PyObject* object, const View& of, bool packed, float*& out,
              bool written) {
  View view;
  if (!read_view(name, object, view, Wanted::f32) || !same_device(name, view, of)) return false;
  const int first = packed ? 1 : 0;
  bool fits = view.rank == 3 - first && contiguous(view);
  for (int dim = 0; fits && dim < view.rank; ++dim) fits = view.shape[dim] == of.shape[dim + first];
  if (!fits)
    return fail(PyExc_ValueError,
                text(name, " has shape ", shape_text(view),
                     packed ? ": contiguous [H, total] = ["
                            : text(": contiguous [B, H, S] = [", of.shape[0], ", "),
                     of.shape[1], ", ", of.shape[2], "] is expected"));
  if (written && !writable(name, view)) return false;
  out = static_cast<float*>(view.data);
  return true;
}

template <class Run>
PyObject* run_on(const Options& options, const Run& run) {
  Status status;
  if (options.device == DeviceKind::cpu || options.validate) {
    Py_BEGIN_ALLOW_THREADS status = run();
    Py_END_ALLOW_THREADS
  } else {
    status = run();
  }
  if (!status) return raise(status);
  Py_RETURN_NONE;
}

// What append was given.
struct Appending {
  AppendProblem problem;
  AppendTensors tensors;
  Options options;
  View k, v, k_cache, v_cache, q, q_out;
};

bool shapes_belong(const Appending& a) {
  const AppendProblem& p = a.problem;
  const auto differs = [](const View& x, const View& y, int first, int last) {
    return !std::equal(x.shape.begin() + first, x.shape.begin() + last, y.shape.begin() + first);
  };
  if (differs(a.v, a.k, 0, 3))
    return fail(PyExc_ValueError, text("v's [B, H, S, D] is ", shape_text(a.v), " and k's ",
                                       shape_text(a.k), ": they must be equal but for D"));
  if (differs(a.v_cache, a.k_cache, 0, 3))
    return fail(PyExc_ValueError,
                text("v_cache's [B, H, S, D] is ", shape_text(a.v_cache), " and k_cache's ",
                     shape_text(a.k_cache), ": they must be equal but for D"));
  for (const auto& [name, cache, fresh] :
       {std::tuple("k", &a.k_cache, &a.k), std::tuple("v", &a.v_cache, &a.v)})
    if (cache->shape[1] != fresh->shape[1] || cache->shape[3] != fresh->shape[3])
      return fail(PyExc_ValueError, text(name, " has ", fresh->shape[1], " heads of ",
                                         fresh->shape[3], " and ", name, "_cache ", cache->shape[1],
                                         " of ", cache->shape[3], ": they must be equal"));
  if (!p.pages.used() && !p.kv_index && a.k_cache.shape[0] != p.batch)
    return fail(PyExc_ValueError, text("k_cache has batch ", a.k_cache.shape[0], " and k ", p.batch,
                                       ": they must be equal, unless kv_index or page_table says "
                                       "which sequence lies where"));
  if (p.heads_q > 0 && (a.q.shape[0] != a.k.shape[0] || a.q.shape[2] != a.k.shape[2] ||
                        a.q.shape[3] != a.k.shape[3] || a.q_out.shape != a.q.shape))
    return fail(PyExc_ValueError,
                text("q's [B, H, S, D] is ", shape_text(a.q), ", q_out's ", shape_text(a.q_out),
                     " and k's ", shape_text(a.k), ": they must be equal but for the heads of k"));
  return true;
}

bool read_rotary(PyObject* cos, PyObject* sin, std::int64_t kind, Appending& a) {
  if (!given(cos) && !given(sin))
    return a.problem.heads_q == 0 ||
           fail(PyExc_ValueError,
                "q is given without cos and sin: append only turns it; pass them, or leave q out");
  if (!given(cos) || !given(sin))
    return fail(PyExc_ValueError, "cos and sin are given together, or neither");
  View tables[2];
  for (int n = 0; n < 2; ++n) {
    const char* name = n == 0 ? "cos" : "sin";
    View& table = tables[n];
    if (!read_view(name, n == 0 ? cos : sin, table, Wanted::f32) || !same_device(name, table, a.k))
      return false;
    if (table.rank != 2 || !contiguous(table) || table.shape != tables[0].shape)
      return fail(PyExc_ValueError,
                  text(name, " has shape ", shape_text(table),
                       ": contiguous [positions, rotary_dim / 2], both of one shape, is expected"));
  }
  AppendProblem& p = a.problem;
  p.rotary = static_cast<Rotary>(kind);
  p.positions = tables[0].shape[0];
  p.rotary_dim = 2 * tables[0].shape[1];
  a.tensors.cos = static_cast<const float*>(tables[0].data);
  a.tensors.sin = static_cast<const float*>(tables[1].data);
  return true;
}

// max_new: how many new tokens the longest of packed sequences has.
bool read_lengths(PyObject* const* arrays, PyObject* max_new, Appending& a) {
  AppendProblem& p = a.problem;
  AppendTensors& t = a.tensors;
  PyObject* const cu_new = arrays[0];
  if (given(cu_new)) {
    p.packed = true;
    p.total_new = p.seq_new;
    if (a.k.shape[0] != 1)
      return fail(PyExc_ValueError, text("k has batch ", a.k.shape[0],
                                         ": with cu_new its sequences lie in one of three "
                                         "dimensions"));
    if (!count_sequences("cu_new", cu_new, a.k, t.cu_new, p.batch)) return false;
    if (given(max_new) && !read_int(max_new, p.seq_new)) return false;
  } else if (given(max_new)) {
    return fail(PyExc_ValueError, "max_new is for packed tokens: pass cu_new, or leave it out");
  }
  const struct {
    const char* name;
    PyObject* object;
    const std::int32_t*& data;
    bool* flag;
  } given_arrays[] = {{"used_new", arrays[1], t.used_new, &p.used_new},
                      {"used_kv", arrays[2], t.used_kv, nullptr},
                      {"kv_start", arrays[3], t.kv_start, &p.kv_start},
                      {"kv_index", arrays[4], t.kv_index, &p.kv_index}};
  for (const auto& array : given_arrays) {
    if (!given(array.object)) continue;
    if (!read_indices(array.name, array.object, a.k, p.batch, "one for each sequence", array.data))
      return false;
    if (array.flag != nullptr) *array.flag = true;
  }
  p.seq_kv = a.k_cache.shape[2];
  if (given(arrays[5]) &&
      !read_page_table(arrays[5], a.k, p.batch, a.k_cache, p.pages, t.page_table, p.seq_kv))
    return false;
  p.kv_rows = p.kv_index ? a.k_cache.shape[0] : 0;
  return true;
}

}  // namespace

PyObject* py_merge(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr int kArgumentsOfMerge = 8;
  if (count != kArgumentsOfMerge) return refuse_count(kArgumentsOfMerge);
  MergeProblem problem;
  MergeTensors tensors;
  Options options;
  View a, b, out;
  std::int64_t bshd = 0;
  float *lse_a = nullptr, *lse_b = nullptr;
  if (!read_int(args[6], bshd) || !read_view("o1", args[0], a)) return nullptr;
  const bool packed = a.rank == 3;
  if (!as_bhsd("o1", a, bshd != 0, packed) || !read_tensor("o2", args[2], a, bshd != 0, b) ||
      !read_tensor("out", args[4], a, bshd != 0, out) || !writable("out", out) ||
      !read_lse("lse1", args[1], a, packed, lse_a, false) ||
      !read_lse("lse2", args[3], a, packed, lse_b, false) ||
      (given(args[5]) && !read_lse("lse", args[5], a, packed, tensors.lse, true)) ||
      !read_stream(args[7], a, options.stream))
    return nullptr;
  if (b.shape != a.shape || b.dtype != a.dtype || out.shape != a.shape) {
    fail(PyExc_ValueError, text("o1 is ", name_of(a.dtype), " ", shape_text(a), ", o2 ",
                                name_of(b.dtype), " ", shape_text(b), " and out ", shape_text(out),
                                ": the parts have one type, and all of them one shape"));
    return nullptr;
  }
  problem.batch = a.shape[0];
  problem.heads = a.shape[1];
  problem.seq = a.shape[2];
  problem.head_dim = a.shape[3];
  problem.dtype = a.dtype;
  problem.out_dtype = out.dtype;
  problem.a.stride = a.stride;
  problem.b.stride = b.stride;
  problem.o.stride = out.stride;
  tensors.a = a.data;
  tensors.lse_a = lse_a;
  tensors.b = b.data;
  tensors.lse_b = lse_b;
  tensors.o = out.data;
  options.device = a.device;
  options.device_index = a.index;
  return run_on(options, [&] { return merge(problem, tensors, options); });
}

PyObject* py_append(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr int kArgumentsOfAppend = 19;
  if (count != kArgumentsOfAppend) return refuse_count(kArgumentsOfAppend);
  Appending a;
  AppendProblem& p = a.problem;
  AppendTensors& t = a.tensors;
  std::int64_t rotary = 0, bshd = 0, validate = 0;
  if (!read_int(args[15], rotary) || !read_int(args[16], bshd) || !read_int(args[17], validate))
    return nullptr;
  const bool packed = given(args[6]), other = bshd != 0;
  if (!read_view("k", args[0], a.k) || !as_bhsd("k", a.k, other, packed) ||
      !read_tensor("v", args[1], a.k, other, a.v) ||
      !read_tensor("k_cache", args[2], a.k, other, a.k_cache) ||
      !read_tensor("v_cache", args[3], a.k, other, a.v_cache) || !writable("k_cache", a.k_cache) ||
      !writable("v_cache", a.v_cache))
    return nullptr;
  if (given(args[4])) {
    if (!read_tensor("q", args[4], a.k, other, a.q) ||
        !read_tensor("q_out", args[5], a.k, other, a.q_out) || !writable("q_out", a.q_out))
      return nullptr;
    p.heads_q = a.q.shape[1];
  }
  for (const auto& [name, view] :
       {std::pair("v", &a.v), std::pair("k_cache", &a.k_cache), std::pair("v_cache", &a.v_cache),
        std::pair("q", &a.q), std::pair("q_out", &a.q_out)})
    if (view->rank > 0 && view->dtype != a.k.dtype) {
      fail(PyExc_TypeError, text("k is ", name_of(a.k.dtype), " and ", name, " ",
                                 name_of(view->dtype), ": all have one type; convert them"));
      return nullptr;
    }
  p.batch = a.k.shape[0];
  p.heads_kv = a.k.shape[1];
  p.seq_new = a.k.shape[2];
  p.head_dim = a.k.shape[3];
  p.head_dim_v = a.v.shape[3] == a.k.shape[3] ? 0 : a.v.shape[3];
  p.dtype = a.k.dtype;
  if (!read_lengths(args + 6, args[14], a) || !shapes_belong(a) ||
      !read_rotary(args[12], args[13], rotary, a) || !read_stream(args[18], a.k, a.options.stream))
    return nullptr;
  p.k_new.stride = a.k.stride;
  p.v_new.stride = a.v.stride;
  p.k.stride = a.k_cache.stride;
  p.v.stride = a.v_cache.stride;
  p.q.stride = a.q.stride;
  p.q_out.stride = a.q_out.stride;
  t.k_new = a.k.data;
  t.v_new = a.v.data;
  t.k = a.k_cache.data;
  t.v = a.v_cache.data;
  t.q = a.q.data;
  t.q_out = a.q_out.data;
  a.options.device = a.k.device;
  a.options.device_index = a.k.index;
  a.options.validate = validate != 0;
  return run_on(a.options, [&] { return append(p, t, a.options); });
}

}  // namespace greenfast::python
