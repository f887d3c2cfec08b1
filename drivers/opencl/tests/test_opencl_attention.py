"""Attention by the kernels for GPUs, on whatever device there is.

Here: the driver's two ops against their definition in float64, and which devices declare them.
Not here: attention as users call it.
"""

import numpy as np
import pytest

from polygrad.driver import Ref
from polygrad.driver.render.attention import CANDIDATES, FORWARD, KERNELS, MOST, Tiling, tiling_for
from polygrad_opencl import attention

SIZES = [
    # batch, rows, columns, heads, shared heads, features, value features, causal, dtype
    (2, 37, 70, 4, 2, 16, 8, True, "float32"),
    (1, 70, 37, 2, 2, 5, 7, False, "float32"),
]


def put(driver, array, offset=0):
    array = np.ascontiguousarray(array)
    flat = np.concatenate([np.full(offset, np.nan, array.dtype), array.reshape(-1)])
    handle = driver.allocate(flat.nbytes)
    strides = tuple(s // array.itemsize for s in array.strides)
    driver.op_write([Ref(handle, 0, flat.shape, (1,), str(array.dtype))], (), {"data": memoryview(flat.view(np.uint8))})
    return Ref(handle, offset, array.shape, strides, str(array.dtype))


def get(driver, ref):
    out = np.empty(ref.shape, ref.dtype)
    driver.op_read((), [ref], {"into": memoryview(out.reshape(-1).view(np.uint8))})
    return out.astype(np.float64)


def definition(q, k, v, g, scale, causal):
    share = q.shape[2] // k.shape[2]
    wide_k, wide_v = np.repeat(k, share, 2), np.repeat(v, share, 2)
    s = scale * np.einsum("blhd,bshd->bhls", q, wide_k)
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s
    lse = np.logaddexp.reduce(s, axis=-1)
    p = np.exp(s - lse[..., None])
    back = np.einsum("blhd,bshd->bhls", g, wide_v)
    back = scale * p * (back - (p * back).sum(-1, keepdims=True))
    by_keys, by_values = np.einsum("bhls,blhd->bshd", back, q), np.einsum("bhls,blhd->bshd", p, g)
    shared = [x.reshape(*k.shape[:3], share, x.shape[-1]).sum(3) for x in (by_keys, by_values)]
    return np.einsum("bhls,bshd->blhd", p, wide_v), lse, np.einsum("bhls,bshd->blhd", back, wide_k), *shared


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_attention_and_its_gradients(driver, sizes):
    batch, rows, columns, heads, shared, features, value_features, causal, dtype = sizes
    rng = np.random.default_rng(1)
    mine, theirs = (batch, rows, heads), (batch, columns, shared)
    shapes = [(*mine, features), (*theirs, features), (*theirs, value_features), (*mine, value_features)]
    arrays = [rng.normal(size=s).astype(dtype) for s in shapes]
    want = definition(*[a.astype(np.float64) for a in arrays], 0.3, causal)
    q, k, v, g = (put(driver, a, offset) for a, offset in zip(arrays, (0, 1, 4, 2), strict=True))
    blanks = [np.full(w.shape, np.nan, dtype) for w in want]
    out, lse, *slopes = (put(driver, b, 3) for b in blanks)
    driver.attention.forward([out, lse], [q, k, v], scale=0.3, causal=causal)
    driver.attention.backward(slopes, [q, k, v, out, lse, g], scale=0.3, causal=causal)
    for ref, value in zip((out, lse, *slopes), want, strict=True):
        np.testing.assert_allclose(get(driver, ref), value, atol=3e-6)
    for ref in (q, k, v, g, out, lse, *slopes):
        driver.free(ref.handle)


def test_gradients_by_way_of_kept_slopes(driver):
    """What CUDA's driver does with memory to spare: the same text, so that it is tested without a GPU, too."""
    rng = np.random.default_rng(2)
    batch, rows, columns, heads, shared, features = 2, 70, 101, 4, 2, 12
    mine, theirs = (batch, rows, heads, features), (batch, columns, shared, features)
    arrays = [rng.normal(size=s).astype(np.float32) for s in (mine, theirs, theirs, mine)]
    want = definition(*[a.astype(np.float64) for a in arrays], 0.3, True)
    q, k, v, g = (put(driver, a) for a in arrays)
    out, lse = put(driver, want[0].astype(np.float32)), put(driver, want[1].astype(np.float32))
    dq, dk, dv = (put(driver, np.full(w.shape, np.nan, np.float32)) for w in want[2:])
    delta = put(driver, np.full((batch, heads, rows), np.nan, np.float32))
    each = 2  # heads of keys at once, of four
    slopes = put(driver, np.full((each * heads // shared, columns, 72), np.nan, np.float32))

    def run(kernel, refs, numbers, strided, groups, scaled=True):
        tiling = Tiling(features, features, 4, 1)
        text = attention.text_of(kernel, tiling, "float32", causal=True, wide=True, unrolled=False, kept=True)
        handles = [(None, r.handle) for r in refs]
        steps = [s for r in strided for s in r.strides[:3]]
        given = [(attention.LONG, n) for n in (*numbers, batch, rows, columns, heads, shared, *steps)]
        end = [(np.dtype(np.float32), 0.3)] if scaled else []
        driver.session.run(text, kernel, (256 * groups,), (256,), [*handles, *given, *end])

    run("attention_delta", (out, g, delta), (0, 0), (out, g), -(-batch * heads * rows // 64), scaled=False)
    for skip in range(0, batch * shared, each):
        refs = (q, k, v, lse, g, delta, dk, dv, slopes)
        run("attention_keys", refs, (*(0,) * 7, skip, each), (g, lse, q, k, v), each * -(-columns // 64))
        run("attention_gather", (k, slopes, dq), (0, 0, skip, each), (k,), each * heads // shared * -(-rows // 64))
    for ref, value in zip((dq, dk, dv), want[2:], strict=True):
        np.testing.assert_allclose(get(driver, ref), value, atol=3e-6)
    for ref in (q, k, v, g, out, lse, dq, dk, dv, delta, slopes):
        driver.free(ref.handle)


def test_a_cpu_declares_attention_only_in_the_style_of_gpus(driver, monkeypatch):
    monkeypatch.setenv("POLYGRAD_OPENCL_STYLE", "")
    assert attention.able(driver.session) == (driver.session.kind != "cpu")
    monkeypatch.setenv("POLYGRAD_OPENCL_STYLE", "gpu")
    assert attention.able(driver.session) == (driver.session.device.max_work_group_size >= 256)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tiles_fit_the_memory_of_a_group(kernel):
    for features in (1, 16, 64, 100, 128):
        rooms = ((4, 48 << 10), (4, 227 << 10), (8, 48 << 10))
        for size, room in rooms if features <= 64 else rooms[:2]:
            found = tiling_for(kernel, features, features, size, room, room=True)
            assert found.vectors(kernel, room=True) * 4 * size <= room
            larger = [c for c in CANDIDATES[: CANDIDATES.index(found[2:])] if kernel == FORWARD or c[0] <= MOST]
            assert all(Tiling(features, features, *c).vectors(kernel, room=True) * 4 * size > room for c in larger)


def test_a_text_takes_the_memory_that_its_tiling_says():
    for kernel in KERNELS:
        tiling = Tiling(20, 33, 2, 1)
        text = attention.text_of(kernel, tiling, "float32", causal=True, wide=False)
        formula = next(x for x in text.splitlines() if x.startswith("    POOL(")).strip()[4:]
        numbers = {"BM": 32, "BN": 16, "SQ": 5, "SV": 9, "SP": 5, "EQ": 1, "EV": 1, "ROOM": 1, "R": 2}
        formula = formula.replace("(EQ > EV ? EQ : EV)", "EV").replace("/", "//")
        assert eval(formula, numbers) == tiling.vectors(kernel, room=True)  # C that is Python, too
