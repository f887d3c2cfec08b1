"""The accelerated ops of the strict driver, by definition: what each does to typed blocks of host memory.

Here: one function an op, of arrays. Not here: when they run (`strict.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from polygrad.driver import Ref
from polygrad_conformance import philox, strict_attention, strict_windows
from polygrad_conformance.case import Array

STORAGE_ITEMSIZE = 2


def seen(block: Array, ref: Ref) -> Array:
    """Return the memory of *ref*, in a typed block, as an array."""
    size = block.itemsize
    strides = [size * s for s in ref.strides]
    return np.lib.stride_tricks.as_strided(block[ref.offset :], ref.shape, strides)


def copy(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:  # noqa: ARG001  every op is called with three
    """Copy."""
    outs[0][...] = ins[0]


def matmul(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:  # noqa: ARG001  every op is called with three
    """Multiply matrices; float16 and bfloat16 are summed in float32, floats in the next wider format."""
    a, b = ins
    if a.dtype.kind in "iu":
        outs[0][...] = np.matmul(a, b)
        return
    wide = np.float32 if a.dtype.itemsize == STORAGE_ITEMSIZE else np.float64
    outs[0][...] = np.matmul(a.astype(wide), b.astype(wide)).astype(a.dtype)


def matmul_add(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Multiply matrices and add an array, with one rounding; relu if *attrs* say so."""
    a, b, c = ins
    wide = np.float32 if a.dtype.itemsize == STORAGE_ITEMSIZE else np.float64
    total = np.matmul(a.astype(wide), b.astype(wide)) + c.astype(wide)
    if attrs.get("activation") == "relu":
        total[total <= 0] = 0
    outs[0][...] = total.astype(a.dtype)


def random_bits(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:  # noqa: ARG001  every op is called with three
    """Fill with Philox words."""
    outs[0][...] = philox.words(attrs["key"], attrs["counter"], len(outs[0]))


def scatter_add(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Add rows up at their places; *attrs* has the status word as an array, if it has one."""
    (out,), (index, rows) = outs, ins
    bad = (index < -len(out)) | (index >= len(out))
    status = attrs.get("status")
    if status is not None and bad.any() and status[0] == 0:
        first = int(index[bad][0])
        status.view(np.uint32)[1:4] = 0, first & 0xFFFFFFFF, first >> 32 & 0xFFFFFFFF
        status[0] = attrs["tag"]
    total = np.zeros(out.shape, np.float64 if rows.dtype.kind in "fV" else rows.dtype)
    np.add.at(total, index[~bad], rows[~bad].astype(total.dtype))
    out[...] = total.astype(out.dtype)


def scatter_reduce(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Take the greatest, the least or the product of the rows that go to one place."""
    (out,), (index, rows) = outs, ins
    scatter_add(outs, ins, attrs)  # for its reports
    good = (index >= -len(out)) & (index < len(out))
    mode = attrs["mode"]
    out[...] = identity(mode, out.dtype)
    {"max": np.maximum, "min": np.minimum, "multiply": np.multiply}[mode].at(out, index[good], rows[good])


def identity(mode: str, dtype: "np.dtype[Any]") -> Any:
    """Return what changes no value under a mode.

    >>> identity("max", np.dtype("int8")), identity("multiply", np.dtype("float32"))
    (-128, 1)
    """
    if mode == "multiply":
        return 1
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return int(limits.min if mode == "max" else limits.max)
    return -np.inf if mode == "max" else np.inf


# ---- library ops ------------------------------------------------------------------------------------------------


def _numbers(x: Array, *, whole: bool) -> Array:
    wide = x.astype(np.float64)
    return wide[..., 0] + 1j * wide[..., 1] if whole else wide


def _put(outs: Sequence[Array], values: Sequence[Array], *whole: bool) -> None:
    for out, value, parts in zip(outs, values, whole, strict=True):
        out[...] = np.stack([np.real(value), np.imag(value)], -1) if parts else value


def _scan(x: Array, kind: str) -> Array:
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
    return np.asarray(ufunc.accumulate(wide, axis=-1, dtype=wide.dtype))


def _searched(x: Array, wanted: Array, side: Literal["left", "right"]) -> Array:
    rows = zip(x.reshape(-1, x.shape[-1]), wanted.reshape(-1, wanted.shape[-1]), strict=True)
    return np.stack([np.searchsorted(a, v, side) for a, v in rows]).reshape(wanted.shape)


def _recurrence(a: Array, b: Array) -> Array:
    out, factor = b.astype(np.float64), a.astype(np.float64)
    for i in range(1, b.shape[-1]):
        out[..., i] += factor[..., i] * out[..., i - 1]
    return out


def _each(function: Callable[[Array], Array], a: Array) -> Array:
    """Apply *function* to each matrix of a batch; NaN where it has no result."""
    results = []
    for matrix in a.reshape(-1, *a.shape[-2:]):
        try:
            results.append(function(matrix))
        except np.linalg.LinAlgError:
            results.append(np.full_like(matrix, np.nan))
    return np.stack(results).reshape(a.shape)


def _cofactors(a: Array) -> Array:
    u, s, vh = np.linalg.svd(a)
    others = np.stack([np.prod(np.delete(s, k, -1), -1) for k in range(a.shape[-1])], -1)
    phase = np.linalg.det(u) * np.linalg.det(vh)
    return np.asarray(phase[..., None, None] * ((u.conj() * others[..., None, :]) @ vh.conj()))


def _pinv(a: Array, rtol: Array) -> Array:
    return np.asarray(np.linalg.pinv(a, rcond=rtol[..., 0]))


def library(name: str, outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Run one of the ops that take batches along their first axes."""
    c = bool(attrs.get("complex", name in ("fft", "irfft")))
    x = ins[0]
    with np.errstate(all="ignore"):
        if name == "scan":
            _put(outs, [_scan(x, attrs["kind"])], False)
        elif name == "recurrence":
            _put(outs, [_recurrence(*ins)], False)
        elif name in ("sort", "sort_values"):
            order = np.argsort(x, axis=-1, kind="stable")
            _put(outs, [np.take_along_axis(x, order, -1), order][: len(outs)], *[False] * len(outs))
        elif name == "nonzero":
            _put(outs, [np.flatnonzero(x)], False)
        elif name == "arg_extreme":
            _put(outs, [(np.argmax if attrs["kind"] == "max" else np.argmin)(x, axis=-1)], False)
        elif name == "searchsorted":
            _put(outs, [_searched(ins[0], ins[1], "right" if attrs["right"] else "left")], False)
        elif name.startswith("convolution"):
            strict_windows.convolution(name, outs, ins, attrs)
        elif name == "attention":
            strict_attention.attention(outs, ins, attrs)
        elif name == "attention_backward":
            strict_attention.backward(outs, ins, attrs)
        elif name.startswith("max_pool"):
            strict_windows.pooling(name, outs, ins, attrs)
        else:
            _linear(name, outs, _numbers(x, whole=c), ins, attrs, whole=c)


def _linear(
    name: str, outs: Sequence[Array], a: Array, ins: Sequence[Array], attrs: Mapping[str, Any], *, whole: bool
) -> None:
    """Run an op of linear algebra, or a transform, on numbers."""
    more = [_numbers(x, whole=whole) for x in ins[1:]] if name in ("solve", "triangular_solve") else list(ins[1:])
    if name == "fft":
        _put(outs, [np.fft.ifft(a, norm="forward") if attrs["inverse"] else np.fft.fft(a)], True)
    elif name == "rfft":
        _put(outs, [np.fft.rfft(a)], True)
    elif name == "irfft":
        _put(outs, [np.fft.irfft(a, attrs["n"], norm="forward")], False)
    elif name == "triangular_solve":
        _put(outs, [np.linalg.solve(np.triu(a) if attrs["upper"] else np.tril(a), more[0])], whole)
    elif name in ("eigh", "eig", "svd"):
        _spectra(name, outs, a, attrs, whole=whole)
    elif name == "qr":
        _put(outs, np.linalg.qr(a, mode="complete" if attrs["full"] else "reduced"), whole, whole)
    elif name == "slogdet":
        _put(outs, np.linalg.slogdet(a), whole, False)
    else:
        functions: dict[str, Callable[..., Array]] = {
            "solve": np.linalg.solve, "det": np.linalg.det, "cofactors": _cofactors, "pinv": _pinv,
            "cholesky": lambda m: _each(np.linalg.cholesky, m),
        }  # fmt: skip
        _put(outs, [functions[name](a, *more)], whole)


def _spectra(name: str, outs: Sequence[Array], a: Array, attrs: Mapping[str, Any], *, whole: bool) -> None:
    vectors = attrs["vectors"]
    if name == "eigh":
        _put(outs, np.linalg.eigh(a) if vectors else [np.linalg.eigvalsh(a)], *[False, whole][: len(outs)])
    elif name == "eig":
        _put(outs, np.linalg.eig(a) if vectors else [np.linalg.eigvals(a)], *[True, True][: len(outs)])
    elif vectors:
        _put(outs, np.linalg.svd(a, full_matrices=attrs["full"]), whole, False, whole)
    else:
        _put(outs, [np.linalg.svd(a, compute_uv=False)], False)


LIBRARY = (
    "scan", "recurrence", "sort", "sort_values", "nonzero", "fft", "rfft", "irfft", "solve", "triangular_solve",
    "cholesky", "det", "slogdet", "cofactors", "pinv", "eigh", "eig", "svd", "qr", "arg_extreme",
    "searchsorted",
    "convolution", "convolution_input", "convolution_weight", "max_pool", "max_pool_gradient",
    "attention", "attention_backward",
)  # fmt: skip
