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


def test_arrays_of_jax_are_never_written():
    q, k, v = (jax.numpy.asarray(x) for x in reference.inputs())
    out, lse = jax.numpy.zeros_like(q), jax.numpy.zeros(q.shape[:3])
    caches = [jax.numpy.zeros((2, 2, 60, 32)) for _ in range(2)]
    angles = {"cos": jax.numpy.ones((60, 8)), "sin": jax.numpy.zeros((60, 8))}
    for call in (lambda: greenfast.attention(q, k, v, out=out), lambda: greenfast.attention(q, k, v, lse=lse), lambda: greenfast.append(k, v, *caches),
                 lambda: greenfast.merge(q, lse, q, lse, out=out), lambda: greenfast.merge(q, lse, q, lse, lse=lse),
                 lambda: greenfast.append(k, v, *[np.zeros(x.shape, np.float32) for x in caches], q=q[:, :, :1].repeat(53, 2), q_out=q, **angles)):
        with pytest.raises(TypeError, match="JAX array, which nothing may change"):
            call()
    assert not out.any() and not lse.any() and not any(x.any() for x in caches)
