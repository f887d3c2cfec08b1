"""Special functions: values against mpmath, special points, derivatives, dtypes, and what a kernel has to hold.

Here: `pg.special` on every device. Not here: `erf`, `softmax` and what else `pg` has too (`test_ops_reference.py`).
"""

import math
import zlib

import mpmath
import numpy as np
import pytest

import polygrad as pg
from polygrad.array.functions import NAMESPACES
from polygrad.array.tree import flatten
from polygrad.driver.ir import MANDATORY, SCALAR_OPS
from polygrad.driver.types import Limits
from polygrad.ops.special_gamma import _cotangent_slopes
from polygrad.ops.table import TABLE
from polygrad.schedule.body import emitted
from polygrad.testing.draw import Draw

special = pg.special
inf, nan = math.inf, math.nan
ROOT2 = mpmath.sqrt(2)


def op_of(name):
    return TABLE.get(f"special_{name}") or TABLE[name]


OWN = [name for name in NAMESPACES["special"] if "main" not in op_of(name).where.split()]


def normal(mp, x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def spread(rng, low, high, n=60):
    """Return numbers of all magnitudes from 10 ** low to 10 ** high."""
    return 10 ** rng.uniform(low, high, n)


# Each function of one operand: what mpmath says of it, where it is looked at, and the ULPs that it may be off.
ONE = {
    "erfc": (lambda mp, x: mp.erfc(x), lambda r: [*r.uniform(-6, 9, 80), *r.uniform(0, 26, 40), *spread(r, -10, 0)], 8),
    "erfcx": (lambda mp, x: mp.exp(x * x) * mp.erfc(x), lambda r: [*r.uniform(-4, 6, 80), *spread(r, -10, 8)], 8),
    "ndtr": (normal, lambda r: [*r.uniform(-8, 8, 80), *r.uniform(-37, 0, 40), *spread(r, -10, 0)], 8),
    "log_ndtr": (
        lambda mp, x: mp.log(normal(mp, x)) if x < 5 else mp.log1p(-normal(mp, -x)),
        lambda r: [*r.uniform(-8, 8, 80), *-spread(r, -3, 4)],
        8,
    ),
    "gammaln": (
        lambda mp, x: mp.log(abs(mp.gamma(x))) if x < 1e4 else mp.loggamma(x),
        lambda r: [*r.uniform(0, 10, 80), *spread(r, -10, 20), *1 + spread(r, -8, -1), *2 - spread(r, -8, -1)],
        10,
    ),
    "gamma": (
        lambda mp, x: mp.gamma(x),
        lambda r: [*r.uniform(-20, 10, 80), *r.uniform(1, 33, 40), *spread(r, -10, 0)],
        10,
    ),
    "digamma": (
        lambda mp, x: mp.psi(0, x),
        lambda r: [*r.uniform(0, 10, 80), *spread(r, -10, 20), *1.4616321449683623 + spread(r, -8, -1)],
        6,
    ),
    "i0": (lambda mp, x: mp.besseli(0, x), lambda r: [*r.uniform(-12, 12, 80), *r.uniform(0, 80, 40)], 9),
    "i1": (lambda mp, x: mp.besseli(1, x), lambda r: [*r.uniform(-12, 12, 80), *spread(r, -10, 1)], 9),
    "i0e": (
        lambda mp, x: mp.besseli(0, x) * mp.exp(-abs(x)), lambda r: [*r.uniform(-12, 12, 80), *spread(r, 1, 3)], 6
    ),
    "i1e": (
        lambda mp, x: mp.besseli(1, x) * mp.exp(-abs(x)), lambda r: [*r.uniform(-12, 12, 80), *spread(r, -10, 3)], 6
    ),
    "logit": (lambda mp, p: mp.log(p / (1 - p)), lambda r: [*r.uniform(0, 1, 80), *spread(r, -30, -1)], 4),
    "expit": (lambda mp, x: 1 / (1 + mp.exp(-x)), lambda r: r.uniform(-40, 40, 80), 5),
    "log_expit": (lambda mp, x: -mp.log1p(mp.exp(-x)), lambda r: r.uniform(-40, 30, 80), 4),
    "entr": (lambda mp, x: -x * mp.log(x), lambda r: spread(r, -10, 10), 4),
}  # fmt: skip


def ulps(got, want, dtype):
    """Return how many ULPs of *dtype* each value is from a number of mpmath."""
    size = [np.spacing(np.abs(np.asarray(float(w), dtype))) for w in want]
    return np.array([float(abs(mpmath.mpf(float(g)) - w)) / float(s) for g, w, s in zip(got, want, size, strict=True)])


def dtypes_of(device):
    return [d for d in (pg.float64, pg.float32) if d in pg.__array_namespace_info__().dtypes(device=device).values()]


@pytest.mark.parametrize("name", ONE)
def test_a_function_of_one_operand_is_within_a_few_ulp(device, name):
    function, points, ceiling = ONE[name]
    for dtype in dtypes_of(device):
        x = np.asarray(points(np.random.default_rng(7)), dtype)
        got = getattr(special, name)(pg.asarray(x)).numpy()
        with mpmath.workdps(40):
            want = [function(mpmath, mpmath.mpf(float(v))) for v in x]
            held = [np.finfo(dtype).tiny < abs(w) < np.finfo(dtype).max for w in want]
            off = np.where(held, ulps(got, want, dtype), 0.0)
        worst = int(np.argmax(off))
        assert off[worst] <= ceiling, (dtype, x[worst], got[worst], want[worst])


INVERSE = {
    "ndtri": (lambda p: p, normal, lambda r: [*r.uniform(0, 1, 80), *spread(r, -30, -1), *0.5 - spread(r, -9, -1)]),
    "erfinv": (lambda y: y, lambda mp, x: mp.erf(x), lambda r: [*r.uniform(-0.99, 0.99, 80), *spread(r, -12, -1)]),
    "erfcinv": (lambda y: y, lambda mp, x: mp.erfc(x), lambda r: [*r.uniform(0.01, 1.99, 80), *spread(r, -30, -1)]),
}


@pytest.mark.parametrize("name", INVERSE)
def test_an_inverse_is_within_a_few_ulp(device, name):
    _, function, points = INVERSE[name]
    for dtype in dtypes_of(device):
        p = np.asarray(points(np.random.default_rng(8)), dtype)
        got = getattr(special, name)(pg.asarray(p)).numpy()
        with mpmath.workdps(60):
            for v, g in zip(p, got, strict=True):
                x, t = mpmath.mpf(float(g)), mpmath.mpf(float(v))
                # One step of Newton's method from x says how far the inverse is.
                off = (function(mpmath, x) - t) / mpmath.diff(lambda u: function(mpmath, u), x)
                assert abs(off) <= 8 * float(np.spacing(np.abs(g))), (dtype, v, g)


def binomial_like(r, n):
    a, b = 10 ** r.uniform(-2, 3, n), 10 ** r.uniform(-2, 3, n)
    middle = np.clip(r.beta(a, b), 1e-6, 1 - 1e-6)
    return a, b, np.where(r.random(n) < 0.5, middle, r.uniform(0.01, 0.99, n))


def gamma_like(r, n):
    a = 10 ** r.uniform(-2, 3.5, n)
    return a, np.where(r.random(n) < 0.6, np.maximum(a + 3 * np.sqrt(a) * r.normal(size=n), 0.02 * a), 3 * a)


def beta_below(mp, a, b, x):
    if x > a / (a + b):
        return 1 - beta_below(mp, b, a, 1 - x)
    power = a * mp.log(x) + b * mp.log1p(-x) - mp.loggamma(a) - mp.loggamma(b) + mp.loggamma(a + b)
    return mp.exp(power) * mp.hyp2f1(a + b, 1, a + 1, x) / a


def student(mp, n, t):
    tail = beta_below(mp, n / 2, mp.mpf(1) / 2, n / (n + t * t)) / 2
    return tail if t < 0 else 1 - tail


MANY = {
    "gammainc": (lambda mp, a, x: mp.gammainc(a, 0, x, regularized=True), gamma_like),
    "gammaincc": (lambda mp, a, x: mp.gammainc(a, x, regularized=True), gamma_like),
    "chdtr": (lambda mp, a, x: mp.gammainc(a / 2, 0, x / 2, regularized=True), gamma_like),
    "chdtrc": (lambda mp, a, x: mp.gammainc(a / 2, x / 2, regularized=True), gamma_like),
    "betainc": (beta_below, binomial_like),
    "betaincc": (lambda mp, a, b, x: beta_below(mp, b, a, 1 - x), binomial_like),
    "stdtr": (student, lambda r, n: (10 ** r.uniform(-0.5, 4, n), r.normal(size=n) * 10 ** r.uniform(-3, 1, n))),
    "betaln": (
        lambda mp, a, b: mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b),
        lambda r, n: (10 ** r.uniform(1, 5, n), 10 ** r.uniform(-3, 5, n)),
    ),
    "rel_entr": (
        lambda mp, x, y: x * mp.log(x / y), lambda r, n: (10 ** r.uniform(-3, 3, n), 10 ** r.uniform(-3, 3, n))
    ),
}  # fmt: skip
RELATIVE = {pg.float64: 1e-12, pg.float32: 3e-4}


@pytest.mark.parametrize("name", MANY)
def test_a_function_of_several_operands_keeps_its_digits(device, name):
    function, points = MANY[name]
    for dtype in dtypes_of(device):
        operands = [np.asarray(v, dtype) for v in points(np.random.default_rng(9), 60)]
        got = getattr(special, name)(*[pg.asarray(v) for v in operands]).numpy()
        with mpmath.workdps(40):
            for g, *numbers in zip(got, *operands, strict=True):
                want = function(mpmath, *[mpmath.mpf(float(v)) for v in numbers])
                if abs(want) > (1e-290 if dtype is pg.float64 else 1e-30):
                    assert abs(mpmath.mpf(float(g)) / want - 1) <= RELATIVE[dtype], (dtype, numbers, g, want)


def test_the_quantile_of_students_distribution_is_its_inverse(device):
    dtype = dtypes_of(device)[0]
    rng = np.random.default_rng(10)
    n, p = np.asarray(10 ** rng.uniform(-0.5, 4, 40), dtype), np.asarray(rng.uniform(0.001, 0.999, 40), dtype)
    t = special.stdtrit(pg.asarray(n), pg.asarray(p))
    back = special.stdtr(pg.asarray(n), t).numpy()
    np.testing.assert_allclose(back, p, rtol=1e-12 if dtype is pg.float64 else 1e-4)


POINTS = {
    "erfc": [((0.0,), 1.0), ((inf,), 0.0), ((-inf,), 2.0), ((nan,), nan), ((30.0,), 0.0)],
    "erfcx": [((0.0,), 1.0), ((inf,), 0.0), ((-inf,), inf), ((nan,), nan)],
    "ndtr": [((0.0,), 0.5), ((inf,), 1.0), ((-inf,), 0.0), ((nan,), nan)],
    "log_ndtr": [((inf,), 0.0), ((-inf,), -inf), ((nan,), nan)],
    "ndtri": [((0.0,), -inf), ((1.0,), inf), ((0.5,), 0.0), ((-0.1,), nan), ((1.1,), nan), ((nan,), nan)],
    "erfinv": [((-1.0,), -inf), ((1.0,), inf), ((0.0,), 0.0), ((1.5,), nan), ((nan,), nan)],
    "erfcinv": [((0.0,), inf), ((2.0,), -inf), ((1.0,), 0.0), ((-0.5,), nan), ((nan,), nan)],
    "gammaln": [((v,), inf) for v in (0.0, -0.0, -1.0, -2.0, inf)] + [((nan,), nan), ((1.0,), 0.0), ((2.0,), 0.0)],
    "gamma": [((0.0,), inf), ((-0.0,), -inf), ((-1.0,), nan), ((inf,), inf), ((nan,), nan), ((1.0,), 1.0)],
    "digamma": [((0.0,), -inf), ((-0.0,), inf), ((-1.0,), nan), ((inf,), inf), ((nan,), nan)],
    "i0": [((0.0,), 1.0), ((inf,), inf), ((-inf,), inf), ((nan,), nan)],
    "i1": [((0.0,), 0.0), ((inf,), inf), ((-inf,), -inf), ((nan,), nan)],
    "i0e": [((0.0,), 1.0), ((inf,), 0.0), ((nan,), nan)],
    "i1e": [((0.0,), 0.0), ((-inf,), 0.0), ((nan,), nan)],
    "logit": [((0.0,), -inf), ((1.0,), inf), ((0.5,), 0.0), ((-1.0,), nan), ((2.0,), nan), ((nan,), nan)],
    "expit": [((inf,), 1.0), ((-inf,), 0.0), ((nan,), nan)],
    "xlogy": [((0.0, 0.0), 0.0), ((0.0, inf), 0.0), ((0.0, -1.0), 0.0), ((0.0, nan), nan), ((nan, 1.0), nan)],
    "xlog1py": [((0.0, -1.0), 0.0), ((0.0, nan), nan), ((nan, 1.0), nan)],
    "entr": [((0.0,), 0.0), ((-1.0,), -inf), ((inf,), -inf), ((nan,), nan)],
    "rel_entr": [((0.0, 0.0), 0.0), ((1.0, 0.0), inf), ((inf, inf), nan), ((1.0, inf), -inf), ((-1.0, 1.0), inf)],
    "kl_div": [((0.0, 2.0), 2.0), ((-1.0, 1.0), inf), ((nan, 1.0), nan), ((2.0, 2.0), 0.0)],
    "huber": [((-1.0, 1.0), inf), ((1.0, 3.0), 2.5), ((2.0, 1.0), 0.5)],
    "pseudo_huber": [((-1.0, 1.0), inf), ((0.0, 1.0), 0.0), ((1.0, 0.0), 0.0)],
    "gammainc": [
        ((0.0, 0.0), nan), ((0.0, 1.0), 1.0), ((1.0, 0.0), 0.0), ((1.0, inf), 1.0), ((inf, 1.0), 0.0),
        ((inf, inf), nan), ((-1.0, 1.0), nan), ((1.0, -1.0), nan), ((nan, 1.0), nan),
    ],
    "gammaincc": [((0.0, 1.0), 0.0), ((1.0, 0.0), 1.0), ((1.0, inf), 0.0), ((inf, 1.0), 1.0), ((1.0, nan), nan)],
    "betainc": [
        ((0.0, 1.0, 0.5), 1.0), ((1.0, 0.0, 0.5), 0.0), ((0.0, 0.0, 0.5), nan), ((1.0, 2.0, 0.0), 0.0),
        ((1.0, 2.0, 1.0), 1.0), ((inf, 1.0, 0.5), 0.0), ((1.0, inf, 0.5), 1.0), ((inf, inf, 0.5), nan),
        ((-1.0, 1.0, 0.5), nan), ((1.0, 1.0, -0.1), nan), ((1.0, 1.0, 1.1), nan), ((1.0, nan, 0.5), nan),
    ],
    "betaln": [((0.0, 1.0), inf), ((-1.0, 2.0), inf), ((-3.0, 2.0), -math.log(6)), ((inf, 1.0), -inf), ((1.0, 1.0), 0)],
    "stdtr": [
        ((5.0, inf), 1.0), ((5.0, -inf), 0.0), ((5.0, 0.0), 0.5), ((-1.0, 1.0), nan), ((inf, 0.0), 0.5),
        ((5.0, nan), nan),
    ],
    "stdtrit": [((3.0, 0.0), -inf), ((3.0, 1.0), inf), ((3.0, 0.5), 0.0), ((3.0, 2.0), nan), ((-1.0, 0.5), nan)],
}  # fmt: skip


@pytest.mark.parametrize("name", POINTS)
def test_special_points(device, name):
    for dtype in dtypes_of(device):
        operands = zip(*[numbers for numbers, _ in POINTS[name]], strict=True)
        got = getattr(special, name)(*[pg.asarray(list(v), dtype=dtype) for v in operands]).numpy()
        want = np.asarray([value for _, value in POINTS[name]], dtype)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))


def test_subnormal_operands_and_results(device):
    if pg.float64 not in dtypes_of(device):
        return
    least = 5e-324
    assert float(special.ndtri(pg.asarray(least))) == pytest.approx(-38.467405617144344, rel=1e-14)
    assert float(special.gammaln(pg.asarray(least))) == pytest.approx(744.4400719213812, rel=1e-14)
    assert float(special.erfc(pg.asarray(26.6))) == pytest.approx(7.8792e-310, rel=1e-4)


def arrays_of(value):
    if isinstance(value, np.ndarray):
        return pg.asarray(value)
    return type(value)(arrays_of(v) for v in value) if isinstance(value, (list, tuple)) else value


def sampled(name, dtype):
    op, function = op_of(name), NAMESPACES["special"][name]
    draw = Draw(np.random.default_rng(zlib.crc32(name.encode())), dtype)
    for args, keywords in op.samples(draw):
        inputs, rebuild = flatten(arrays_of(list(args)))
        yield (lambda *xs, r=rebuild, k=keywords: function(*r(list(xs)), **k)), inputs


@pytest.mark.parametrize("name", OWN)
def test_derivatives_to_second_order(name):
    with pg.device("cpu:0"):
        for function, inputs in list(sampled(name, pg.float64))[1:3]:
            pg.testing.gradcheck(function, *inputs)
            if op_of(name).second:
                pg.testing.gradgradcheck(function, *inputs, tol=1e-5)


@pytest.mark.parametrize("name", OWN)
def test_16_bit_floats_are_computed_in_float32(device, name):
    for function, inputs in list(sampled(name, pg.float32))[1:2]:
        narrow = [x.astype(pg.float16) for x in inputs]
        if pg.float16 not in pg.__array_namespace_info__().dtypes(device=device).values():
            return
        wide = function(*[x.astype(pg.float32) for x in narrow])
        got = function(*narrow)
        assert got.dtype is pg.float16
        np.testing.assert_allclose(got.numpy(), wide.astype(pg.float16).numpy(), rtol=2e-3)


def slope(function, *numbers, by=0):
    operands = [pg.asarray(v, dtype=pg.float64, device="cpu:0") for v in numbers]
    operands[by].requires_grad_()
    function(*operands).backward()
    return float(operands[by].grad)


def test_slopes_at_poles_and_corners():
    assert slope(special.xlogy, 0.0, 0.0, by=1) == 0.0
    assert slope(special.xlogy, 0.0, 0.0) == -inf
    assert slope(special.entr, 0.0) == inf
    assert slope(special.i0e, 0.0) == 0.0
    assert slope(special.i1, 0.0) == 0.5
    assert slope(special.gammainc, 1.0, 0.0, by=1) == 1.0
    assert slope(special.gammainc, 0.5, 0.0, by=1) == inf
    assert slope(special.gammainc, 2.0, 0.0, by=1) == 0.0
    assert slope(special.betainc, 1.0, 3.0, 0.0, by=2) == pytest.approx(3.0)
    assert slope(special.betainc, 2.0, 1.0, 1.0, by=2) == pytest.approx(2.0)
    assert slope(special.stdtr, 4.0, 0.0, by=1) == pytest.approx(0.375)
    assert slope(special.log_ndtr, -1e4) == pytest.approx(10000.00009999, rel=1e-12)
    assert slope(lambda x: 0.0 * special.logit(x), 0.0) == 0.0


def test_slopes_keep_their_digits():
    for x in (0.5, 1.4616321449683623, 3.7, 40.0, -0.3):
        assert slope(special.gammaln, x) == pytest.approx(float(mpmath.psi(0, x)), rel=1e-14, abs=1e-15)
        assert slope(special.digamma, x) == pytest.approx(float(mpmath.psi(1, x)), rel=1e-14)
    for x in (1.0, 7.9, 8.1, 300.0):
        with mpmath.workdps(50):
            want = float(2 * x * mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(x) - 2 / mpmath.sqrt(mpmath.pi))
        assert slope(special.erfcx, x) == pytest.approx(want, rel=1e-13)
    with mpmath.workdps(30):
        by_a = mpmath.diff(lambda a: mpmath.gammainc(a, 0, 3, regularized=True), 2.5)
        by_b = mpmath.diff(lambda b: mpmath.betainc(0.7, b, 0, 0.3, regularized=True), 40.0)
    assert slope(special.gammainc, 2.5, 3.0) == pytest.approx(float(by_a), rel=1e-12)
    assert slope(special.betainc, 0.7, 40.0, 0.3, by=1) == pytest.approx(float(by_b), rel=1e-10)


def test_polygamma_takes_orders_in_an_array():
    x = pg.asarray([1.5, -0.5, -0.5, 2.0, 0.01, -2.3], dtype=pg.float64, device="cpu:0")
    got = special.polygamma(pg.asarray([0, 1, 2, -1, 5, 3], device="cpu:0"), x).numpy()
    want = [0.03648997397857652, 8.934802200544679, -0.8287966442343199, nan, 1.2e14, 768.935065]
    np.testing.assert_allclose(got, want, rtol=1e-8)
    with pytest.raises(pg.ShapeError, match="order 33 from an array"):
        special.polygamma(pg.asarray([33], device="cpu:0"), x[:1])
    with pytest.raises(pg.ShapeError, match="order -1"):
        special.polygamma(-1, x)


def test_derivatives_of_the_cotangent_are_polynomials_of_it():
    for n in (1, 2, 5):
        value = sum(c * mpmath.cot(0.7) ** k for k, c in enumerate(_cotangent_slopes(n)))
        assert float(value) == pytest.approx(float(mpmath.diff(mpmath.cot, 0.7, n)), rel=1e-10)


def test_an_array_of_integers_counts_as_float64():
    with pg.device("cpu:0"):
        assert special.xlogy(pg.asarray([1, 2]), pg.asarray([2.0, 3.0], dtype=pg.float32)).dtype is pg.float64
        assert special.gammaln(pg.asarray([3])).dtype is pg.float64
        assert special.gammainc(2, pg.asarray([3.0], dtype=pg.float32)).dtype is pg.float32
        with pytest.raises(pg.DTypeError, match="bool"):
            special.betainc(pg.asarray([True]), 1.0, 0.5)


NEED_POWERS = {"gamma", "zeta_"}  # which a device without `pow` refuses in a sentence
LONG = [op for op in TABLE.values() if op.long]


@pytest.mark.parametrize("op", LONG, ids=lambda op: op.name)
def test_a_kernel_holds_each_function(op):
    for dtype in ("float32", "float64"):
        assert emitted(op, dtype, frozenset(SCALAR_OPS)) <= Limits().max_instructions // 2
        made = emitted(op, dtype, frozenset(MANDATORY))
        assert (made <= Limits().max_instructions - 2) == (op.name not in NEED_POWERS)


def test_names_are_scipys():
    scipy_special = pytest.importorskip("scipy.special", reason="not run: needs SciPy")
    assert [name for name in OWN if not hasattr(scipy_special, name)] == []
