"""NumPy on the memory of a CPU device: operands and results mapped, computed, unmapped.

Here: `by_host`, and the ops that it computes: LAPACK's and pocketfft's. Not here: when it is used, matrix products.

NumPy raises for a whole stack when one matrix of it is singular or not positive definite; the waist wants values that
are not finite for that matrix alone. Then the stack is gone through matrix by matrix.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_opencl.faults import translated
from polygrad_opencl.session import Session

Array = np.ndarray[Any, Any]
Attrs = Mapping[str, Any]
HALF = 64  # rows of a triangular matrix that LAPACK's general routine solves at a time
WHOLE = {"float32": np.complex64, "float64": np.complex128}


def by_host(
    session: Session,
    function: Callable[[list[Array], list[Array], Attrs], None],
    outs: Sequence[Ref],
    ins: Sequence[Ref],
    attrs: Attrs,
) -> None:
    """Call *function* with the results and operands, all contiguous, as arrays in the device's memory."""
    cl = session.cl
    maps: list[Any] = []
    try:
        arrays: list[Array] = []
        refs = [*ins, *outs]
        for k, ref in enumerate(refs):
            dtype = np.dtype(ref.dtype)
            mapped, _ = cl.enqueue_map_buffer(
                session.queue,
                ref.handle,
                cl.map_flags.READ if k < len(ins) else cl.map_flags.WRITE_INVALIDATE_REGION,
                ref.offset * dtype.itemsize,
                (math.prod(ref.shape),),
                dtype,
                is_blocking=k == len(refs) - 1,  # the queue is in order: then the others are done as well
            )
            maps.append(mapped)
            arrays.append(mapped.reshape(ref.shape))
        with np.errstate(all="ignore"):
            function(arrays[len(ins) :], arrays[: len(ins)], attrs)
    except cl.Error as error:
        raise translated(error, session.label, "map the operands of an op") from error
    finally:
        for mapped in maps:
            mapped.base.release(session.queue)


def _numbers(x: Array) -> Array:
    """Return an array with (real, imaginary) along its last axis as complex numbers."""
    whole: Array = x.view(WHOLE[x.dtype.name])[..., 0]
    return whole


def _operands(arrays: list[Array], attrs: Attrs) -> list[Array]:
    return [_numbers(x) for x in arrays] if attrs["complex"] else arrays


def _each(outs: list[Array], function: Callable[..., Any], *stacks: Array) -> None:
    """Put *function* of stacks of matrices into *outs*; NaN for those matrices for which it raises."""
    try:
        values = function(*stacks)
    except np.linalg.LinAlgError:
        if stacks[0].ndim == 2:  # noqa: PLR2004  one matrix
            values = (np.nan,) * len(outs)
        else:
            for index in np.ndindex(stacks[0].shape[:-2]):
                _each([out[index] for out in outs], function, *[s[index] for s in stacks])
            return
    for out, value in zip(outs, values if isinstance(values, tuple) else (values,), strict=True):
        out[...] = value


def _solve(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    _each(_operands(outs, attrs), np.linalg.solve, *_operands(ins, attrs))


def _triangular_solve(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    (out,), (a, b) = _operands(outs, attrs), _operands(ins, attrs)
    out[...] = b
    _substitute(a, out, attrs["upper"])


def _substitute(a: Array, x: Array, upper: bool) -> None:
    """Solve in place: each half of the rows by itself, what the first gives taken off the second between them."""
    n = a.shape[-1]
    if n <= HALF:
        _each([x], np.linalg.solve, np.triu(a) if upper else np.tril(a), x.copy())
        return
    low, high = slice(None, n // 2), slice(n // 2, None)
    first, second = (high, low) if upper else (low, high)
    _substitute(a[..., first, first], x[..., first, :], upper)
    x[..., second, :] -= a[..., second, first] @ x[..., first, :]
    _substitute(a[..., second, second], x[..., second, :], upper)


def _cholesky(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    _each(_operands(outs, attrs), np.linalg.cholesky, *_operands(ins, attrs))


def _slogdet(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    sign, size = np.linalg.slogdet(_operands(ins, attrs)[0])
    _operands(outs[:1], attrs)[0][...] = sign
    outs[1][...] = size


def _det(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    _operands(outs, attrs)[0][...] = np.linalg.det(_operands(ins, attrs)[0])


def _eigh(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    targets = [outs[0], *_operands(outs[1:], attrs)]
    function = (lambda m: tuple(np.linalg.eigh(m))) if attrs["vectors"] else np.linalg.eigvalsh
    _each(targets, function, *_operands(ins, attrs))


def _eig(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    function = (lambda m: tuple(np.linalg.eig(m))) if attrs["vectors"] else np.linalg.eigvals
    _each([_numbers(x) for x in outs], function, *_operands(ins, attrs))


def _svd(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    if not attrs["vectors"]:
        _each(outs, lambda m: np.linalg.svd(m, compute_uv=False), *_operands(ins, attrs))
        return
    u, vh = _operands([outs[0], outs[2]], attrs)
    full = attrs["full"]
    _each([u, outs[1], vh], lambda m: tuple(np.linalg.svd(m, full_matrices=full)), *_operands(ins, attrs))


def _qr(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    mode: Any = "complete" if attrs["full"] else "reduced"
    _each(_operands(outs, attrs), lambda m: tuple(np.linalg.qr(m, mode=mode)), *_operands(ins, attrs))


def _fft(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    x, out = _numbers(ins[0]), _numbers(outs[0])
    if attrs["inverse"]:
        np.fft.ifft(x, norm="forward", out=out)
    else:
        np.fft.fft(x, out=out)


def _rfft(outs: list[Array], ins: list[Array], _attrs: Attrs) -> None:
    np.fft.rfft(ins[0], out=_numbers(outs[0]))


def _irfft(outs: list[Array], ins: list[Array], attrs: Attrs) -> None:
    np.fft.irfft(_numbers(ins[0]), attrs["n"], norm="forward", out=outs[0])


HOST: dict[str, Callable[[list[Array], list[Array], Attrs], None]] = {
    "solve": _solve,
    "triangular_solve": _triangular_solve,
    "cholesky": _cholesky,
    "slogdet": _slogdet,
    "det": _det,
    "eigh": _eigh,
    "eig": _eig,
    "svd": _svd,
    "qr": _qr,
    "fft": _fft,
    "rfft": _rfft,
    "irfft": _irfft,
}
