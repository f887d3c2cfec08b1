"""Operands and results of a driver's ops, put into its memory between noise.

Here: `put`, `take`, values with special ones among them, attention by definition. Not here: tests; the fixture `call`
(`drivers/conftest.py`), for tests that need no more than values.
"""

import ml_dtypes
import numpy as np

from polygrad.driver import Ref
from polygrad_conformance.attention_checks import slopes, weights

PAD = 3  # elements in front of and behind operands and results
NOISE = 0xFF  # what the bytes of these are: NaN in every float dtype


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def put(driver, array, dtype=None, *, before=PAD, gap=0):
    """Return an operand, or room for a result, with so many elements of noise before it and before each row."""
    dtype = dtype or array.dtype.name
    rows = np.atleast_1d(array.astype(numpy_dtype(dtype)))
    wide = noise((*rows.shape[:-1], rows.shape[-1] + gap), rows.dtype)
    wide[..., gap:] = rows
    padded = np.concatenate([noise(before, rows.dtype), wide.reshape(-1), noise(PAD, rows.dtype)]).view(np.uint8)
    handle = driver.allocate(padded.nbytes)
    driver.op_write((_bytes(handle, padded.nbytes),), (), {"data": memoryview(padded)})
    strides = tuple(s // rows.itemsize for s in wide.strides) if array.ndim else ()
    return Ref(handle, before + gap, array.shape, strides, dtype)


def take(driver, ref):
    """Return a result that lies without gaps, after a look at what stands around it, and free it."""
    dtype = numpy_dtype(ref.dtype)
    size = int(np.prod(ref.shape))
    padded = np.empty((ref.offset + size + PAD) * dtype.itemsize, np.uint8)
    driver.op_read((), (_bytes(ref.handle, padded.nbytes),), {"into": memoryview(padded)})
    driver.free(ref.handle)
    before, value, after = np.split(padded, np.multiply((ref.offset, ref.offset + size), dtype.itemsize))
    assert (before == NOISE).all()
    assert (after == NOISE).all()
    return value.copy().view(dtype).reshape(ref.shape)


def noise(shape, dtype):
    return np.full(int(np.prod(shape)) * dtype.itemsize, NOISE, np.uint8).view(dtype).reshape(shape)


def _bytes(handle, nbytes):
    return Ref(handle, 0, (nbytes,), (1,), "uint8")


def drawn(rng, shape, dtype):
    """Return values with ties, and with NaN, infinities, both zeros and the least integer among them."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if "float" in dtype:
        x = np.round(rng.normal(size=shape) * 5).astype(np.float32)
        for special in (np.nan, -np.nan, np.inf, -np.inf, -0.0):
            x = np.where(rng.random(shape) < 0.04, np.float32(special), x)
        return x.astype(numpy_dtype(dtype))
    info = np.iinfo(dtype)
    x = np.clip(rng.integers(-300, 300, shape), max(info.min, -300), min(info.max, 300)).astype(dtype)
    return np.where(rng.random(shape) < 0.02, np.asarray(info.min, dtype), x)


def attention_and_slopes(q, k, v, g, scale, causal):
    """Return attention, the logarithms and the gradients by queries, keys and values, by definition."""
    p, lse = weights(q, k, scale, causal=causal)
    out = np.einsum("bhls,bshd->blhd", p, np.repeat(v, q.shape[2] // k.shape[2], 2))
    return out, lse, *slopes(q, k, v, g, scale, causal=causal)
