"""Attention by the kernels for GPUs, on whatever device there is.

Here: the driver's two ops against their definition in float64, and which devices declare them.
Not here: attention as users call it.
"""

import functools

import numpy as np
import pytest

from polygrad.driver.render.attention import CANDIDATES, FORWARD, KERNELS, MOST, Tiling, tiling_for
from polygrad_opencl import attention
from support.operands import attention_and_slopes, put, take

SIZES = [
    # batch, rows, columns, heads, shared heads, features, value features, causal, dtype
    (2, 37, 70, 4, 2, 16, 8, True, "float32"),
    (1, 70, 37, 2, 2, 5, 7, False, "float32"),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_attention_and_its_gradients(driver, sizes):
    batch, rows, columns, heads, shared, features, value_features, causal, dtype = sizes
    rng = np.random.default_rng(1)
    mine, theirs = (batch, rows, heads), (batch, columns, shared)
    shapes = [(*mine, features), (*theirs, features), (*theirs, value_features), (*mine, value_features)]
    arrays = [rng.normal(size=s).astype(dtype) for s in shapes]
    want = attention_and_slopes(*[a.astype(np.float64) for a in arrays], 0.3, causal)
    q, k, v, g = (put(driver, a, before=offset) for a, offset in zip(arrays, (0, 1, 4, 2), strict=True))
    out, lse, *slopes = (put(driver, np.full(w.shape, np.nan), dtype) for w in want)
    driver.attention.forward([out, lse], [q, k, v], scale=0.3, causal=causal)
    driver.attention.backward(slopes, [q, k, v, out, lse, g], scale=0.3, causal=causal)
    for ref, value in zip((out, lse, *slopes), want, strict=True):
        np.testing.assert_allclose(take(driver, ref), value, atol=3e-6)
    for ref in (q, k, v, g):
        driver.free(ref.handle)


def test_gradients_by_way_of_kept_slopes(driver):
    """What CUDA's driver does with memory to spare: the same text, so that it is tested without a GPU, too."""
    rng = np.random.default_rng(2)
    batch, rows, columns, heads, shared, features = 2, 70, 101, 4, 2, 12
    mine, theirs = (batch, rows, heads, features), (batch, columns, shared, features)
    arrays = [rng.normal(size=s).astype(np.float32) for s in (mine, theirs, theirs, mine)]
    want = attention_and_slopes(*[a.astype(np.float64) for a in arrays], 0.3, True)
    blank = functools.partial(np.full, fill_value=np.nan, dtype=np.float32)
    q, k, v, g = (put(driver, a, before=0) for a in arrays)
    out, lse = (put(driver, w, "float32", before=0) for w in want[:2])
    dq = put(driver, blank(mine), before=0)
    both = put(driver, blank((batch, columns, 2 * shared, features)), before=0)  # dk and dv, side by side
    dk, dv = (both._replace(offset=k * shared * features, shape=theirs) for k in range(2))
    delta = put(driver, blank((batch, heads, rows)), before=0)
    each = 2  # heads of keys at once, of four
    slopes = put(driver, blank((each * heads // shared, columns, 72)), before=0)

    def run(kernel, refs, numbers, strided, groups, scaled=True, height=4):
        tiling = Tiling(features, features, height, 1)
        text = attention.text_of(kernel, tiling, "float32", causal=True, wide=True, unrolled=False, kept=True)
        handles = [(None, r.handle) for r in refs]
        steps = [s for r in strided for s in r.strides[:3]]
        given = [(attention.LONG, n) for n in (*numbers, batch, rows, columns, heads, shared, *steps)]
        end = [(np.dtype(np.float32), 0.3)] if scaled else []
        driver.session.run(text, kernel, (256 * groups,), (256,), [*handles, *given, *end])

    run("attention_delta", (out, g, delta), (0, 0), (out, g), -(-batch * heads * rows // 64), scaled=False)
    for skip in range(0, batch * shared, each):
        refs = (q, k, v, lse, g, delta, dk, dv, slopes)
        run(
            "attention_keys",
            refs,
            (*(0,) * 6, dv.offset, skip, each),
            (dk, dv, g, lse, q, k, v),
            each * -(-columns // 64),
        )
        groups = each * heads // shared * -(-rows // 128)  # their tiles need not be those of the slopes
        run("attention_gather", (k, slopes, dq), (0, 0, skip, each), (k, dq), groups, height=8)
    np.testing.assert_allclose(take(driver, dq), want[2], atol=3e-6)
    np.testing.assert_allclose(take(driver, both), np.concatenate(want[3:], axis=2), atol=3e-6)
    for ref in (q, k, v, g, out, lse, delta, slopes):
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
