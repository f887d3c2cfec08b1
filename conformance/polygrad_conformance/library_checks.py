"""The checks of library ops: scans, sorting, linear algebra and transforms against NumPy in float64.

Here: for each op operands, attrs, the results that are asked for, and their judgement; registered as level 5.
Not here: matrix products, copies, random bits, scattered sums (`level5_fusion.py`); what each op is, which
`polygrad.driver.ACCELERATED_OPS` says.

Results that are not unique (eigenvectors, orthogonal factors) are judged by what they are for. A complex matrix is a
real array with an axis of two more at its end.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from polygrad.driver import Ref, oracle
from polygrad.driver.ir import ITEMSIZE
from polygrad_conformance import attention_checks, building, window_checks
from polygrad_conformance.bench import Bench, dtype_name
from polygrad_conformance.case import Array
from polygrad_conformance.checks import check

FLOATS = ("float32", "float64")
SORTED = (*FLOATS, "int32", "int64")
SIZE, BATCH = 5, 3


class Call(NamedTuple):
    """One call of an op; `judge` gets the results as arrays and raises AssertionError if they are wrong."""

    ins: Sequence[Array]
    attrs: dict[str, Any]
    outs: Sequence[tuple[tuple[int, ...], str]]
    judge: Callable[..., None]


Calls = Callable[[np.random.Generator, str], Iterator[Call]]


def parts(z: Array, dtype: str, *, whole: bool) -> Array:
    """Return numbers as an op takes them: complex ones, if *whole*, as (real, imaginary) along a new last axis."""
    return np.ascontiguousarray(np.stack([z.real, z.imag], -1) if whole else z.real).astype(dtype)


def joined(x: Array, *, whole: bool) -> Array:
    """Return what an op gave as numbers."""
    wide = x.astype(np.float64)
    return wide[..., 0] + 1j * wide[..., 1] if whole else wide


def close(what: str, got: Array, want: Array, dtype: str, *, times: float = 200) -> None:
    """Assert that two arrays agree to *times* eps of the greatest of them."""
    assert got.shape == want.shape, f"{what} has the shape {got.shape}, not {want.shape}"
    scale = max(float(np.max(np.abs(want), initial=0.0)), 1.0)
    apart = np.abs(got - want)
    worst = float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))
    allowed = times * float(np.finfo(dtype).eps) * scale
    assert worst <= allowed, f"{what} is {worst:.3g} off, of {scale:.3g}; {allowed:.3g} are allowed"


def near(what: str, got: Array, want: Array, dtype: str, times: float) -> None:
    """Assert that an array of any float dtype is right to *times* eps of its greatest element; NaN where it must be."""
    lost = np.isnan(want)
    wide = got.astype(np.float64)
    assert got.shape == want.shape, f"{what} has the shape {got.shape}, not {want.shape}"
    assert (np.isnan(wide) == lost).all(), f"{what} has NaN where there is none, or none where there is"
    scale = max(float(np.max(np.abs(want[~lost]), initial=0.0)), 1.0)
    worst = float(np.max(np.abs(wide - want)[~lost], initial=0.0))
    allowed = times * window_checks.EPSILON[dtype] * scale
    assert worst <= allowed, f"{what} in {dtype} is {worst:.3g} off, of {scale:.3g}; {allowed:.3g} are allowed"


def same(what: str, got: Array, want: Array) -> None:
    """Assert equality; NaN equals NaN, and zeros may differ in sign."""
    wrong = got != want
    if got.dtype.kind == "f":
        wrong &= ~(np.isnan(got) & np.isnan(want))
    if wrong.any():
        place = int(np.argmax(wrong.reshape(-1)))
        raise AssertionError(f"{what}: {int(wrong.sum())} of {want.size} are wrong; element {place} is "
                             f"{got.reshape(-1)[place]}, expected {want.reshape(-1)[place]}")  # fmt: skip


# ---- along an axis ----------------------------------------------------------------------------------------------


def scans(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Running sums of quarters, products of signs, extremes with NaN."""
    floats = dtype in FLOATS
    for kind, ufunc in (("sum", np.add), ("prod", np.multiply), ("max", np.maximum), ("min", np.minimum)):
        for shape in ((BATCH, 200), (1, 1), (2, 1500)):
            whole = rng.integers(-8, 9, shape)
            x = (rng.choice([-1, 1], shape) if kind == "prod" else whole / 4 if floats else whole).astype(dtype)
            if floats and kind in ("max", "min") and shape[1] > 1:
                x[0, 50] = np.nan
            want = ufunc.accumulate(x, axis=-1, dtype=x.dtype)
            yield Call([x], {"kind": kind}, [(shape, dtype)], lambda y, w=want, k=kind: same(f"scan {k}", y, w))


def sortable(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return values with many equal ones; of floats infinities and NaN, too."""
    x = rng.integers(-20, 20, shape).astype(dtype)
    if dtype in FLOATS:
        x /= 4
        x[..., : shape[-1] // 8] = rng.choice([np.inf, -np.inf, np.nan, 0.0, -1e30], (*shape[:-1], shape[-1] // 8))
        x = rng.permuted(x, axis=-1)
    return x


def sorts(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Ascending, equal ones in their order, NaN last; with the positions."""
    for shape in ((BATCH, 100), (2, 1), (1, 3001)):
        x = sortable(rng, dtype, shape)
        order = np.argsort(x, axis=-1, kind="stable")
        want = np.take_along_axis(x, order, -1)

        def judge(y: Array, positions: Array, want: Array = want, order: Array = order) -> None:
            same("sort", y, want)
            same("the positions of sort", positions, order)

        yield Call([x], {}, [(shape, dtype), (shape, "int64")], judge)


def sorted_values(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Ascending, NaN last."""
    for shape in ((BATCH, 100), (2, 1), (1, 3001)):
        x = sortable(rng, dtype, shape)
        want = np.sort(x, axis=-1)
        yield Call([x], {}, [(shape, dtype)], lambda y, w=want: same("sort_values", y, w))


def positions_of_true(rng: np.random.Generator, _dtype: str) -> Iterator[Call]:
    """Where a mask is true, ascending: some, one, all."""
    for n, share in ((1000, 0.3), (70_000, 0.01), (1, 1.0), (257, 1.0)):
        mask = rng.random(n) < share
        mask[-1] = True
        want = np.flatnonzero(mask)
        yield Call([mask], {}, [((len(want),), "int64")], lambda y, w=want: same("nonzero", y, w))


def extremes(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """The first of those equal to the greatest, or the least; a NaN is either."""
    for kind, first in (("max", np.argmax), ("min", np.argmin)):
        for shape in ((BATCH, 100), (2, 1), (2, 70_001), (1000,)):
            x = sortable(rng, dtype, shape)
            if dtype in FLOATS:
                x[-1] = np.where(np.isnan(x[-1]), 0, x[-1])
            want = np.asarray(first(x, axis=-1))
            yield Call([x], {"kind": kind}, [(shape[:-1], "int64")],
                       lambda y, w=want, k=kind: same(f"arg_extreme {k}", y, w))  # fmt: skip


def searches(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """How many come before what is wanted, with and without those equal to it; NaN last."""
    sides: list[Literal["left", "right"]] = ["left", "right"]
    for right, side in enumerate(sides):
        for batch, n, m in ((BATCH, 100, 40), (2, 1, 3), (1, 3001, 500)):
            x, wanted = np.sort(sortable(rng, dtype, (batch, n)), axis=-1), sortable(rng, dtype, (batch, m))
            want = np.stack([np.searchsorted(a, v, side) for a, v in zip(x, wanted, strict=True)])
            yield Call([x, wanted], {"right": bool(right)}, [((batch, m), "int64")],
                       lambda y, w=want, s=side: same(f"searchsorted {s}", y, w))  # fmt: skip


def recurrences(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """y[i] = a[i] y[i - 1] + b[i]."""
    for shape in ((BATCH, 70), (2, 1)):
        a, b = rng.uniform(-0.9, 0.9, shape).astype(dtype), rng.uniform(-1, 1, shape).astype(dtype)
        want = b.astype(np.float64)
        for k in range(1, shape[1]):
            want[:, k] += a[:, k].astype(np.float64) * want[:, k - 1]
        yield Call([a, b], {}, [(shape, dtype)], lambda y, w=want: close("recurrence", y.astype(np.float64), w, dtype))


# ---- transforms -------------------------------------------------------------------------------------------------

LENGTHS = (1, 2, 8, 12, 17, 100)


def complex_transforms(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """There and back, lengths prime and not; without a factor."""
    for n in LENGTHS:
        z = rng.normal(size=(BATCH, n)) + 1j * rng.normal(size=(BATCH, n))
        x = parts(z, dtype, whole=True)
        z = joined(x, whole=True)
        for inverse in (False, True):
            want = np.fft.ifft(z, norm="forward") if inverse else np.fft.fft(z)
            yield Call([x], {"inverse": inverse}, [(x.shape, dtype)],
                       lambda y, w=want: close("fft", joined(y, whole=True), w, dtype))  # fmt: skip


def real_transforms(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Half a spectrum of real values."""
    for n in LENGTHS:
        x = rng.normal(size=(BATCH, n)).astype(dtype)
        want = np.fft.rfft(x.astype(np.float64))
        yield Call([x], {}, [((BATCH, n // 2 + 1, 2), dtype)],
                   lambda y, w=want: close("rfft", joined(y, whole=True), w, dtype))  # fmt: skip


def transforms_to_real(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Real values of half a spectrum, times n."""
    for n in LENGTHS:
        z = np.fft.rfft(rng.normal(size=(BATCH, n)))
        x = parts(z, dtype, whole=True)
        want = np.fft.irfft(joined(x, whole=True), n, norm="forward")
        yield Call(
            [x], {"n": n}, [((BATCH, n), dtype)], lambda y, w=want: close("irfft", y.astype(np.float64), w, dtype)
        )


# ---- linear algebra ---------------------------------------------------------------------------------------------


def matrices(
    rng: np.random.Generator, dtype: str, m: int = SIZE, n: int = SIZE, shift: float = 0.0
) -> Iterator[tuple[bool, Array, Array]]:
    """Yield, real and complex: whether it is complex, the operand, the numbers that it stands for."""
    for whole in (False, True):
        z = rng.normal(size=(BATCH, m, n)) + (1j * rng.normal(size=(BATCH, m, n)) if whole else 0)
        x = parts(z + shift * np.eye(m, n), dtype, whole=whole)
        yield whole, x, joined(x, whole=whole)


def shaped(shape: tuple[int, ...], *, whole: bool) -> tuple[int, ...]:
    """Return the shape of an array of numbers as an op has it."""
    return (*shape, 2) if whole else shape


def adjoint(a: Array) -> Array:
    """Return conjugate transposes."""
    return a.conj().swapaxes(-1, -2)


def unit(n: int) -> Array:
    """Return a batch of unit matrices."""
    return np.broadcast_to(np.eye(n), (BATCH, n, n))


def solutions(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """X with A X = B."""
    for whole, x, a in matrices(rng, dtype, shift=4):
        right = next(r for w, r, _ in matrices(rng, dtype, SIZE, 2) if w == whole)
        want = np.linalg.solve(a, joined(right, whole=whole))
        yield Call([x, right], {"complex": whole}, [(right.shape, dtype)],
                   lambda y, w=want, c=whole: close("solve", joined(y, whole=c), w, dtype))  # fmt: skip


def triangular_solutions(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """The same where A is triangular; the other triangle is full of NaN and is not read."""
    for whole, x, a in matrices(rng, dtype, shift=4):
        right = next(r for w, r, _ in matrices(rng, dtype, SIZE, 2) if w == whole)
        for upper in (False, True):
            keep = np.triu(np.ones((SIZE, SIZE), bool)) if upper else np.tril(np.ones((SIZE, SIZE), bool))
            given = np.where(keep[..., None] if whole else keep, x, np.nan).astype(dtype)
            want = np.linalg.solve(np.where(keep, a, 0), joined(right, whole=whole))
            yield Call([given, right], {"upper": upper, "complex": whole}, [(right.shape, dtype)],
                       lambda y, w=want, c=whole: close("triangular_solve", joined(y, whole=c), w, dtype))  # fmt: skip


def factors(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """L with A = L L^H and zeros above it; a matrix that has none gives no finite factor, and spoils no other."""
    for whole, _, a in matrices(rng, dtype, shift=3):
        x = parts(a @ adjoint(a), dtype, whole=whole)
        want = np.linalg.cholesky(joined(x, whole=whole))
        x[1] = -x[1]

        def judge(y: Array, want: Array = want, whole: bool = whole) -> None:
            got = joined(y, whole=whole)
            close("cholesky", got[::2], want[::2], dtype)
            assert not np.isfinite(np.diagonal(got[1])).all(), "cholesky of a negative matrix is finite"

        yield Call([x], {"complex": whole}, [(x.shape, dtype)], judge)


def determinants(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Determinants."""
    for whole, x, a in matrices(rng, dtype):
        want = np.linalg.det(a)
        yield Call([x], {"complex": whole}, [(shaped((BATCH,), whole=whole), dtype)],
                   lambda y, w=want, c=whole: close("det", joined(y, whole=c), w, dtype))  # fmt: skip


def signs_and_logarithms(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """The sign of a determinant and the logarithm of its size."""
    for whole, x, a in matrices(rng, dtype):
        sign, size = np.linalg.slogdet(a)

        def judge(y: Array, z: Array, sign: Array = sign, size: Array = size, whole: bool = whole) -> None:
            close("the sign of slogdet", joined(y, whole=whole), sign, dtype)
            close("the logarithm of slogdet", z.astype(np.float64), size, dtype)

        yield Call([x], {"complex": whole}, [(shaped((BATCH,), whole=whole), dtype), ((BATCH,), dtype)], judge)


def cofactors(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """The gradient of the determinant."""
    for whole, x, a in matrices(rng, dtype, shift=2):
        want = np.linalg.det(a)[..., None, None] * np.linalg.inv(a).swapaxes(-1, -2)
        yield Call([x], {"complex": whole}, [(x.shape, dtype)],
                   lambda y, w=want, c=whole: close("cofactors", joined(y, whole=c), w, dtype, times=2000))  # fmt: skip


def pseudo_inverses(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Pseudo-inverses of tall matrices."""
    for whole, x, a in matrices(rng, dtype, SIZE + 2, SIZE - 1):
        rtol, want = np.full((BATCH, 1), 1e-5, dtype), np.linalg.pinv(a)
        yield Call([x, rtol], {"complex": whole}, [(shaped((BATCH, SIZE - 1, SIZE + 2), whole=whole), dtype)],
                   lambda y, w=want, c=whole: close("pinv", joined(y, whole=c), w, dtype, times=2000))  # fmt: skip


def hermitian_values(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Ascending eigenvalues, and orthonormal vectors if they are asked for; the upper triangle is not read."""
    for whole, _, b in matrices(rng, dtype):
        x = parts(b + adjoint(b), dtype, whole=whole)
        a = joined(x, whole=whole)
        values = np.linalg.eigvalsh(a)
        hidden = np.triu(np.ones((SIZE, SIZE), bool), 1)
        x = np.where(hidden[..., None] if whole else hidden, 99, x).astype(dtype)

        def judge(y: Array, v: Array | None = None, a: Array = a, values: Array = values, whole: bool = whole) -> None:
            close("the values of eigh", y.astype(np.float64), values, dtype)
            if v is not None:
                z = joined(v, whole=whole)
                close("A V of eigh", a @ z, z * values[..., None, :], dtype)
                close("V^H V of eigh", adjoint(z) @ z, unit(SIZE), dtype)

        outs = [((BATCH, SIZE), dtype), (x.shape, dtype)]
        for vectors in (True, False):
            yield Call([x], {"vectors": vectors, "complex": whole}, outs[: 1 + vectors], judge)


def general_values(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Complex eigenvalues in any order, and vectors of length 1."""
    for whole, x, a in matrices(rng, dtype):
        values = np.linalg.eigvals(a)

        def judge(y: Array, v: Array | None = None, a: Array = a, values: Array = values) -> None:
            w = joined(y, whole=True)
            for mine, right in zip(w, values, strict=True):
                nearest = np.abs(mine[:, None] - right[None, :])
                assert sorted(nearest.argmin(axis=1)) == list(range(SIZE)), "eig: a value is missing"
                close("the values of eig", nearest.min(axis=1), np.zeros(SIZE), dtype, times=5000)
            if v is not None:
                z = joined(v, whole=True)
                close("A V of eig", a @ z, z * w[..., None, :], dtype, times=2000)
                close("the lengths of eig", np.linalg.norm(z, axis=-2), np.ones((BATCH, SIZE)), dtype)

        outs = [((BATCH, SIZE, 2), dtype), ((BATCH, SIZE, SIZE, 2), dtype)]
        for vectors in (True, False):
            yield Call([x], {"vectors": vectors, "complex": whole}, outs[: 1 + vectors], judge)


def singular_values(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Descending singular values, and orthonormal factors, reduced or full, if they are asked for."""
    m, n = SIZE + 2, SIZE - 1
    for whole, x, a in matrices(rng, dtype, m, n):
        values = np.linalg.svd(a, compute_uv=False)

        def factors(u: Array, s: Array, vh: Array, a: Array = a, values: Array = values, whole: bool = whole) -> None:
            left, right = joined(u, whole=whole), joined(vh, whole=whole)
            close("the values of svd", s.astype(np.float64), values, dtype)
            close("U S V^H of svd", (left[..., :n] * s[..., None, :]) @ right, a, dtype)
            close("U^H U of svd", adjoint(left) @ left, unit(left.shape[-1]), dtype)

        for full in (False, True):
            outs = [(shaped((BATCH, m, m if full else n), whole=whole), dtype), ((BATCH, n), dtype),
                    (shaped((BATCH, n, n), whole=whole), dtype)]  # fmt: skip
            yield Call([x], {"vectors": True, "full": full, "complex": whole}, outs, factors)
        yield Call([x], {"vectors": False, "full": False, "complex": whole}, [((BATCH, n), dtype)],
                   lambda s, w=values: close("the values of svd", s.astype(np.float64), w, dtype))  # fmt: skip


def orthogonal_factors(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
    """Q with orthonormal columns and upper triangular R, reduced or full."""
    m, n = SIZE + 2, SIZE - 1
    for whole, x, a in matrices(rng, dtype, m, n):

        def judge(q: Array, r: Array, a: Array = a, whole: bool = whole) -> None:
            left, right = joined(q, whole=whole), joined(r, whole=whole)
            close("Q R of qr", left @ right, a, dtype)
            close("Q^H Q of qr", adjoint(left) @ left, unit(left.shape[-1]), dtype)
            assert (np.tril(right, -1) == 0).all(), "R of qr is not upper triangular"

        for full in (False, True):
            k = m if full else n
            outs = [(shaped((BATCH, m, k), whole=whole), dtype), (shaped((BATCH, k, n), whole=whole), dtype)]
            yield Call([x], {"full": full, "complex": whole}, outs, judge)


def _windowed(op: str, cases: Callable[..., Iterator[window_checks.Case]], *wanted: str) -> Calls:
    """Return the calls of an op over windows; its sums are at most 2,000 products long."""

    def calls(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
        times = 4 if dtype in ("float16", "bfloat16") else 200
        for ins, attrs, shape, want in cases(rng, dtype, *wanted):
            yield Call(ins, attrs, [(shape, dtype)],
                       lambda y, w=want, a=attrs: near(f"{op} with {a}", y, w, dtype, times))  # fmt: skip

    return calls


def _attending(op: str, cases: Callable[..., Iterator[attention_checks.Case]]) -> Calls:
    """Return the calls of attention, or of its backward pass."""

    def calls(rng: np.random.Generator, dtype: str) -> Iterator[Call]:
        times = 4 if dtype in ("float16", "bfloat16") else 200
        for ins, attrs, outs, wanted in cases(rng, dtype):

            def judge(*found: Array, wanted: Sequence[Array] = wanted, attrs: dict[str, Any] = attrs) -> None:
                for k, (got, want) in enumerate(zip(found, wanted, strict=True)):
                    # The logarithms are as exact as the format that sums are kept in.
                    near(f"result {k} of {op} with {attrs}", got, want, dtype, 200 if got.dtype.itemsize > 2 else times)

            yield Call(ins, attrs, outs, judge)

    return calls


LIBRARY: dict[str, tuple[Calls, tuple[str, ...]]] = {
    "scan": (scans, SORTED), "sort": (sorts, SORTED), "sort_values": (sorted_values, SORTED),
    "nonzero": (positions_of_true, ("bool",)), "recurrence": (recurrences, FLOATS), "fft": (complex_transforms, FLOATS),
    "rfft": (real_transforms, FLOATS), "irfft": (transforms_to_real, FLOATS), "solve": (solutions, FLOATS),
    "triangular_solve": (triangular_solutions, FLOATS), "cholesky": (factors, FLOATS), "det": (determinants, FLOATS),
    "slogdet": (signs_and_logarithms, FLOATS), "cofactors": (cofactors, FLOATS), "pinv": (pseudo_inverses, FLOATS),
    "eigh": (hermitian_values, FLOATS), "eig": (general_values, FLOATS), "svd": (singular_values, FLOATS),
    "qr": (orthogonal_factors, FLOATS), "arg_extreme": (extremes, SORTED), "searchsorted": (searches, SORTED),
    "convolution": (_windowed("convolution", window_checks.convolutions, "y"), window_checks.ALL_FLOATS),
    "convolution_input": (_windowed("convolution_input", window_checks.convolutions, "x"), window_checks.ALL_FLOATS),
    "convolution_weight": (_windowed("convolution_weight", window_checks.convolutions, "w"), window_checks.ALL_FLOATS),
    "max_pool": (_windowed("max_pool", window_checks.maxima), window_checks.ALL_FLOATS),
    "max_pool_gradient": (_windowed("max_pool_gradient", window_checks.shares), window_checks.ALL_FLOATS),
    "attention": (_attending("attention", attention_checks.attentions), attention_checks.ALL_FLOATS),
    "attention_backward": (_attending("attention_backward", attention_checks.gradients), attention_checks.ALL_FLOATS),
}  # fmt: skip


def _needs(op: str, dtype: str) -> tuple[str, ...]:
    more = ("dtype.int64",) if op in ("sort", "nonzero", "arg_extreme", "searchsorted") else ()
    return (f"op.{op}", f"dtype.{dtype}", *more)


@check("L5.accel.{0}.{1}", each=[(op, d) for op, (_, dtypes) in LIBRARY.items() for d in dtypes], needs=_needs)
def library_ops(bench: Bench, op: str, dtype: str) -> None:
    """Batches of operands of several sizes, real and complex; the results are right and nothing around them changes."""
    rng = bench.rng(53, list(LIBRARY).index(op))
    with np.errstate(all="ignore"):
        for call in LIBRARY[op][0](rng, dtype):
            _run(bench, op, call)


PLACED = "L5.accel.attention_backward.placed.{0}"


@check(PLACED, each=[(d,) for d in attention_checks.ALL_FLOATS],
       needs=lambda d: ("feature.placed", "op.attention_backward", f"dtype.{d}"))  # fmt: skip
def results_in_their_places(bench: Bench, dtype: str) -> None:
    """Results that are parts of larger arrays: they are right, and what lies between their rows stays."""
    for call in LIBRARY["attention_backward"][0](bench.rng(54), dtype):
        _run(bench, "attention_backward", call, apart=True)


def _run(bench: Bench, op: str, call: Call, *, apart: bool = False) -> None:
    laid = [_laid(x) for x in call.ins]
    ins = [
        Ref(bench.put(flat), 0, x.shape, steps, dtype_name(x)) for x, (flat, steps) in zip(call.ins, laid, strict=True)
    ]
    outs, blanks = [], []
    for shape, dtype in call.outs:
        whole = (*shape[:-2], shape[-2] + 1, shape[-1] + 8) if apart else shape
        blank, margin = building.guarded(dtype, int(np.prod(whole)))
        blanks.append(blank)
        outs.append(_ref(bench.put(blank), whole, dtype, margin)._replace(shape=shape))
    bench.op(op, outs, ins, call.attrs)
    results = []
    for ref, blank in zip(outs, blanks, strict=True):
        got = bench.read(ref.handle, ref.dtype, len(blank)).copy()
        steps = tuple(s * got.itemsize for s in ref.strides)
        inside = np.lib.stride_tricks.as_strided(got[ref.offset :], ref.shape, steps)
        results.append(inside.copy())
        inside[...] = blank[0]
        assert (got.view(np.uint8) == building.GUARD).all(), f"{op} wrote beyond its result of shape {ref.shape}"
    call.judge(*results)
    for ref, (flat, _) in zip(ins, laid, strict=True):
        now = bench.read(ref.handle, ref.dtype, flat.size).view(np.uint8)
        assert (now == flat.view(np.uint8)).all(), f"{op} changed its operand of shape {ref.shape}"
    for ref in (*ins, *outs):
        bench.free(ref.handle)


def _laid(x: Array) -> tuple[Array, tuple[int, ...]]:
    """Return the memory of an operand, and its strides in it: views keep theirs, NaN being what they leave out."""
    if x.flags.c_contiguous:
        return x.reshape(-1), _ref(None, x.shape, dtype_name(x)).strides
    steps = tuple(s // x.itemsize for s in x.strides)
    flat = np.full(1 + sum((n - 1) * s for n, s in zip(x.shape, steps, strict=True)), np.nan, x.dtype)
    np.lib.stride_tricks.as_strided(flat, x.shape, x.strides)[...] = x
    return flat, steps


def _ref(handle: object, shape: tuple[int, ...], dtype: str, offset: int = 0) -> Ref:
    steps = np.empty(shape, oracle.compute_dtype(dtype)).strides
    return Ref(handle, offset, shape, tuple(s // ITEMSIZE[dtype] for s in steps), dtype)
