"""Discrete Fourier transforms that users call: ``pg.fft``.

Here: the standard's functions over any axes, with cropping, padding and the three places of the factor 1 / n.
Not here: the transforms themselves (`fft_steps.py`).
"""

import math
import operator
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.linalg_parts import as_given, is_complex, merged, split
from polygrad.ops.manipulation import part
from polygrad.ops.table import composite

NORMS = ("backward", "ortho", "forward")
BOTH = "float complex"
Calls = tuple[tuple[tuple[int, ...], dict[str, Any]], ...]


def _check_norm(norm: Any) -> str:
    if norm not in NORMS:
        raise ShapeError(f"cannot transform with norm {norm!r}: it is one of {', '.join(map(repr, NORMS))}")
    return str(norm)


def _factor(n: int, norm: str, inverse: bool) -> float:
    """Return what a transform of length n is multiplied by."""
    if norm == "ortho":
        return 1.0 / math.sqrt(n)
    return 1.0 / n if (norm == "backward") == inverse else 1.0


def _operand(xp: Any, x: Any) -> Any:
    """Return x in a dtype that is transformed: 16-bit floats in float32, integers in float64."""
    kind = dtypes.KINDS[x.dtype]
    if kind == "bool":
        raise DTypeError("cannot transform bool: it takes float or complex dtypes; cast with .astype(...)")
    if kind == "int":
        return cast(xp, x, dtypes.float64)
    return cast(xp, x, dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


def _real_operand(xp: Any, name: str, x: Any) -> Any:
    if is_complex(x):
        raise DTypeError(f"cannot take {name} of {x.dtype.name}: it takes a real array; use fft, or pg.real(...)")
    return _operand(xp, x)


def _length(given: Any, have: int) -> int:
    n = have if given is None else operator.index(given)
    if n < 1:
        raise ShapeError(f"cannot transform {n} elements: a transform has at least one; give n=")
    return n


def _fitted(xp: Any, x: Any, axis: int, n: int) -> Any:
    """Return x cropped or padded with zeros to n elements along an axis."""
    have = x.shape[axis]
    if have > n:
        return part(xp, x, axis, 0, n)
    if have == n:
        return x
    shape = tuple(n - have if k == axis else m for k, m in enumerate(x.shape))
    return xp.concat([x, cast(xp, xp.zeros(shape, dtype=dtypes.part(x.dtype)), x.dtype)], axis=axis)


def _along_last(xp: Any, x: Any, axis: int, transform: Any) -> Any:
    """Return *transform* of x with an axis at the end, which is brought back."""
    if axis == x.ndim - 1:
        return transform(x)
    return xp.moveaxis(transform(xp.moveaxis(x, axis, -1)), -1, axis)


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1.0 else x * factor


def _complex_zeros(xp: Any, shape: Any, dtype: Any) -> Any:
    return xp.pair_(xp.zeros(shape, dtype=dtype), xp.zeros(shape, dtype=dtype))


def _whole(xp: Any, x: Any) -> Any:
    return x if is_complex(x) else cast(xp, x, dtypes.whole(x.dtype))


def _one(xp: Any, x: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Any:
    norm = _check_norm(norm)
    x = _whole(xp, _operand(xp, x))
    k = shapes.axis("transform", axis, x.ndim)
    size = _length(n, x.shape[k])
    x = _fitted(xp, x, k, size)
    if 0 in x.shape:
        return x
    out = _along_last(xp, x, k, lambda v: split(xp, xp.fft_(merged(xp, v), inverse), True))
    return _scaled(out, _factor(size, norm, inverse))


def _several(xp: Any, x: Any, s: Any, axes: Any) -> list[tuple[int, Any]]:
    """Return (axis, length or None) for a transform over several axes."""
    if axes is None:
        chosen = list(range(x.ndim)) if s is None else list(range(x.ndim - len(s), x.ndim))
    else:
        chosen = [shapes.axis("transform", k, x.ndim) for k in axes]
    sizes = [None] * len(chosen) if s is None else list(s)
    if len(sizes) != len(chosen) or (chosen and min(chosen) < 0):
        raise ShapeError(
            f"cannot transform shape {list(x.shape)} with s={s!r} over axes={axes!r}: give one length for each axis"
        )
    if len(set(chosen)) != len(chosen):
        raise ShapeError(f"cannot transform over axes {axes!r}: each may be named once")
    return [(k, None if n == -1 else n) for k, n in zip(chosen, sizes, strict=True)]


def _samples(*calls: Any) -> Any:
    """Return samples: an array of a shape, then keywords."""
    return lambda draw: [((draw.array(shape, -2, 2),), keywords) for shape, keywords in calls]


ONE: Calls = (
    ((6,), {}), ((7,), {"norm": "ortho"}), ((1,), {}), ((3, 4), {"axis": 0}), ((3, 4), {"n": 6}), ((3, 5), {"n": 2}),
    ((2, 3, 4), {"axis": 1, "norm": "forward"}), ((37,), {}),
)  # fmt: skip
MANY: Calls = (
    ((3, 4), {}), ((2, 3, 4), {"axes": (0, 2)}), ((3, 4), {"s": (2, 6), "norm": "ortho"}), ((2, 3, 4), {"s": (3, 3)}),
    ((5,), {"norm": "forward"}), ((2, 3), {"axes": (1,)}),
)  # fmt: skip


def _as_numpy(name: str) -> Any:
    """Return NumPy's function as a reference; axes without lengths are given explicitly, as NumPy wishes."""

    def reference(np: Any, x: Any, **keywords: Any) -> Any:
        if keywords.get("s") is not None and keywords.get("axes") is None:
            keywords["axes"] = tuple(range(x.ndim - len(keywords["s"]), x.ndim))
        return getattr(np.fft, name)(x, **keywords)

    return reference


@composite(reference=_as_numpy("fft"), samples=_samples(*ONE), dtypes=BOTH, where="fft")
def fft(xp: Any, x: Any, /, *, n: Any = None, axis: Any = -1, norm: Any = "backward") -> Any:
    """The discrete Fourier transform along an axis, cropped or padded with zeros to n elements."""
    return _one(xp, x, n, axis, norm, False)


@composite(reference=_as_numpy("ifft"), samples=_samples(*ONE), dtypes=BOTH, where="fft")
def ifft(xp: Any, x: Any, /, *, n: Any = None, axis: Any = -1, norm: Any = "backward") -> Any:
    """The inverse of `fft`."""
    return _one(xp, x, n, axis, norm, True)


@composite(reference=_as_numpy("fftn"), samples=_samples(*MANY), dtypes=BOTH, where="fft")
def fftn(xp: Any, x: Any, /, *, s: Any = None, axes: Any = None, norm: Any = "backward") -> Any:
    """The discrete Fourier transform over several axes, all if none is named."""
    out = _whole(xp, _operand(xp, x))
    for k, n in reversed(_several(xp, x, s, axes)):
        out = _one(xp, out, n, k, norm, False)
    return out


@composite(reference=_as_numpy("ifftn"), samples=_samples(*MANY), dtypes=BOTH, where="fft")
def ifftn(xp: Any, x: Any, /, *, s: Any = None, axes: Any = None, norm: Any = "backward") -> Any:
    """The inverse of `fftn`."""
    out = _whole(xp, _operand(xp, x))
    for k, n in reversed(_several(xp, x, s, axes)):
        out = _one(xp, out, n, k, norm, True)
    return out


@composite(reference=_as_numpy("rfft"), samples=_samples(*ONE), dtypes="float", where="fft")
def rfft(xp: Any, x: Any, /, *, n: Any = None, axis: Any = -1, norm: Any = "backward") -> Any:
    """The first n // 2 + 1 frequencies of the transform of a real array; the others are their conjugates."""
    norm = _check_norm(norm)
    x = _real_operand(xp, "rfft", x)
    k = shapes.axis("transform", axis, x.ndim)
    size = _length(n, x.shape[k])
    x = _fitted(xp, x, k, size)
    if 0 in x.shape:
        shape = tuple(size // 2 + 1 if d == k else m for d, m in enumerate(x.shape))
        return _complex_zeros(xp, shape, x.dtype)
    out = _along_last(xp, x, k, lambda v: split(xp, xp.rfft_(v), True))
    return _scaled(out, _factor(size, norm, False))


def _halves(xp: Any, x: Any, n: Any, axis: Any, norm: str, inverse: bool) -> Any:
    """Return the n real values of a half spectrum; an inverse's sign of the exponent, or by conjugation the other."""
    given, x = x, _whole(xp, _operand(xp, x))
    k = shapes.axis("transform", axis, x.ndim)
    size = _length(n, 2 * (x.shape[k] - 1))
    x = _fitted(xp, x, k, size // 2 + 1)
    if 0 in x.shape:
        empty = xp.zeros(tuple(size if d == k else m for d, m in enumerate(x.shape)), dtype=dtypes.part(x.dtype))
        return as_given(xp, empty, given)
    x = x if inverse else xp.conj(x)
    out = _along_last(xp, x, k, lambda v: xp.irfft_(merged(xp, v), size))
    return as_given(xp, _scaled(out, _factor(size, norm, inverse)), given)


@composite(
    reference=_as_numpy("irfft"),
    samples=_samples(
        ((4,), {}), ((3, 4), {"axis": 0}), ((4,), {"n": 7}), ((3, 4), {"n": 4, "norm": "ortho"}), ((2,), {})
    ),
    dtypes=BOTH,
    where="fft",
)
def irfft(xp: Any, x: Any, /, *, n: Any = None, axis: Any = -1, norm: Any = "backward") -> Any:
    """The inverse of `rfft`: n real values, 2 (m - 1) of m frequencies if n is not given."""
    return _halves(xp, x, n, axis, _check_norm(norm), True)


@composite(reference=_as_numpy("rfftn"), samples=_samples(*MANY), dtypes="float", where="fft")
def rfftn(xp: Any, x: Any, /, *, s: Any = None, axes: Any = None, norm: Any = "backward") -> Any:
    """The transform of a real array over several axes, the last of which keeps half of its frequencies."""
    x = _real_operand(xp, "rfftn", x)
    plan = _several(xp, x, s, axes)
    if not plan:
        raise ShapeError("cannot take rfftn over no axes: name at least one")
    k, n = plan[-1]
    out = xp.rfft(x, n=n, axis=k, norm=norm)
    for k, n in reversed(plan[:-1]):
        out = _one(xp, out, n, k, norm, False)
    return out


@composite(reference=_as_numpy("irfftn"), samples=_samples(*MANY), dtypes=BOTH, where="fft")
def irfftn(xp: Any, x: Any, /, *, s: Any = None, axes: Any = None, norm: Any = "backward") -> Any:
    """The inverse of `rfftn`."""
    plan = _several(xp, x, s, axes)
    if not plan:
        raise ShapeError("cannot take irfftn over no axes: name at least one")
    out = _whole(xp, _operand(xp, x))
    for k, n in plan[:-1]:
        out = _one(xp, out, n, k, norm, True)
    k, n = plan[-1]
    return as_given(xp, xp.irfft(out, n=n, axis=k, norm=norm), x)


@composite(
    reference=_as_numpy("hfft"),
    samples=_samples(((4,), {}), ((3, 4), {"axis": 0}), ((4,), {"n": 7}), ((3, 4), {"n": 4, "norm": "ortho"})),
    dtypes=BOTH,
    where="fft",
)
def hfft(xp: Any, x: Any, /, *, n: Any = None, axis: Any = -1, norm: Any = "backward") -> Any:
    """The transform of a signal whose second half mirrors the first's conjugate: a real spectrum."""
    return _halves(xp, x, n, axis, _check_norm(norm), False)


@composite(reference=_as_numpy("ihfft"), samples=_samples(*ONE), dtypes="float", where="fft")
def ihfft(xp: Any, x: Any, /, *, n: Any = None, axis: Any = -1, norm: Any = "backward") -> Any:
    """The inverse of `hfft`: the first n // 2 + 1 values of the signal with a real spectrum."""
    x = _real_operand(xp, "ihfft", x)
    flipped = {"backward": "forward", "forward": "backward"}.get(_check_norm(norm), norm)
    return xp.conj(xp.rfft(x, n=n, axis=axis, norm=flipped))


def _count(name: str, n: Any) -> int:
    size = operator.index(n)
    if size < 1:
        raise ShapeError(f"cannot take {name} of {size} samples: there must be at least one")
    return size


@composite(
    reference=lambda np, n, d=1.0, dtype=None: np.fft.fftfreq(n, d),
    samples=lambda draw: [((n,), {"d": d, "dtype": draw.dtype}) for n, d in ((8, 1.0), (7, 0.5), (1, 2.0))],
    differentiable=False,
    where="fft",
)
def fftfreq(xp: Any, n: Any, /, *, d: Any = 1.0, dtype: Any = None) -> Any:
    """The frequencies of `fft` in cycles per unit of *d*, the distance of samples; the negative ones come last."""
    size = _count("fftfreq", n)
    at = xp.iota(size, dtypes.int64)
    signed = xp.where(xp.greater_equal(at, (size + 1) // 2), at - size, at)
    return _frequencies(xp, signed, size, d, dtype)


@composite(
    reference=lambda np, n, d=1.0, dtype=None: np.fft.rfftfreq(n, d),
    samples=lambda draw: [((n,), {"d": d, "dtype": draw.dtype}) for n, d in ((8, 1.0), (7, 0.5), (1, 2.0))],
    differentiable=False,
    where="fft",
)
def rfftfreq(xp: Any, n: Any, /, *, d: Any = 1.0, dtype: Any = None) -> Any:
    """The frequencies of `rfft` in cycles per unit of *d*, the distance of samples."""
    size = _count("rfftfreq", n)
    return _frequencies(xp, xp.iota(size // 2 + 1, dtypes.int64), size, d, dtype)


def _frequencies(xp: Any, at: Any, n: int, d: Any, dtype: Any) -> Any:
    wanted = dtypes.float64 if dtype is None else dtypes.as_dtype(dtype)
    if dtypes.KINDS[wanted] != "float":
        raise DTypeError(f"cannot make frequencies of {wanted.name}: they are of a real float dtype")
    return cast(xp, at, wanted) / (n * float(d))


SHIFTS: Calls = (((5,), {}), ((3, 4), {}), ((3, 4), {"axes": 1}), ((2, 3, 5), {"axes": (0, 2)}), ((0,), {}))


def _shifted(xp: Any, x: Any, axes: Any, inverse: bool) -> Any:
    chosen = shapes.axes("shift", axes, x.ndim)
    by = tuple((x.shape[k] + 1) // 2 if inverse else x.shape[k] // 2 for k in chosen)
    return xp.roll(x, by, chosen) if chosen else x


@composite(reference=_as_numpy("fftshift"), samples=_samples(*SHIFTS), dtypes=BOTH, where="fft")
def fftshift(xp: Any, x: Any, /, *, axes: Any = None) -> Any:
    """The zero frequency moved to the middle of axes, all if none is named."""
    return _shifted(xp, x, axes, False)


@composite(reference=_as_numpy("ifftshift"), samples=_samples(*SHIFTS), dtypes=BOTH, where="fft")
def ifftshift(xp: Any, x: Any, /, *, axes: Any = None) -> Any:
    """The inverse of `fftshift`."""
    return _shifted(xp, x, axes, True)
