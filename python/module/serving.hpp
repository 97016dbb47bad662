// What goes round attention in a serving engine: merge and append.
#pragma once

#include "view.hpp"

namespace greenfast::python {

/// (a, lse_a, b, lse_b, out, lse or None, bshd, stream or None)
PyObject* py_merge(PyObject*, PyObject* const* args, Py_ssize_t count);
/// (k, v, k_cache, v_cache, q, q_out, cu_new, used_new, used_kv, kv_start, kv_index, page_table, cos,
/// sin, max_new, rotary, bshd, validate, stream); those from q to max_new may be None, and stream.
PyObject* py_append(PyObject*, PyObject* const* args, Py_ssize_t count);

}  // namespace greenfast::python
