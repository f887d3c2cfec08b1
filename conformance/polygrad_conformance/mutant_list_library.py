"""The mutants of accelerated ops: libraries that do not quite do what the core would do without them.

Here: the list, for every op of `polygrad.driver.ACCELERATED_OPS`. Not here: kernels (the other lists of mutants).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from polygrad.driver import DeviceInfo, Ref
from polygrad_conformance import library_checks, strict_ops
from polygrad_conformance.mutants import Mutant, array_of, for_op, poke, put_array

MUTANTS: list[Mutant] = []
WIDE = 4  # bytes of float32
LIBRARY = 7  # the ordinal of the strict device that has these ops


def _add(op: str, name: str, work: Callable[..., Any], *killers: str) -> None:
    MUTANTS.append(Mutant(name, op, for_op(op, work), tuple(f"L5.accel.{k}" for k in killers), LIBRARY))


def _contiguous(ref: Ref) -> Ref:
    strides: list[int] = []
    step = 1
    for extent in reversed(ref.shape):
        strides.insert(0, step)
        step *= extent
    return ref._replace(strides=tuple(strides))


def _changed(op: str, change: Callable[[Ref], Ref]) -> Callable[..., None]:
    """Return the work that runs *op* on inputs as *change* makes them."""

    def work(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
        inner.polygrad_launch_op(device, op, outs, tuple(change(r) for r in ins), attrs)

    return work


def _overrun(op: str) -> Callable[..., None]:
    """Return the work that runs *op* and writes one element beyond its end."""

    def work(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
        inner.polygrad_launch_op(device, op, outs, ins, attrs)
        out = outs[0]
        poke(inner, device, out.handle, out.dtype, out.offset + int(np.prod(out.shape)))

    return work


def _attrs(op: str, **changes: Callable[[Any], Any]) -> Callable[..., None]:
    """Return the work that runs *op* with some attrs changed."""

    def work(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
        new = {k: changes[k](v) if k in changes else v for k, v in attrs.items()}
        inner.polygrad_launch_op(device, op, outs, ins, new)

    return work


def _computed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the work that gives *function* the inputs as arrays, and writes what it returns."""

    def work(inner: Any, device: DeviceInfo, _outs: Any, ins: Any, _attrs: Any) -> Any:
        return function(*(array_of(inner, device, r) for r in ins))

    return work


# ---- matmul -----------------------------------------------------------------------------------------------------


def _in_tf32(a: Any, b: Any) -> Any:
    if a.dtype != np.float32:
        return np.matmul(a, b)
    rounded = [(np.ascontiguousarray(x).view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for x in (a, b)]
    return np.matmul(*rounded)


def _narrow_sums(a: Any, b: Any) -> Any:
    total = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    for k in range(a.shape[-1]):
        total = (total + a[..., :, k, None] * b[..., k, None, :]).astype(a.dtype)
    return total


def _whole_tiles(a: Any, b: Any) -> Any:
    k = a.shape[-1] // 16 * 16
    return np.matmul(a[..., :k], b[..., :k, :])


_add("matmul", "transposed operands taken as they lie", _changed("matmul", _contiguous),
     "matmul.transposed.float32", "matmul.transposed.int64")  # fmt: skip
_add("matmul", "offsets of operands ignored", _changed("matmul", lambda r: r._replace(offset=0)),
     "matmul.padded.float32", "matmul.padded.bfloat16")  # fmt: skip
_add("matmul", "one matrix for the whole batch", _changed("matmul", lambda r: r._replace(
    strides=(0, *r.strides[1:]) if len(r.strides) > 2 else r.strides)), "matmul.batched.float64")  # fmt: skip
_add("matmul", "a shared operand read backwards", _changed("matmul", lambda r: r._replace(
    offset=r.offset + (r.shape[-1] - 1) * r.strides[-1], strides=(*r.strides[:-1], -r.strides[-1])
) if 0 in r.strides else r), "matmul.shared.float32")  # fmt: skip
_add("matmul", "whole tiles of 16 alone", _computed(_whole_tiles), "matmul.plain.float32", "matmul.vector.float64")
_add("matmul", "TF32 unasked", _computed(_in_tf32), "matmul.precision")
_add("matmul", "narrow floats summed in their own format", _computed(_narrow_sums),
     "matmul.long.float16", "matmul.long.bfloat16")  # fmt: skip
_add("matmul", "integers multiplied as float32", _computed(lambda a, b: np.matmul(
    a.astype(np.float32) + 0.25, b.astype(np.float32)) if a.dtype.kind == "i" else np.matmul(a, b)),
    "matmul.plain.int32")  # fmt: skip
_add("matmul", "one element of a product too many", _overrun("matmul"), "matmul.plain.float64")

# ---- matmul_add -------------------------------------------------------------------------------------------------


def _ended(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the work that gives *function* the product, the addend and whether relu follows, and writes the result."""

    def work(inner: Any, device: DeviceInfo, _outs: Any, ins: Any, attrs: Any) -> Any:
        a, b, c = (array_of(inner, device, r) for r in ins)
        product = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return function(product, c.astype(np.float64), attrs.get("activation") == "relu").astype(c.dtype)

    return work


_add("matmul_add", "no addend", _ended(lambda p, _, relu: np.maximum(p, 0) if relu else p),
     "matmul_add.plain.float32", "matmul_add.special")  # fmt: skip
_add("matmul_add", "the first row of the addend for all", _ended(lambda p, c, relu: np.maximum(
    p + c[..., :1, :], 0) if relu else p + c[..., :1, :]), "matmul_add.transposed.float64")  # fmt: skip
_add("matmul_add", "relu before the sum", _ended(lambda p, c, relu: np.maximum(p, 0) + c if relu else p + c),
     "matmul_add.batched.float32")  # fmt: skip
_add("matmul_add", "no relu", _ended(lambda p, c, _: p + c), "matmul_add.shared.bfloat16")
_add("matmul_add", "relu that drops NaN", _ended(lambda p, c, relu: np.fmax(p + c, 0) if relu else p + c),
     "matmul_add.special")  # fmt: skip
_add("matmul_add", "offsets of operands and addend ignored", _changed("matmul_add", lambda r: r._replace(offset=0)),
     "matmul_add.padded.float32", "matmul_add.vector.float64")  # fmt: skip
_add("matmul_add", "sums in the operands' own format", _computed(lambda a, b, c: (
    _narrow_sums(a, b) + c).astype(c.dtype)), "matmul_add.long.float16", "matmul_add.long.bfloat16")  # fmt: skip
_add("matmul_add", "one element of an ended product too many", _overrun("matmul_add"), "matmul_add.plain.float64")

# ---- copy -------------------------------------------------------------------------------------------------------

_add("copy", "copies of memory as it lies", _changed("copy", _contiguous), "copy.transposed", "copy.padded")
_add("copy", "copies from the beginning", _changed("copy", lambda r: r._replace(offset=0)), "copy.padded")
_add("copy", "a stride of 0 copied as 1", _changed("copy", lambda r: r._replace(
    offset=0, shape=r.shape, strides=(1, 0) if r.strides[0] == 0 else r.strides)), "copy.broadcast")  # fmt: skip
_add("copy", "one element of a copy too many", _overrun("copy"), "copy.plain")

# ---- random_bits ------------------------------------------------------------------------------------------------

_add("random_bits", "the next counter's words", _attrs("random_bits", counter=lambda c: c + 1), "random_bits")
_add("random_bits", "counters of 32 bits", _attrs("random_bits", counter=lambda c: c & 0xFFFFFFFF), "random_bits")
_add("random_bits", "keys of 32 bits", _attrs("random_bits", key=lambda k: k & 0xFFFFFFFF), "random_bits")
_add("random_bits", "one word too many", _overrun("random_bits"), "random_bits")

# ---- scatter_add ------------------------------------------------------------------------------------------------


def _last_wins(inner: Any, device: DeviceInfo, outs: Any, ins: Any, _attrs: Any) -> Any:
    index, rows = (array_of(inner, device, r) for r in ins)
    total = np.zeros(outs[0].shape, rows.dtype)
    good = (index >= -len(total)) & (index < len(total))
    total[index[good]] = rows[good]
    return total


def _on_top(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    before = array_of(inner, device, outs[0])
    inner.polygrad_launch_op(device, "scatter_add", outs, ins, attrs)
    return array_of(inner, device, outs[0]) + before


def _from_the_start(inner: Any, device: DeviceInfo, outs: Any, ins: Any, _attrs: Any) -> Any:
    index, rows = (array_of(inner, device, r) for r in ins)
    total = np.zeros(outs[0].shape, rows.dtype)
    np.add.at(total, np.clip(index, 0, len(total) - 1), rows)
    return total


def _clamping(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    inner.polygrad_launch_op(device, "scatter_add", outs, ins, attrs)
    index, rows = (array_of(inner, device, r) for r in ins)
    total = array_of(inner, device, outs[0])
    for j in np.flatnonzero((index < -len(total)) | (index >= len(total))):
        total[-1] += rows[j]
    return total


def _silent(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
    inner.polygrad_launch_op(device, "scatter_add", outs, ins, {**attrs, "status": None})


_add("scatter_add", "the last row wins", _last_wins, "scatter_add.float32", "scatter_add.int32")
_add("scatter_add", "added to what is there", _on_top, "scatter_add.int64")
_add("scatter_add", "negative rows as row 0", _from_the_start, "scatter_add.float64")
_add("scatter_add", "bad rows at the end", _clamping, "scatter_add.float32")
_add("scatter_add", "bad rows not reported", _silent, "scatter_add.bfloat16")
_add("scatter_add", "one element of a scatter too many", _overrun("scatter_add"), "scatter_add.float16")

# ---- scatter_reduce ---------------------------------------------------------------------------------------------


def _zeros_for_nothing(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    inner.polygrad_launch_op(device, "scatter_reduce", outs, ins, attrs)
    found = array_of(inner, device, outs[0])
    return np.where(found == strict_ops.identity(attrs["mode"], found.dtype), 0, found)


_add("scatter_reduce", "minima for maxima", _attrs("scatter_reduce", mode=lambda m: {"max": "min"}.get(m, m)),
     "scatter_reduce.max.float32")  # fmt: skip
_add("scatter_reduce", "zeros where nothing goes", _zeros_for_nothing, "scatter_reduce.min.int32",
     "scatter_reduce.max.float64")  # fmt: skip

# ---- the ops of batches -----------------------------------------------------------------------------------------


def _off(op: str) -> Callable[..., None]:
    """Return the work that runs *op* and spoils the last element of its first result a little."""

    def work(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
        inner.polygrad_launch_op(device, op, outs, ins, attrs)
        found = array_of(inner, device, outs[0])
        last = found.reshape(-1)[-1]
        found.reshape(-1)[-1] = last + (1 if found.dtype.kind in "iu" else 0.01 * max(abs(last), 1))
        put_array(inner, device, outs[0], found)

    return work


def _in_place(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
    """Leave the first operand changed, as routines do that factor in place."""
    inner.polygrad_launch_op(device, "solve", outs, ins, attrs)
    put_array(inner, device, ins[0], array_of(inner, device, ins[0]) + 1)


def _factor_of_anything(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    inner.polygrad_launch_op(device, "cholesky", outs, ins, attrs)
    return np.nan_to_num(array_of(inner, device, outs[0]), nan=1.0)


def _turned(inner: Any, device: DeviceInfo, outs: Any, ins: Any, _attrs: Any) -> None:
    x = array_of(inner, device, ins[0])
    order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")
    put_array(inner, device, outs[0], np.take_along_axis(x, order, -1))
    put_array(inner, device, outs[1], order)


def _dropping(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    if attrs["kind"] == "max":
        return np.fmax.accumulate(array_of(inner, device, ins[0]), axis=-1)
    inner.polygrad_launch_op(device, "scan", outs, ins, attrs)
    return None


def _last(inner: Any, device: DeviceInfo, _outs: Any, ins: Any, attrs: Any) -> Any:
    x = array_of(inner, device, ins[0])[..., ::-1]
    return x.shape[-1] - 1 - (np.argmax if attrs["kind"] == "max" else np.argmin)(x, axis=-1)


def _reversed(op: str) -> Callable[..., None]:
    """Return the work that takes a convolution for what mathematicians call one."""

    def work(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
        w = array_of(inner, device, ins[1])
        put_array(inner, device, ins[1], np.flip(w, tuple(range(2, w.ndim))))
        inner.polygrad_launch_op(device, op, outs, ins, attrs)
        put_array(inner, device, ins[1], w)

    return work


def _ones(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * len(numbers)


def _accumulating(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    before = array_of(inner, device, outs[0]).copy()
    inner.polygrad_launch_op(device, "convolution_weight", outs, ins, attrs)
    return before + array_of(inner, device, outs[0])


def _nearly(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    """Round as sums of the operands' own dtype would: to a few digits less than the result has."""
    inner.polygrad_launch_op(device, "convolution", outs, ins, attrs)
    found = array_of(inner, device, outs[0])
    return (found.astype(np.float32) * np.float32(1 + 2.0**-7)).astype(found.dtype) if found.itemsize < WIDE else None


def _zero_padding(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    inner.polygrad_launch_op(device, "max_pool", outs, ins, attrs)
    found = array_of(inner, device, outs[0])
    return np.maximum(found, np.zeros_like(found)) if any(attrs["before"]) else None


def _unshared(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    inner.polygrad_launch_op(device, "max_pool_gradient", outs, ins, attrs)
    return np.sign(array_of(inner, device, outs[0]))


def _first_head(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
    q, *more = ins
    same = q._replace(strides=(*q.strides[:2], 0, q.strides[3]))
    inner.polygrad_launch_op(device, "attention", outs, (same, *more), attrs)


def _unscaled(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    inner.polygrad_launch_op(device, "attention_backward", outs, ins, attrs)
    return array_of(inner, device, outs[0]) / attrs["scale"]


def _without_lse(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
    lse = array_of(inner, device, ins[4]).copy()
    put_array(inner, device, ins[4], np.zeros_like(lse))
    inner.polygrad_launch_op(device, "attention_backward", outs, ins, attrs)
    put_array(inner, device, ins[4], lse)


def _in_order(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
    inner.polygrad_launch_op(device, "attention_backward", tuple(_contiguous(r) for r in outs), ins, attrs)


def _scaled(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> Any:
    inner.polygrad_launch_op(device, "fft", outs, ins, attrs)
    found = array_of(inner, device, outs[0])
    return found / found.shape[-2] if attrs["inverse"] else found


def _both_triangles(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
    inner.polygrad_launch_op(device, "solve", outs, ins, {"complex": attrs["complex"]})


def _upper(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
    x = array_of(inner, device, ins[0])
    put_array(inner, device, ins[0], x.swapaxes(1, 2))
    inner.polygrad_launch_op(device, "eigh", outs, ins, attrs)
    put_array(inner, device, ins[0], x)


def _ascending(inner: Any, device: DeviceInfo, outs: Any, ins: Any, attrs: Any) -> None:
    inner.polygrad_launch_op(device, "svd", outs, ins, attrs)
    values = outs[1 if attrs["vectors"] else 0]
    put_array(inner, device, values, array_of(inner, device, values)[..., ::-1])


for _op, (_, _dtypes) in library_checks.LIBRARY.items():
    _add(_op, f"{_op} a little off at the end", _off(_op), f"{_op}.{_dtypes[0]}")
    _add(_op, f"{_op} beyond its result", _overrun(_op), f"{_op}.{_dtypes[-1]}")
_add("sort", "equal ones turned round", _turned, "sort.int32", "sort.float64")
_add("scan", "maxima that drop NaN", _dropping, "scan.float32")
_add("arg_extreme", "the last of equal ones", _last, "arg_extreme.int32", "arg_extreme.float64")
_add("searchsorted", "both sides alike", _attrs("searchsorted", right=lambda _: False), "searchsorted.int64")
_add("convolution", "kernels reversed", _reversed("convolution"), "convolution.float32", "convolution.float16")
_add("convolution_input", "kernels of gradients reversed", _reversed("convolution_input"), "convolution_input.float32")
_add("convolution", "no dilation", _attrs("convolution", dilation=_ones), "convolution.float64")
_add("convolution_weight", "no stride", _attrs("convolution_weight", stride=_ones),
     "convolution_weight.float32")  # fmt: skip
_add("convolution_weight", "gradients of kernels added to what is there", _accumulating, "convolution_weight.float64")
_add("convolution", "sums in float16", _nearly, "convolution.float16")
_add("max_pool", "zeros for padding", _zero_padding, "max_pool.float32", "max_pool.bfloat16")
_add("max_pool_gradient", "the whole gradient to each of equal ones", _unshared, "max_pool_gradient.float32")
_add("attention", "operands of attention taken as they lie", _changed("attention", _contiguous), "attention.float32")
_add("attention", "everybody sees everything", _attrs("attention", causal=lambda _: False), "attention.float64")
_add("attention", "rows of one head for all", _first_head, "attention.bfloat16", "attention.float32")
_add("attention_backward", "a gradient without the scale", _unscaled, "attention_backward.float64")
_add("attention_backward", "weights of the row alone", _without_lse, "attention_backward.float32")
_add("attention_backward", "results in C order, wherever they belong", _in_order, "attention_backward.placed.float32")
_add("solve", "solved in place of its operand", _in_place, "solve.float64")
_add("fft", "inverse transforms with the factor 1 / n", _scaled, "fft.float64")
_add("cholesky", "a factor of what has none", _factor_of_anything, "cholesky.float64")
_add("triangular_solve", "both triangles read", _both_triangles, "triangular_solve.float32")
_add("eigh", "the upper triangle read", _upper, "eigh.float64")
_add("svd", "singular values ascending", _ascending, "svd.float32")
