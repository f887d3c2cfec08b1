"""``pg.einsum``: NumPy's notation, three and more operands, derivatives, refusals.

Here: what the table's own samples do not show. Not here: matrix products.
"""

import sys

import numpy as np
import pytest

import polygrad as pg

NOTATIONS = [
    ("ij,jk->ki", (2, 3), (3, 4)), ("i...,i...->...", (2, 3), (2, 3)), ("...ij,...j", (2, 1, 3, 4), (5, 4)),
    ("abc,cd,be->ade", (2, 3, 4), (4, 2), (3, 2)), ("ii,jj->ij", (2, 2), (3, 3)), ("ijj->i", (2, 3, 3)),
    ("i,j,k,l->lkji", (2,), (3,), (1,), (2,)), ("ij,ji->", (2, 3), (3, 2)), ("...->...", (2, 3)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)), ("a,ab,bc,cd->d", (2,), (2, 3), (3, 2), (2, 4)),
    ("i...->...i", (2, 3, 4)), ("ij,k->", (2, 3), (2,)), ("i,i->i", (1,), (4,)),
]  # fmt: skip


@pytest.mark.parametrize("order", ["opt_einsum", "left to right"])
@pytest.mark.parametrize(("text", "shapes"), [(t, s) for t, *s in NOTATIONS])
def test_a_notation_means_what_numpy_says(text, shapes, order, device, rng, monkeypatch):
    if order != "opt_einsum":
        monkeypatch.setitem(sys.modules, "opt_einsum", None)
    operands = [rng.standard_normal(s) for s in shapes]
    got = pg.einsum(text, *[pg.asarray(x, dtype=pg.float32) for x in operands])
    np.testing.assert_allclose(got.numpy(), np.einsum(text, *operands), rtol=1e-4, atol=1e-4)


def test_axes_may_be_lists_of_numbers(rng):
    a, b = rng.standard_normal((2, 3)), rng.standard_normal((3, 4))
    x, y = pg.asarray(a), pg.asarray(b)
    np.testing.assert_allclose(pg.einsum(x, [0, 1], y, [1, 2], [2, 0]).numpy(), (a @ b).T)
    np.testing.assert_allclose(pg.einsum(x, [0, 1], y, [1, 2]).numpy(), a @ b)
    np.testing.assert_allclose(pg.einsum(x, [..., 0], [0, ...]).numpy(), a.T)


def test_integers_stay_integers_and_complex_numbers_are_contracted(rng):
    assert pg.einsum("i,i->", pg.asarray([1, 2]), pg.asarray([3, 4])).item() == 11
    a = rng.standard_normal((2, 3)) + 1j * rng.standard_normal((2, 3))
    np.testing.assert_allclose(pg.einsum("ij,kj->ik", pg.asarray(a), pg.asarray(a)).numpy(), a @ a.T)


@pytest.mark.parametrize("text", ["ij,jk,kl->il", "iij,j->i", "...i,...i->..."])
def test_derivatives_to_second_order(text, rng):
    shapes = {"ij,jk,kl->il": [(2, 3), (3, 2), (2, 2)], "iij,j->i": [(2, 2, 3), (3,)]}.get(text, [(2, 3), (2, 3)])
    operands = [pg.asarray(rng.standard_normal(s)) for s in shapes]
    pg.testing.gradcheck(lambda *xs: pg.einsum(text, *xs), *operands)
    pg.testing.gradgradcheck(lambda *xs: pg.einsum(text, *xs), *operands)


@pytest.mark.parametrize(
    ("text", "shapes", "why"),
    [
        ("ij,jk", [(2, 3)], "they are of 2 operands, but 1 are given"),
        ("ijk", [(2, 3)], "'ijk' names 3 axes of an operand that has 2"),
        ("ij,jk", [(2, 3), (4, 2)], "index 'j' has sizes 3 and 4"),
        ("ij->ik", [(2, 3)], "the result names 'k', which no operand has"),
        ("ij->ii", [(2, 3)], "the result names 'i' twice"),
        ("i1", [(2, 3)], "'1' is no letter"),
    ],
)
def test_subscripts_that_do_not_fit_are_refused_in_a_sentence(text, shapes, why):
    with pytest.raises(pg.ShapeError, match="cannot read the subscripts") as caught:
        pg.einsum(text, *[pg.zeros(s) for s in shapes])
    assert why in str(caught.value)


def test_a_chain_of_three_is_contracted_in_the_cheaper_order():
    pytest.importorskip("opt_einsum", reason="not run: needs opt_einsum")
    from polygrad.ops.einsum import _order

    shapes = [pg.zeros(s)._node for s in ((50, 2), (2, 50), (50, 1))]
    assert _order("ab,bc,cd->ad", shapes)[0] == (1, 2)
