"""The cpu driver's convolutions and maxima over windows, cut into blocks of any size, on one thread and on several.

Here: the modules behind the ops against definitions, whether BLAS gets its threads back. Not here: ``pg.conv2d``, whose
tests run on every device present.
"""

import math
import threading

import numpy as np
import pytest

from polygrad.driver import Ref, blas
from polygrad_conformance import window_checks
from polygrad_cpu import convolution, pooling
from polygrad_cpu.settings import Settings

WAYS = {
    "as shipped": Settings(threads=2),
    "blocks of 20 bytes on two threads": Settings(2, 20, 1, 1),
    "blocks of 64 bytes on one thread": Settings(1, 64, 10**12, 1),
    "blocks of 1 KiB on three threads": Settings(3, 1024, 1, 1),
}
OPS = {
    "y": convolution.convolution,
    "x": convolution.input_gradient,
    "w": convolution.weight_gradient,
    "maxima": pooling.max_pool,
    "shares": pooling.max_pool_gradient,
}


def run(name, operands, attrs, shape, settings):
    out = np.full(shape, 7, operands[0].dtype)

    def ref(a):
        strides = tuple(s // a.itemsize for s in np.empty(a.shape, a.dtype).strides)
        return Ref(a.reshape(-1).view(np.uint8), 0, a.shape, strides, a.dtype.name)

    OPS[name]([ref(out)], [ref(np.ascontiguousarray(a)) for a in operands], attrs, settings)
    return out


def cases(name, dtype, seed):
    rng = np.random.default_rng(seed)
    if name in ("maxima", "shares"):
        return getattr(window_checks, name)(rng, dtype)
    return window_checks.convolutions(rng, dtype, name)


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("dtype", window_checks.ALL_FLOATS)
@pytest.mark.parametrize("name", OPS)
def test_results_are_right_however_they_are_cut(name, dtype, settings):
    for ins, attrs, shape, want in cases(name, dtype, 3):
        got = run(name, ins, attrs, shape, settings).astype(np.float64)
        limit = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
        np.testing.assert_allclose(got, want, atol=limit * max(1, np.nanmax(np.abs(want))))


# Small operands take ways that large ones do not: sums turned at their end, gradients as convolutions.
LIMITS = {
    "as shipped": {},
    "as large weights": {"LARGE": 0},
    "windows added up": {"ADDED": 0},
    "a product for each row of the kernel": {"BANDS": 0, "DEEP": 0, "FEW": 0},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("seed", range(24))
def test_random_geometries(seed, limits, monkeypatch):
    for name, value in limits.items():
        monkeypatch.setattr(convolution, name, value)
    convolution._blocks.cache_clear()
    rng = np.random.default_rng(seed)
    rank = 1 + seed % 3
    groups, inputs, outputs, images = (int(n) for n in rng.integers(1, 5, 4))
    draw = [tuple(int(n) for n in rng.integers(a, b, rank)) for a, b in ((1, 4), (1, 4), (0, 4), (0, 4), (1, 3))]
    windows = window_checks.Windows(*draw)
    facts = zip(windows.kernel, windows.before, windows.after, windows.dilation, strict=True)
    sizes = tuple(max(1, d * (k - 1) + 1 - b - a) + int(rng.integers(0, 7)) for k, b, a, d in facts)
    given = {
        "x": rng.standard_normal((images, groups * inputs, *sizes)),
        "w": rng.standard_normal((groups * outputs, inputs, *windows.kernel)),
        "y": rng.standard_normal((images, groups * outputs, *windows.places(sizes))),
    }
    for settings in WAYS.values():
        for wanted, order in (("y", "xw"), ("x", "yw"), ("w", "xy")):
            want = window_checks._convolution(**{k: v.copy() for k, v in given.items()}, groups=groups, windows=windows,
                                              wanted=wanted)  # fmt: skip
            attrs = windows.attrs() | {"groups": groups}
            got = run(wanted, [given[k] for k in order], attrs, want.shape, settings)
            np.testing.assert_allclose(got, want, atol=1e-10)


@pytest.mark.parametrize("size", [1, 7, 64, 128])
@pytest.mark.parametrize("most", [1, 5, 64, 1000])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_blocks_are_alike_and_as_many_for_each_thread(size, most, parts):
    step = convolution._even(size, most, parts)
    assert 1 <= step <= min(size, most)
    cuts = [cut.stop - cut.start for cut in convolution._cut(size, step)]
    assert len(cuts) <= math.ceil(math.ceil(size / most) / parts) * parts  # the fewest that threads can share evenly


@pytest.mark.parametrize("dtype", window_checks.ALL_FLOATS)
@pytest.mark.parametrize("seed", range(12))
def test_gradients_of_windows_side_by_side(seed, dtype):
    rng = np.random.default_rng(seed)
    rank = 1 + seed % 3
    kernel = tuple(int(n) for n in rng.integers(1, 4, rank))
    sizes = tuple(k * int(rng.integers(1, 5)) + int(rng.integers(0, k)) for k in kernel)  # some have a rest
    x = window_checks._drawn(rng, dtype, 3, 2, *sizes)
    if seed % 2:  # many are equal, some windows have no greatest element
        x = np.round(x * 2)
        x[rng.random(x.shape) < 0.1] = np.nan
        x[rng.random(x.shape) < 0.2] = -np.inf
    attrs = {"kernel": kernel, "stride": kernel, "before": (0,) * rank, "after": (0,) * rank, "dilation": (1,) * rank}
    places = tuple(n // k for n, k in zip(sizes, kernel, strict=True))
    for settings in WAYS.values():
        y = run("maxima", [x], attrs, (3, 2, *places), settings)
        g = window_checks._drawn(rng, dtype, *y.shape)
        want = np.zeros(x.shape)
        for at in np.ndindex(y.shape):
            inside = (*at[:2], *[slice(i * k, i * k + k) for i, k in zip(at[2:], kernel, strict=True)])
            np.testing.assert_array_equal(np.float64(y[at]), x[inside].astype(np.float64).max())
            wins = x[inside] == y[at]
            want[inside] = wins * (np.float64(g[at]) / max(1, wins.sum()))
        got = run("shares", [g, x, y], attrs, x.shape, settings).astype(np.float64)
        np.testing.assert_allclose(got, want, rtol={"float16": 2e-3, "bfloat16": 1e-2}.get(dtype, 1e-6), atol=1e-6)


def test_a_window_of_many_equal_elements_shares_among_all():
    x = np.ones((1, 1, 20, 20), np.float32)  # more than a byte counts
    attrs = {"kernel": (20, 20), "stride": (20, 20), "before": (0, 0), "after": (0, 0), "dilation": (1, 1)}
    one = np.ones((1, 1, 1, 1), np.float32)
    np.testing.assert_allclose(run("shares", [one, x, one], attrs, x.shape, WAYS["as shipped"]), 1 / 400)


def test_a_sum_over_many_images_is_the_same_in_every_run(rng):
    x = rng.standard_normal((64, 8, 20, 20)).astype(np.float32)
    y = rng.standard_normal((64, 16, 20, 20)).astype(np.float32)
    attrs = {"stride": (1, 1), "before": (1, 1), "after": (1, 1), "dilation": (1, 1), "groups": 1}
    settings = Settings(2, 1 << 14, 1, 1)
    first = run("w", [x, y], attrs, (16, 8, 3, 3), settings)
    for _ in range(5):
        assert (run("w", [x, y], attrs, (16, 8, 3, 3), settings) == first).all()


def test_blas_gets_its_threads_back_when_the_last_has_left():
    if not blas.adjustable():
        pytest.skip("not run: needs a BLAS whose threads can be set")
    tell, put = blas._functions()
    before = tell()
    put(2)
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with blas.single():
            inside.set()
            go_on.wait()

    try:
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait()
        with blas.single():
            assert tell() == 1
        assert tell() == 1
        go_on.set()
        thread.join()
        assert tell() == 2
        with pytest.raises(ZeroDivisionError), blas.single():
            1 / 0
        assert tell() == 2
    finally:
        go_on.set()
        put(before)


def test_infinities_are_added_up_without_a_warning():
    x, y = np.ones((4, 2, 6, 6), np.float32), np.full((4, 3, 4, 4), np.inf, np.float32)
    y[2:] *= -1  # the last images, which another thread adds up
    attrs = {"stride": (1, 1), "before": (0, 0), "after": (0, 0), "dilation": (1, 1), "groups": 1}
    for settings in WAYS.values():
        assert np.isnan(run("w", [x, y], attrs, (3, 2, 3, 3), settings)).all()
