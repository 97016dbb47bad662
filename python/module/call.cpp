#include "call.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <greenfast/arithmetic.hpp>

namespace greenfast::python {
namespace {

constexpr std::int64_t kMostKeys = std::int64_t{1} << 30;  // of a sequence, as check() has it

Status attend(const Request& request, Attention* function) {
  const auto& [problem, tensors, options] = request;
  if (options.device != DeviceKind::cpu && !options.validate)
    return function(problem, tensors, options);
  Status status;
  Py_BEGIN_ALLOW_THREADS status = function(problem, tensors, options);
  Py_END_ALLOW_THREADS return status;
}

// One value, one for each (batch, head), or one for each block of each: the same for all three.
bool read_scales(PyObject* const* args, Call& call) {
  constexpr std::array<const char*, 3> names{"q_scale", "k_scale", "v_scale"};
  const Problem& p = call.problem;
  if (!given(args[kQScale]) && !given(args[kKScale]) && !given(args[kVScale])) return true;
  bool one = true, per_head = true, per_block = true;
  std::string shapes;
  const auto blocks = [&](int i) { return ceil_div(i == 0 ? p.seq_q : p.seq_kv, kScaleBlock); };
  for (int i = 0; i < 3; ++i) {
    View& view = call.scale[i];
    if (!given(args[kQScale + i]))
      return fail(PyExc_ValueError, text(names[i],
                                         " is missing: scales are given for Q, K and V, "
                                         "or for none"));
    if (!read_view(names[i], args[kQScale + i], view, Wanted::f32) ||
        !same_device(names[i], view, call.q))
      return false;
    const std::int64_t heads = i == 0 ? p.heads_q : p.heads_kv;
    std::int64_t elements = 1;
    for (int dim = 0; dim < view.rank; ++dim) elements *= view.shape[dim];
    one = one && elements == 1;
    per_head = per_head && view.rank == 2 && view.shape[0] == p.batch && view.shape[1] == heads &&
               contiguous(view);
    per_block = per_block && view.rank == 3 && view.shape[0] == p.batch && view.shape[1] == heads &&
                view.shape[2] == blocks(i) && contiguous(view);
    shapes += (i > 0 ? ", " : "") + shape_text(view);
  }
  if (!one && !per_head && !per_block)
    return fail(PyExc_ValueError,
                text("the scales of Q, K and V have shapes ", shapes,
                     ": all three hold one value, or are contiguous [", p.batch, ", ", p.heads_q,
                     "], [", p.batch, ", ", p.heads_kv, "], [", p.batch, ", ", p.heads_kv,
                     "], one for each (batch, head), or have one for each block of ", kScaleBlock,
                     " rows of those as a third dimension, ", blocks(0), " for Q, ", blocks(1),
                     " for K and V"));
  call.problem.scales = one        ? ScaleKind::tensor
                        : per_head ? ScaleKind::per_head
                                   : ScaleKind::per_block;
  call.tensors.q_scale = static_cast<const float*>(call.scale[0].data);
  call.tensors.k_scale = static_cast<const float*>(call.scale[1].data);
  call.tensors.v_scale = static_cast<const float*>(call.scale[2].data);
  return true;
}

// The features' tuple; without one nothing is given.
struct Features {
  PyObject* tuple = nullptr;
  PyObject* operator[](FeatureArgument which) const { return PyTuple_GetItem(tuple, which); }
  bool has(FeatureArgument which) const { return tuple != nullptr && given((*this)[which]); }
};

bool read_features(PyObject* object, Features& out) {
  if (!given(object)) return true;
  if (!PyTuple_Check(object) || PyTuple_Size(object) != kFeatureArguments)
    return fail(PyExc_TypeError,
                text("expected a tuple of ", static_cast<int>(kFeatureArguments), " features"));
  out.tuple = object;
  return true;
}

bool read_count(const char* name, PyObject* object, std::int64_t& out) {
  if (!read_int(object, out)) return false;
  if (out >= 0) return true;
  return fail(PyExc_ValueError, text(name, " is ", out, ": it may not be negative"));
}

// fp32, one for each query head, or one for each (batch, head) too.
bool read_per_head(const char* name, PyObject* object, const View& q, const Problem& p,
                   bool per_batch, const float*& out, bool& of_batch) {
  View view;
  if (!read_view(name, object, view, Wanted::f32) || !same_device(name, view, q)) return false;
  of_batch = per_batch && view.rank == 2;
  const bool fits = of_batch ? view.shape[0] == p.batch && view.shape[1] == p.heads_q
                             : view.rank == 1 && view.shape[0] == p.heads_q;
  if (!fits || !contiguous(view))
    return fail(
        PyExc_ValueError,
        text(name, " has shape ", shape_text(view), ": contiguous [Hq] = [", p.heads_q, "]",
             per_batch ? text(" or [B, Hq] = [", p.batch, ", ", p.heads_q, "]") : std::string(),
             " is expected"));
  out = static_cast<const float*>(view.data);
  return true;
}

// Dimensions count from the last, as everywhere; those that are 1 or missing are broadcast.
bool read_mask(PyObject* object, const View& q, Problem& p, const void*& out) {
  View view;
  if (!read_view("mask", object, view, Wanted::mask) || !same_device("mask", view, q)) return false;
  const std::array<std::int64_t, 4> wanted{p.batch, p.heads_q, p.seq_q, p.seq_kv};
  ArrayMask& mask = p.array_mask;
  mask.kind = view.element == Element::boolean ? MaskKind::boolean : MaskKind::additive;
  if (mask.kind == MaskKind::additive) mask.dtype = view.dtype;
  for (int back = 1; back <= view.rank; ++back) {
    const int dim = 4 - back, from = view.rank - back;
    if (view.shape[from] != wanted[dim] && view.shape[from] != 1)
      return fail(PyExc_ValueError,
                  text("mask has shape ", shape_text(view),
                       ": it must broadcast to [B, Hq, Sq, "
                       "Skv] = [",
                       wanted[0], ", ", wanted[1], ", ", wanted[2], ", ", wanted[3], "]"));
    mask.stride[dim] = view.shape[from] == 1 ? 0 : view.stride[from];
  }
  out = view.data;
  return true;
}

// What the arrays say of shapes: how many sequences there are, how long they may be.
bool read_sequences(const Features& features, const View& k, const View& q, Call& call) {
  Problem& p = call.problem;
  Tensors& t = call.tensors;
  Sequences& s = p.sequences;
  std::int64_t max_q = 0, max_kv = 0;
  if ((features.has(kMaxQ) && !read_count("max_q", features[kMaxQ], max_q)) ||
      (features.has(kMaxKv) && !read_count("max_kv", features[kMaxKv], max_kv)))
    return false;
  s.packed_q = features.has(kCuQ);
  s.packed_kv = features.has(kCuKv);
  if (s.packed_q) {
    if (!count_sequences("cu_q", features[kCuQ], q, t.cu_q, p.batch)) return false;
    s.total_q = p.seq_q;
    if (features.has(kMaxQ)) p.seq_q = max_q;
  } else if (features.has(kMaxQ)) {
    return fail(PyExc_ValueError, text("max_q is ", max_q,
                                       ", and q is not packed: q's shape says "
                                       "how long its rows are; pass cu_q, or leave max_q out"));
  }
  const bool paged = features.has(kPageTable);
  if (s.packed_kv) {
    s.total_kv = p.seq_kv;
    std::int64_t sequences = 0;
    if (!count_sequences("cu_kv", features[kCuKv], q, t.cu_kv, sequences)) return false;
    if (sequences != p.batch)
      return fail(PyExc_ValueError, text("cu_kv has ", sequences + 1, " entries: ", p.batch + 1,
                                         ", one more than there are sequences, are expected"));
    if (features.has(kMaxKv)) p.seq_kv = max_kv;
  } else if (features.has(kMaxKv) && !paged) {
    return fail(PyExc_ValueError,
                text("max_kv is ", max_kv,
                     ", and k and v are neither packed nor in pages: their "
                     "shape says how many keys there are; pass used_kv, or leave max_kv out"));
  }
  if (paged) {
    if (!read_page_table(features[kPageTable], q, p.batch, k, p.pages, t.page_table, p.seq_kv))
      return false;
    if (features.has(kMaxKv)) {
      if (max_kv > p.seq_kv)
        return fail(PyExc_ValueError,
                    text("max_kv is ", max_kv, ": a row of page_table has room for ", p.seq_kv,
                         " keys, in pages of ", p.pages.size, "; widen it, or lower max_kv"));
      p.seq_kv = max_kv;
    }
  }
  const struct {
    FeatureArgument which;
    const char* name;
    bool& flag;
    const std::int32_t*& data;
  } arrays[] = {{kUsedQ, "used_q", s.used_q, t.used_q},
                {kUsedKv, "used_kv", s.used_kv, t.used_kv},
                {kKvStart, "kv_start", s.kv_start, t.kv_start},
                {kKvIndex, "kv_index", s.kv_index, t.kv_index}};
  for (const auto& array : arrays) {
    if (!features.has(array.which)) continue;
    array.flag = true;
    if (!read_indices(array.name, features[array.which], q, p.batch, "one for each sequence",
                      array.data))
      return false;
  }
  if (s.kv_index) s.kv_rows = k.shape[0];
  return true;
}

// K's and V's shapes beside Q's, now that it is known how they lie.
bool check_shapes(const Call& call, bool bshd) {
  const View &q = call.q, &k = call.k, &v = call.v;
  const Problem& p = call.problem;
  const Sequences& s = p.sequences;
  if (s.packed_q && q.shape[0] != 1)
    return fail(PyExc_ValueError, text("q has batch ", q.shape[0], ": with cu_q its sequences lie ",
                                       bshd ? "in [total, Hq, D]" : "in [Hq, total, D]"));
  if (k.shape[3] != q.shape[3] ||
      (!s.packed_kv && !s.kv_index && !p.pages.used() && k.shape[0] != p.batch))
    return fail(PyExc_ValueError,
                text("k has batch ", k.shape[0], " and head_dim ", k.shape[3], ", q has ", p.batch,
                     " and ", q.shape[3], ": they must be equal"));
  if (s.packed_kv && k.shape[0] != 1)
    return fail(PyExc_ValueError,
                text("k has batch ", k.shape[0], ": with cu_kv its sequences lie ",
                     bshd ? "in [total, Hkv, D]" : "in [Hkv, total, D]"));
  if (!std::equal(v.shape.begin(), v.shape.begin() + 3, k.shape.begin()))
    return fail(PyExc_ValueError, text("v's [B, H, S, D] is ", shape_text(v), " and k's ",
                                       shape_text(k), ": they must be equal but for D"));
  return true;
}

bool read_outputs(PyObject* const* args, bool bshd, Call& call) {
  Problem& p = call.problem;
  const bool packed = p.sequences.packed_q;
  const std::int64_t rows = packed ? p.sequences.total_q : p.seq_q;
  const std::array<std::int64_t, 4> shape{call.q.shape[0], p.heads_q, rows, value_dim(p)};
  View& out = call.out;
  if (given(args[kOut])) {
    if (!read_view("out", args[kOut], out) || !same_device("out", out, call.q) ||
        !as_bhsd("out", out, bshd, packed))
      return false;
    if (out.shape != shape)
      return fail(PyExc_ValueError,
                  text("out has [B, H, S, D] ", shape_text(out), ": [", shape[0], ", ", shape[1],
                       ", ", shape[2], ", ", shape[3], "], the shape of q",
                       p.head_dim_v != 0 ? " with v's head_dim" : "", ", is expected"));
    if (out.readonly)
      return fail(PyExc_ValueError, "out is read-only: pass memory that may be written");
    p.out_dtype = out.dtype;
    p.o.stride = out.stride;
    call.tensors.o = out.data;
  } else {
    p.o = dense_layout(bshd ? Order::bshd : Order::bhsd, shape[0], shape[1], shape[2], shape[3]);
  }

  View& lse = call.lse;
  if (!given(args[kLse])) return true;
  if (!read_view("lse", args[kLse], lse, Wanted::f32) || !same_device("lse", lse, call.q))
    return false;
  const int first = packed ? 1 : 0;  // without the batch
  bool fits = lse.rank == 3 - first;
  for (int dim = 0; fits && dim < lse.rank; ++dim) fits = lse.shape[dim] == shape[dim + first];
  if (!fits)
    return fail(PyExc_ValueError,
                packed ? text("lse has shape ", shape_text(lse), ": [Hq, total] = [", p.heads_q,
                              ", ", rows, "] is expected")
                       : text("lse has shape ", shape_text(lse), ": [B, Hq, Sq] = [", p.batch, ", ",
                              p.heads_q, ", ", rows, "] is expected"));
  if (!contiguous(lse))
    return fail(PyExc_ValueError, text("lse is not contiguous: pass contiguous ",
                                       packed ? "[Hq, total]" : "[B, Hq, Sq]"));
  if (lse.readonly)
    return fail(PyExc_ValueError, "lse is read-only: pass memory that may be written");
  p.lse = true;
  call.tensors.lse = static_cast<float*>(lse.data);
  return true;
}

bool read_tensors(PyObject* const* args, const Features& features, Call& call) {
  View &q = call.q, &k = call.k, &v = call.v;
  if (!read_view("q", args[kQ], q) || !read_view("k", args[kK], k) || !read_view("v", args[kV], v))
    return false;
  std::int64_t bshd = 0;
  if (!read_int(args[kBshd], bshd)) return false;
  const bool packed_kv = features.has(kCuKv);
  const struct {
    const char* name;
    View& view;
    bool packed;
  } inputs[] = {{"q", q, features.has(kCuQ)}, {"k", k, packed_kv}, {"v", v, packed_kv}};
  for (const auto& [name, view, packed] : inputs) {
    if (!as_bhsd(name, view, bshd != 0, packed) || !same_device(name, view, q)) return false;
    if (view.dtype != q.dtype)
      return fail(PyExc_TypeError,
                  text("q is ", name_of(q.dtype), " and ", name, " ", name_of(view.dtype),
                       ": Q, K and V must have one type; convert them"));
  }
  Problem& p = call.problem;
  p.batch = q.shape[0];
  p.heads_q = q.shape[1];
  p.heads_kv = k.shape[1];
  p.seq_q = q.shape[2];
  p.seq_kv = k.shape[2];
  p.head_dim = q.shape[3];
  p.head_dim_v = v.shape[3] == q.shape[3] ? 0 : v.shape[3];
  p.dtype = q.dtype;
  p.out_dtype = default_out_dtype(q.dtype);
  p.q.stride = q.stride;
  p.k.stride = k.stride;
  p.v.stride = v.stride;
  call.tensors.q = q.data;
  call.tensors.k = k.data;
  call.tensors.v = v.data;
  if (features.tuple != nullptr && !read_sequences(features, k, q, call)) return false;
  return check_shapes(call, bshd != 0) && read_outputs(args, bshd != 0, call) &&
         read_scales(args, call);
}

bool read_biases(const Features& features, Call& call) {
  Problem& p = call.problem;
  Tensors& t = call.tensors;
  bool of_batch = false;
  std::int64_t splits = 0, accuracy = 0;
  if (features.has(kMask) && !read_mask(features[kMask], call.q, p, t.mask)) return false;
  if (features.has(kSinks)) {
    p.sinks = true;
    if (!read_per_head("sinks", features[kSinks], call.q, p, false, t.sinks, of_batch))
      return false;
  }
  if (features.has(kSlopes)) {
    if (!read_per_head("slopes", features[kSlopes], call.q, p, true, t.slopes, of_batch))
      return false;
    p.alibi = of_batch ? Alibi::per_batch_head : Alibi::per_head;
  }
  if (!read_count("chunk", features[kChunk], p.chunk) ||
      !read_count("max_splits", features[kMaxSplits], splits) ||
      !read_count("accuracy", features[kAccuracy], accuracy))
    return false;
  call.options.max_splits = static_cast<int>(std::min<std::int64_t>(splits, 1 << 20));
  call.options.validate = PyObject_IsTrue(features[kValidate]) == 1;
  p.accuracy = static_cast<Accuracy>(accuracy);
  return PyErr_Occurred() == nullptr;
}

// Where a position lies depends on the alignment, unless each sequence has as many rows as keys.
bool needs_alignment(const Problem& p, const Tensors& t) {
  if (p.mask.is_none() && p.alibi == Alibi::none && p.chunk == 0) return false;
  const Sequences& s = p.sequences;
  if (s.used_q || s.used_kv) return true;
  if (s.packed_q || s.packed_kv) return t.cu_q != t.cu_kv;
  return p.seq_q != p.seq_kv;
}

}  // namespace

bool read_indices(const char* name, PyObject* object, const View& q, std::int64_t count,
                  const char* meaning, const std::int32_t*& out) {
  View view;
  if (!read_view(name, object, view, Wanted::index) || !same_device(name, view, q)) return false;
  if (view.rank != 1 || view.shape[0] != count || !contiguous(view))
    return fail(PyExc_ValueError, text(name, " has shape ", shape_text(view), ": contiguous [",
                                       count, "], ", meaning, ", is expected"));
  out = static_cast<const std::int32_t*>(view.data);
  return true;
}

bool count_sequences(const char* name, PyObject* object, const View& q, const std::int32_t*& out,
                     std::int64_t& sequences) {
  View view;
  if (!read_view(name, object, view, Wanted::index) || !same_device(name, view, q)) return false;
  if (view.rank != 1 || view.shape[0] < 1 || !contiguous(view))
    return fail(PyExc_ValueError, text(name, " has shape ", shape_text(view),
                                       ": contiguous [sequences + 1], where each "
                                       "begins and ends, is expected"));
  out = static_cast<const std::int32_t*>(view.data);
  sequences = view.shape[0] - 1;
  return true;
}

bool read_page_table(PyObject* object, const View& q, std::int64_t batch, const View& k,
                     Pages& pages, const std::int32_t*& out, std::int64_t& keys) {
  View view;
  if (!read_view("page_table", object, view, Wanted::index) || !same_device("page_table", view, q))
    return false;
  if (view.rank != 2 || view.shape[0] != batch || (view.shape[1] > 1 && view.stride[1] != 1))
    return fail(PyExc_ValueError, text("page_table has shape ", shape_text(view), ": [", batch,
                                       ", pages of a sequence] with contiguous rows is expected"));
  if (k.shape[2] < 1)
    return fail(PyExc_ValueError,
                "k's pages have no keys: with page_table k and v are [blocks, "
                "Hkv, page, D], or [blocks, page, Hkv, D] with layout='bshd'");
  pages.size = k.shape[2];
  pages.count = k.shape[0];
  pages.row_stride = batch > 1 ? view.stride[0] : std::max(view.stride[0], view.shape[1]);
  out = static_cast<const std::int32_t*>(view.data);
  if (__builtin_mul_overflow(view.shape[1], pages.size, &keys)) keys = kMostKeys;
  keys = std::min(keys, kMostKeys);
  return true;
}

bool read_call(PyObject* const* args, Py_ssize_t count, Call& call) {
  if (count != kArguments)
    return fail(PyExc_TypeError,
                text("expected ", static_cast<int>(kArguments), " arguments, got ", count));
  Features features;
  if (!read_features(args[kFeatures], features) || !read_tensors(args, features, call))
    return false;
  if (features.tuple != nullptr && !read_biases(features, call)) return false;
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
  if (align == 2 && needs_alignment(p, call.tensors))
    return fail(PyExc_ValueError,
                text(!p.mask.is_none()        ? "the mask has"
                     : p.alibi != Alibi::none ? "slopes have"
                                              : "chunks have",
                     " no align and ",
                     p.seq_q != p.seq_kv ? text("Sq = ", p.seq_q, ", Skv = ", p.seq_kv, " differ")
                                         : std::string("the lengths of a sequence may differ"),
                     ": say align='top_left' (query i faces key i) or 'bottom_right' (the last "
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
  return read_stream(args[kStream], call.q, o.stream);
}

bool run(Request& request, PyObject* allocate, Attention* function) {
  const Scratch scratch(allocate, request.options);
  const Status status = attend(request, function);
  if (scratch.raised) return false;
  if (!status) raise(status);
  return status.ok();
}

}  // namespace greenfast::python
