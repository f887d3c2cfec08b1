"""Linear algebra through cuSOLVER and cuBLAS, which CuPy calls.

Here: the ops solve, triangular_solve, cholesky, slogdet, det, eigh, eig, svd, qr.
Not here: any factorisation.

Nothing is read back: a singular matrix gives values that are not finite, one that is not positive definite NaN.
Matrices are row by row; the vendor's libraries read columns, so they see transposes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref
from polygrad_cuda.library_arrays import as_array, library_calls, put

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

Attrs = Mapping[str, Any]
MATRIX = 2  # axes
SMALL = 32  # rows up to which the vendor's routines for stacks of eigenvalue problems are meant
EIG_SINCE = 12060  # the CUDA release that has geev
STACKED = 256  # rows up to which its Cholesky for stacks is the faster one


class LinearAlgebra:
    """The linear algebra of one device."""

    def __init__(self, driver: "CudaDriver") -> None:
        self.driver = driver

    def __call__(self, name: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        """Queue the op *name*."""
        with library_calls(self.driver, f"computing {name}") as cupy:
            getattr(self, f"_{name}")(cupy, outs, ins, attrs)

    def _operand(self, ref: Ref, attrs: Attrs) -> Any:
        return as_array(self.driver, ref, numbers=attrs["complex"])

    def _put(self, outs: Sequence[tuple[Ref, bool]], values: Any) -> None:
        """Copy results into the memory of the op's."""
        for (ref, numbers), value in zip(outs, values, strict=True):
            put(self.driver, ref, value, numbers=numbers)

    def _each(self, function: Callable[..., Any], stack: Any) -> list[Any]:
        """Return the results of *function*, one or a tuple of them, for each matrix, put together."""
        cupy = self.driver.cupy
        flat = stack.reshape(-1, *stack.shape[-MATRIX:])
        found = [function(m) for m in flat]
        found = [f if isinstance(f, tuple) else (f,) for f in found]
        lead = stack.shape[:-MATRIX]
        return [cupy.stack(part).reshape(*lead, *part[0].shape) for part in zip(*found, strict=True)]

    # ---- systems --------------------------------------------------------------------------------------

    def _solve(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        a, b = (self._operand(r, attrs) for r in ins)
        self._put([(outs[0], attrs["complex"])], _where_finite(cupy, a, (cupy.linalg.solve(a, b),)))

    def _triangular_solve(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        from cupy.cuda import device
        from cupy_backends.cuda.libs import cublas

        a, b = (self._operand(r, attrs) for r in ins)
        n, m = b.shape[-MATRIX:]
        batch = math.prod(b.shape[:-MATRIX])
        x = b.copy()
        one = a.dtype.type(1).reshape(1)
        letter = {"f": "s", "d": "d", "F": "c", "D": "z"}[a.dtype.char]
        # The vendor sees x^T, a^T and solves x^T a^T = b^T.
        fill = cublas.CUBLAS_FILL_MODE_LOWER if attrs["upper"] else cublas.CUBLAS_FILL_MODE_UPPER
        places = [_addresses(cupy, v, batch) for v in (a, x)]
        getattr(cublas, f"{letter}trsmBatched")(
            device.get_cublas_handle(), cublas.CUBLAS_SIDE_RIGHT, fill, cublas.CUBLAS_OP_N, cublas.CUBLAS_DIAG_NON_UNIT,
            m, n, one.ctypes.data, places[0].data.ptr, n, places[1].data.ptr, m, batch,
        )  # fmt: skip
        self._put([(outs[0], attrs["complex"])], [x])

    def _cholesky(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        from cupy.cuda import device
        from cupy_backends.cuda.libs import cublas, cusolver

        x = self._operand(ins[0], attrs).copy()
        n, batch = x.shape[-1], math.prod(x.shape[:-MATRIX])
        flat = x.reshape(batch, n, n)
        info = cupy.zeros(batch, "int32")
        letter = {"f": "s", "d": "d", "F": "c", "D": "z"}[x.dtype.char]
        handle, fill = device.get_cusolver_handle(), cublas.CUBLAS_FILL_MODE_UPPER
        if n <= STACKED and batch > 1:
            places = _addresses(cupy, x, batch)
            call = getattr(cusolver, f"{letter}potrfBatched")
            call(handle, fill, n, places.data.ptr, n, info.data.ptr, batch)
        else:
            size = getattr(cusolver, f"{letter}potrf_bufferSize")(handle, fill, n, x.data.ptr, n)
            work = cupy.empty(size, x.dtype)
            call = getattr(cusolver, f"{letter}potrf")
            for k in range(batch):
                call(handle, fill, n, flat[k].data.ptr, n, work.data.ptr, size, info[k:].data.ptr)
        failed = (info != 0).reshape(*x.shape[:-MATRIX], 1, 1)
        low = cupy.where(failed, x.dtype.type(float("nan")), cupy.tril(x))
        self._put([(outs[0], attrs["complex"])], [low])

    def _slogdet(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        found = cupy.linalg.slogdet(self._operand(ins[0], attrs))
        self._put([(outs[0], attrs["complex"]), (outs[1], False)], tuple(found))

    def _det(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        sign, size = cupy.linalg.slogdet(self._operand(ins[0], attrs))
        self._put([(outs[0], attrs["complex"])], [sign * cupy.exp(size)])

    # ---- eigenvalues, singular values, QR -------------------------------------------------------------

    def _eigh(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        a = self._operand(ins[0], attrs)
        function = cupy.linalg.eigh if attrs["vectors"] else cupy.linalg.eigvalsh
        together = a.ndim == MATRIX or a.shape[-1] <= SMALL
        found = function(a) if together else tuple(self._each(function, a))
        values = _where_finite(cupy, cupy.tril(a), tuple(found) if isinstance(found, tuple) else (found,))
        self._put([(outs[0], False), *((r, attrs["complex"]) for r in outs[1:])], values)

    def _eig(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        a = self._operand(ins[0], attrs)
        sound = cupy.isfinite(a).all(axis=(-2, -1), keepdims=True)
        # cuSOLVER fails as a whole on a matrix that is not finite: another takes its place, and the result is NaN.
        w, v = self._each(cupy.linalg.eig, cupy.where(sound, a, cupy.eye(a.shape[-1], dtype=a.dtype)))
        v = v / cupy.sqrt(cupy.sum(abs(v) ** 2, axis=-2, keepdims=True))
        self._put([(r, True) for r in outs], _where_finite(cupy, a, (w, v))[: len(outs)])

    def _svd(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        a = self._operand(ins[0], attrs)
        if attrs["vectors"]:
            u, s, vh = _where_finite(cupy, a, cupy.linalg.svd(a, full_matrices=attrs["full"]))
            numbers = attrs["complex"]
            self._put([(outs[0], numbers), (outs[1], False), (outs[2], numbers)], (u, s, vh))
        else:
            self._put([(outs[0], False)], _where_finite(cupy, a, (cupy.linalg.svd(a, compute_uv=False),)))

    def _qr(self, cupy: Any, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Attrs) -> None:
        a = self._operand(ins[0], attrs)
        mode = "complete" if attrs["full"] else "reduced"
        found = self._each(lambda m: tuple(cupy.linalg.qr(m, mode)), a)
        self._put([(r, attrs["complex"]) for r in outs], found)


def has_eig(cupy: Any) -> bool:
    """Return whether CuPy and cuSOLVER are new enough for eigenvalues of any matrix, without loading cuSOLVER."""
    return hasattr(cupy.linalg, "eig") and cupy.cuda.runtime.runtimeGetVersion() >= EIG_SINCE


def _where_finite(cupy: Any, a: Any, values: Sequence[Any]) -> list[Any]:
    """Return results with NaN for each matrix that is not finite: cuSOLVER ends such a one early, and gives numbers."""
    sound = cupy.isfinite(a).all(axis=(-2, -1))
    return [
        cupy.where(sound.reshape(*sound.shape, *(1,) * (v.ndim - sound.ndim)), v, v.dtype.type(float("nan")))
        for v in values
    ]


def _addresses(cupy: Any, x: Any, batch: int) -> Any:
    """Return the addresses of a stack's matrices, on the device."""
    step = x.strides[-MATRIX] * x.shape[-MATRIX]
    return cupy.arange(batch, dtype="uint64") * cupy.uint64(step) + cupy.uint64(x.data.ptr)
