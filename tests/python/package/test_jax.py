"""JAX's arrays, on the CPU."""
import numpy as np
import pytest

import greenfast
import reference

jax = pytest.importorskip("jax")


@pytest.mark.parametrize("dtype, error", [("float32", 3e-6), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_arrays_come_back_as_jaxs(dtype, error):
    q, k, v = (jax.numpy.asarray(x, dtype) for x in reference.inputs())
    out, lse = greenfast.attention(q, k, v, return_lse=True)
    want, want_lse = reference.attention(*(np.asarray(x, np.float32) for x in (q, k, v)))
    assert isinstance(out, jax.Array) and out.dtype == q.dtype and isinstance(lse, jax.Array)
    np.testing.assert_allclose(np.asarray(out, np.float32), want, atol=error)
    np.testing.assert_allclose(lse, want_lse, atol=3e-6)


def test_a_traced_array_holds_no_memory():
    q, k, v = (jax.numpy.asarray(x) for x in reference.inputs())
    with pytest.raises(Exception, match="traced"):
        jax.jit(lambda x: greenfast.attention(x, k, v))(q)


def test_masks_and_lengths_of_jax():
    q, k, v = (jax.numpy.asarray(x) for x in reference.inputs())
    mask, used = jax.numpy.asarray(np.random.default_rng(0).random((37, 53)) < 0.6), jax.numpy.asarray([53, 8], dtype=jax.numpy.int32)
    out = greenfast.attention(q, k, v, mask=mask, used_kv=used)
    for where, own, _ in reference.sequences(*(np.array(x) for x in (q, k, v)), mask=np.asarray(mask), used_kv=np.asarray(used)):
        np.testing.assert_allclose(np.asarray(out)[where], own, atol=4e-6)
