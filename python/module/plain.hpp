// The shortest way from greenfast.attention to the library, for calls that say no more than tensors
// of PyTorch, an output, a scale, causal, a softcap or a variant.
#pragma once

#include "call.hpp"

namespace greenfast::python {

/// The types of tensors whose memory may be read as it is, and what is asked of PyTorch
/// (greenfast/torch.py). False: this PyTorch cannot be asked so.
PyObject* py_plain_ready(PyObject*, PyObject* args, PyObject* keywords);

/// (q, k, v, out or None, the other keywords of greenfast.attention as a dict). Returns the output;
/// None, with nothing done, for every call that is not plain or cannot be read, which the
/// long way then answers. What the library refuses is raised here, in its words, which are the same
/// there.
PyObject* py_plain(PyObject*, PyObject* const* args, Py_ssize_t count);

/// (q, k, v, is_causal, scale, enable_gqa): the same for scaled_dot_product_attention, aligned top-left;
/// None also for what the library refuses.
PyObject* py_plain_sdpa(PyObject*, PyObject* const* args, Py_ssize_t count);

}  // namespace greenfast::python
