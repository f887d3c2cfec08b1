"""Level 5, fusion: random kernels against the oracle, and accelerated ops against what they stand for.

Here: slices of the random generator; copies, matrix products, random bits and scattered sums of a driver's own.
Not here: the generator (`random_kernels.py`); other library ops (`library_checks.py`) and launches made together
(`many_checks.py`), which importing registers.
"""

import time
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from polygrad.driver import Ref, oracle
from polygrad_conformance import building, library_checks, many_checks, philox, strict_ops
from polygrad_conformance.bench import Bench, Failure
from polygrad_conformance.case import Array, Case
from polygrad_conformance.checks import check
from polygrad_conformance.random_kernels import random_case

__all__ = ["library_checks", "many_checks"]

SLICES = 10
LEAST = 5  # cases of each slice, however slow the device compiles


@check("L5.random.{0}", each=[(k,) for k in range(SLICES)], random=True)
def random_kernels(bench: Bench, part: int) -> None:
    """As many random kernels as the time allows, up to the first that fails."""
    info = bench.info
    end = time.monotonic() + bench.effort.random / SLICES
    count = 0
    while count < LEAST or time.monotonic() < end:
        seed = 1_000_000 * bench.seed + SLICES * count + part
        case = random_case(seed, dtypes=info.dtypes, scalar_ops=info.scalar_ops, reductions=info.reductions)
        count += 1
        if not _fits(bench, case):
            continue
        try:
            bench.judge(case)
        except Failure as failure:
            raise Failure(f"random kernel {seed}: {failure}", case) from None
    bench.figures["random kernels"] = bench.figures.get("random kernels", 0) + count


def _fits(bench: Bench, case: Case) -> bool:
    limits, sizes = bench.info.limits, [b.nbytes for b in case.buffers]
    return bool(
        len(case.kernel.buffers) <= limits.max_buffers
        and len(case.kernel.body) <= limits.max_instructions
        and max(sizes) <= limits.max_alloc
        and sum(sizes) <= limits.total // 2
    )


def _strided(
    rng: np.random.Generator, dtype: str, shape: Sequence[int], how: str
) -> tuple[Array, Array, int, tuple[int, ...]]:
    """Return memory, the array that lies in it, its offset and strides in elements."""
    target = oracle.compute_dtype(dtype)

    def draw(size: Sequence[int]) -> Array:
        whole = rng.integers(-8, 9, size)
        return (whole / 4 if "float" in dtype else whole).astype(target)

    if how == "transposed":
        memory = draw((*shape[:-2], shape[-1], shape[-2]))
        view = memory.swapaxes(-1, -2)
    elif how == "padded":
        memory = draw((*shape[:-1], shape[-1] + 3))
        view = memory[..., 2 : 2 + shape[-1]]
    elif how == "broadcast":
        memory = draw(shape[1:])
        view = np.broadcast_to(memory, shape)
    else:
        memory = draw(shape) if how == "plain" else np.abs(draw(shape))
        view = memory
    offset = 2 if how == "padded" else 0
    return memory, view, offset, tuple(s // target.itemsize for s in view.strides)


def _ref(handle: object, array: Array, dtype: str, offset: int = 0, strides: tuple[int, ...] | None = None) -> Ref:
    steps = tuple(s // array.itemsize for s in array.strides) if strides is None else strides
    return Ref(handle, offset, array.shape, steps, dtype)


PRODUCTS = {
    "plain": ((33, 17), (17, 9), "plain", "plain"),
    "transposed": ((16, 65), (65, 16), "transposed", "transposed"),
    "padded": ((7, 31), (31, 40), "padded", "padded"),
    "batched": ((3, 8, 20), (3, 20, 12), "plain", "transposed"),
    "shared": ((4, 9, 16), (4, 16, 5), "plain", "broadcast"),
    "vector": ((1, 300), (300, 1), "plain", "plain"),
    "long": ((2, 3000), (3000, 3), "positive", "positive"),
}
MATMUL = ("float32", "float64", "float16", "bfloat16", "int32", "int64")


@check(
    "L5.accel.matmul.{0}.{1}",
    each=[(p, d) for p in PRODUCTS for d in MATMUL],
    needs=lambda _p, d: ("op.matmul", f"dtype.{d}"),
)
def matmul(bench: Bench, name: str, dtype: str) -> None:
    """Every layout that may arrive; quarters sum exactly, so float32 and narrower must be right to one rounding.

    Long sums of one sign outgrow float16 and bfloat16, which are to be summed in float32.
    """
    left, right, how_left, how_right = PRODUCTS[name]
    rng = bench.rng(50)
    memory_a, a, offset_a, strides_a = _strided(rng, dtype, left, how_left)
    memory_b, b, offset_b, strides_b = _strided(rng, dtype, right, how_right)
    wide = np.float64 if "float" in dtype else np.int64
    want = np.matmul(a.astype(wide), b.astype(wide)).astype(oracle.compute_dtype(dtype))
    out, margin = building.guarded(dtype, want.size)
    target, x, y = bench.put(out), bench.put(memory_a), bench.put(memory_b)
    refs = (_ref(x, a, dtype, offset_a, strides_a), _ref(y, b, dtype, offset_b, strides_b))
    bench.op("matmul", (_ref(target, want, dtype, margin),), refs, {"precision": "highest"})
    out[margin : margin + want.size] = want.reshape(-1)
    _same(f"matmul {name} of {dtype}", bench.read(target, dtype, len(out)), out)


@check("L5.accel.matmul.precision", needs=("op.matmul",))
def matmul_is_float32(bench: Bench) -> None:
    """float32 means float32: an inner product that TF32 or bfloat16 would lose."""
    a = np.full((8, 64), 1 + 2.0**-12, np.float32)  # TF32 keeps 10 bits, bfloat16 7
    b = np.full((64, 8), 1 - 2.0**-13, np.float32)
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    target, x, y = bench.put(building.blank("float32", 64)), bench.put(a), bench.put(b)
    bench.op("matmul", (_ref(target, want, "float32"),), (_ref(x, a, "float32"), _ref(y, b, "float32")), {})
    got = bench.read(target, "float32", 64).reshape(8, 8)
    assert np.abs(got - want).max() <= 64 * 2.0**-24 * 64, f"matmul of float32 gave {got[0, 0]}, expected {want[0, 0]}"


ENDED = ("float32", "float64", "float16", "bfloat16")


@check(
    "L5.accel.matmul_add.{0}.{1}",
    each=[(p, d) for p in PRODUCTS for d in ENDED],
    needs=lambda _p, d: ("op.matmul_add", f"dtype.{d}"),
)
def matmul_add(bench: Bench, name: str, dtype: str) -> None:
    """Products in every layout that end with an array or a row, with and without relu; c is read at its own offset.

    Terms are -1, 0 and 1, and of long sums 3000 ones: what is summed in 16 bits falls short.
    """
    left, right, how_left, how_right = PRODUCTS[name]
    rng, target_dtype = bench.rng(55), oracle.compute_dtype(dtype)
    memory_a, a, offset_a, strides_a = _strided(rng, dtype, left, how_left)
    memory_b, b, offset_b, strides_b = _strided(rng, dtype, right, how_right)
    long = name == "long"
    for memory in (memory_a, memory_b):  # the views see what is written here
        memory[...] = 1 if long else np.sign(memory.astype(np.float64))
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))
    x, y = bench.put(memory_a), bench.put(memory_b)
    for row in (False, True):
        addend = rng.integers(-3, 4, product.shape[-1:] if row else product.shape).astype(target_dtype)
        memory_c = np.concatenate([np.full(3, 64, target_dtype), addend.reshape(-1)])
        strides_c = (*(0,) * (product.ndim - 1), 1) if row else tuple(s // 8 for s in product.strides)
        total = product + addend.astype(np.float64)
        for attrs, want in (({}, total), ({"activation": "relu"}, np.maximum(total, 0))):
            out, margin = building.guarded(dtype, want.size)
            target, z = bench.put(out), bench.put(memory_c)
            refs = (_ref(x, a, dtype, offset_a, strides_a), _ref(y, b, dtype, offset_b, strides_b),
                    Ref(z, 3, want.shape, strides_c, dtype))  # fmt: skip
            bench.op("matmul_add", (_ref(target, want.astype(target_dtype), dtype, margin),), refs, attrs)
            got = bench.read(target, dtype, len(out))
            out[margin : margin + want.size] = want.reshape(-1).astype(target_dtype)
            if long:  # the product may have been rounded before
                inside = slice(margin, margin + want.size)
                off = np.abs(got[inside].astype(np.float64) - want.reshape(-1))
                assert off.max() <= 16, f"matmul_add long of {dtype} is {off.max()} off"  # two roundings of 3000
                out[inside] = got[inside]
            _same(f"matmul_add {name} of {dtype}", got, out)


@check("L5.accel.matmul_add.special", needs=("op.matmul_add",))
def matmul_add_of_special_values(bench: Bench) -> None:
    """NaN and infinities of the addend arrive, and NaN goes through relu."""
    a, b = np.ones((4, 3), np.float32), np.ones((3, 4), np.float32)
    c = np.array([[np.nan, np.inf, -np.inf, -3]] * 4, np.float32)
    for attrs, row in (({}, [np.nan, np.inf, -np.inf, 0]), ({"activation": "relu"}, [np.nan, np.inf, 0, 0])):
        target, x, y, z = (bench.put(m) for m in (building.blank("float32", 16), a, b, c))
        refs = (_ref(x, a, "float32"), _ref(y, b, "float32"), _ref(z, c, "float32"))
        bench.op("matmul_add", (_ref(target, c, "float32"),), refs, attrs)
        want = np.array(row * 4, np.float32)
        _same("matmul_add of special values", bench.read(target, "float32", 16), want)


def _not_a_number(a: Array) -> Array:
    return np.isnan(a) if a.dtype.kind == "f" else np.zeros(a.shape, bool)


def _same(what: str, got: Array, want: Array) -> None:
    a, b = (x.astype(np.float64) if x.dtype == ml_dtypes.bfloat16 else x for x in (got, want))
    wrong = ~((a == b) | (_not_a_number(a) & _not_a_number(b)))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise AssertionError(f"{what}: {int(wrong.sum())} of {len(want)} are wrong; element {place} is {got[place]}, "
                             f"expected {want[place]}")  # fmt: skip


@check("L5.accel.copy.{0}", each=[("plain",), ("transposed",), ("padded",), ("broadcast",)], needs=("op.copy",))
def copies(bench: Bench, how: str) -> None:
    """A strided array becomes contiguous, in its place and nowhere else."""
    for dtype in sorted(bench.info.dtypes):
        source = "float32" if dtype == "bool" else dtype
        memory, view, offset, strides = _strided(bench.rng(51), source, (5, 7), how)
        if dtype == "bool":
            memory, view = memory != 0, view != 0
        out, margin = building.guarded(dtype, view.size)
        target, x = bench.put(out), bench.put(memory)
        contiguous = np.ascontiguousarray(view)
        bench.op("copy", (_ref(target, contiguous, dtype, margin),), (_ref(x, view, dtype, offset, strides),), {})
        out[margin : margin + view.size] = contiguous.reshape(-1)
        _same(f"copy ({how}) of {dtype}", bench.read(target, dtype, len(out)).view(np.uint8), out.view(np.uint8))


@check("L5.accel.random_bits", needs=("op.random_bits", "dtype.uint32"))
def random_bits(bench: Bench) -> None:
    """Philox-4x32-10, the same words everywhere, from any counter, of any length."""
    for key, counter, count in ((0, 0, 64), (12345, 7, 1001), (2**64 - 1, 2**32 - 3, 37), (1, 2**64 - 2, 5)):
        out, margin = building.guarded("uint32", count)
        target = bench.put(out)
        ref = Ref(target, margin, (count,), (1,), "uint32")
        bench.op("random_bits", (ref,), (), {"key": key, "counter": counter})
        out[margin : margin + count] = philox.words(key, counter, count)
        _same(f"random_bits(key={key}, counter={counter})", bench.read(target, "uint32", len(out)), out)


SCATTERED = ("float32", "float64", "int32", "int64", "float16", "bfloat16")


@check(
    "L5.accel.scatter_add.{0}",
    each=[(d,) for d in SCATTERED],
    needs=lambda d: ("op.scatter_add", f"dtype.{d}", "dtype.int64"),
)
def scatter_add(bench: Bench, dtype: str) -> None:
    """Rows add up at their index, duplicates too; a bad index is reported and harms nothing."""
    rng = bench.rng(52)
    for bad in (False, True):
        index = rng.integers(-6, 6, 40)
        if bad:
            index[11] = 6
        rows = (rng.integers(-8, 9, (40, 5)) / (4 if "float" in dtype else 1)).astype(oracle.compute_dtype(dtype))
        want = np.zeros((6, 5), np.float64)
        good = np.arange(40) != 11 if bad else np.ones(40, bool)
        np.add.at(want, index[good], rows[good].astype(np.float64))
        out, margin = building.guarded(dtype, 30)
        target, x, y, status = bench.put(out), bench.put(index), bench.put(rows), bench.put(np.zeros(4, np.int32))
        ref = Ref(target, margin, (6, 5), (5, 1), dtype)
        bench.op("scatter_add", (ref,), (_ref(x, index, "int64"), _ref(y, rows, dtype)), {"status": status, "tag": 9})
        word = bench.read(status, "int32", 4)
        got = bench.read(target, dtype, len(out))
        out[margin : margin + 30] = want.reshape(-1).astype(out.dtype)
        if bad:
            assert word[0] == 9, f"index 6 of 6 rows was not reported: the status word is {list(word)}"
            assert word[2] == 6, f"index 6 was reported as {word[2]}"
        else:
            assert word[0] == 0, f"good indices were reported: {list(word)}"
        _same(f"scatter_add of {dtype}", got, out)


@check(
    "L5.accel.scatter_reduce.{0}.{1}",
    each=[(m, d) for m in ("max", "min", "multiply") for d in ("float32", "float64", "int32", "int64")],
    needs=lambda _m, d: ("op.scatter_reduce", f"dtype.{d}", "dtype.int64"),
)
def scatter_reduce(bench: Bench, mode: str, dtype: str) -> None:
    """The extreme or product of the rows of each index, the identity where there is none; a bad index is left out."""
    rng = bench.rng(54)
    for bad in (False, True):
        index = rng.choice([0, 1, 2, 3, 5, -6, -3, -1], 40)  # nothing goes to row 4
        if bad:
            index[11] = 6
        rows = rng.choice([-2, -1, 1, 2, 3], (40, 5)).astype(dtype)
        if mode == "multiply":
            rows = np.sign(rows)
        want = np.full((6, 5), strict_ops.identity(mode, rows.dtype), dtype)
        good = index < 6
        {"max": np.maximum, "min": np.minimum, "multiply": np.multiply}[mode].at(want, index[good], rows[good])
        out, margin = building.guarded(dtype, 30)
        target, x, y, status = bench.put(out), bench.put(index), bench.put(rows), bench.put(np.zeros(4, np.int32))
        ref = Ref(target, margin, (6, 5), (5, 1), dtype)
        attrs = {"status": status, "tag": 9, "mode": mode}
        bench.op("scatter_reduce", (ref,), (_ref(x, index, "int64"), _ref(y, rows, dtype)), attrs)
        word = bench.read(status, "int32", 4)
        assert (word[0], word[2]) == ((9, 6) if bad else (0, 0)), f"the status word is {list(word)}"
        got = bench.read(target, dtype, len(out))
        out[margin : margin + 30] = want.reshape(-1)
        _same(f"scatter_reduce ({mode}) of {dtype}", got, out)
