"""The cpu driver's matrix products in pieces: every layout that BLAS may be given, and results that cover all of it.

Here: `product.matmul` and `matmul_add` on several threads against float64, `blas.pieces` alone. Not here: ``a @ b`` and
its sums, whose tests run on every device present.
"""

import numpy as np
import pytest

from polygrad.driver import Ref, blas
from polygrad_cpu.product import matmul, matmul_add


def of(array):
    base = array
    while base.base is not None:
        base = base.base
    offset = (array.ctypes.data - base.ctypes.data) // array.itemsize
    return Ref(
        base.reshape(-1).view(np.uint8),
        offset,
        array.shape,
        tuple(s // array.itemsize for s in array.strides),
        "float32",
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("stack", "m", "k", "n"),
    [((), 300, 200, 177), ((), 17, 900, 1111), ((), 1200, 800, 9), ((3,), 120, 150, 161), ((5, 2), 101, 99, 100),
     ((2, 9), 90, 80, 90)],
)  # fmt: skip
def test_a_product_in_pieces_is_the_product(stack, m, k, n, threads):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((*stack, *shape), dtype=np.float32) for shape in ((m, k), (n, k)))
    across = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    want = x.astype(np.float64) @ y.astype(np.float64).swapaxes(-1, -2)
    shared = [(y, want), (np.broadcast_to(y[(0,) * len(stack)], y.shape), None)]
    for left in (x, across):
        for right, expected in shared:
            right = right.swapaxes(-1, -2)
            expected = left.astype(np.float64) @ right.astype(np.float64) if expected is None else expected
            out = np.full((*stack, m, n), np.nan, np.float32)
            matmul(of(out), of(left), of(right), threads)
            np.testing.assert_allclose(out, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("row", [False, True])
@pytest.mark.parametrize(("stack", "m", "k", "n"), [((), 5, 3, 4), ((), 300, 200, 177), ((2, 9), 90, 80, 90)])
def test_each_piece_gets_its_part_of_the_addend(stack, m, k, n, row, shared, threads):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((*stack, m, k), dtype=np.float32)
    y = rng.standard_normal((k, n) if shared else (*stack, k, n), dtype=np.float32)
    y = np.broadcast_to(y, (*stack, k, n))  # one matrix for all makes one tall product
    c = np.broadcast_to(rng.standard_normal(n if row else (*stack, m, n), dtype=np.float32), (*stack, m, n))
    want = x.astype(np.float64) @ y + c
    for activation, expected in (("", want), ("relu", np.maximum(want, 0))):
        out = np.full((*stack, m, n), np.nan, np.float32)
        matmul_add(of(out), of(x), of(y), of(c), activation, threads)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("shape", [(1, 1), (33, 40), (40, 33), (5000, 3), (7, 8, 9), (2, 11, 3, 4), (1, 1, 600, 20)])
def test_pieces_cover_a_result_once(shape, threads):
    covered = np.zeros(shape, np.int64)
    for left, right, at in blas.pieces(shape, threads):
        covered[at] += 1
        assert (*left[:-2], left[-2]) == (*at[:-2], at[-2])
        assert (*right[:-2], right[-1]) == (*at[:-2], at[-1])
    assert (covered == 1).all()
