"""Matrix products: cuBLAS for floats through nvmath's bindings, a tiled kernel for integers.

Here: handles, workspaces and calls. Not here: how strides become flags (`matmul_plan.py`), the integer kernel's text.

float32 means float32: TF32 is used only if the caller asks. float16 and bfloat16 accumulate in float32. The
library's own
array functions are not used, because CuPy refuses them while a stream is being captured.
"""

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polygrad.driver import DriverUnavailable, Ref, UnsupportedOp
from polygrad.driver.ir import ITEMSIZE
from polygrad_cuda.matmul_plan import Plan, collapse, plan
from polygrad_cuda.sources import INTEGER_MATMUL, TILE, UNSIGNED
from polygrad_cuda.vendor import INSTALL

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

# cudaDataType and cublasComputeType_t: numbers of CUDA's ABI.
DATA_TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_TF32 = 68, 70, 77
NO_REDUCED_PRECISION = 16  # math mode: sums of a split product are added up in float32 too
WORKSPACE = 32 << 20  # bytes; what cuBLAS asks for on a Hopper device
INT32 = (1 << 31) - 1
BLOCKS = 65535  # the largest grid along its second and third axis
CALLS = 4  # up to so many calls are cheaper than an array of addresses on the device
Offsets = tuple[int, int, int]
Call = Callable[[Ref, Ref, Ref], None]  # out, a, b


class MatrixProducts:
    """One cuBLAS handle with its own workspace, on one stream."""

    def __init__(self, driver: "CudaDriver") -> None:
        try:
            self.cublas = importlib.import_module("nvmath.bindings.cublas")
        except (ImportError, RuntimeError) as error:
            raise DriverUnavailable(f"driver 'cuda' cannot load cuBLAS through nvmath ({error}); {INSTALL}") from error
        self.driver = driver
        self.handle = self.cublas.create()
        self.cublas.set_stream(self.handle, driver.stream)
        self.workspace = driver.allocate(WORKSPACE)
        self.cublas.set_workspace(self.handle, self.workspace, WORKSPACE)  # after set_stream, which resets it
        self.cublas.set_math_mode(self.handle, NO_REDUCED_PRECISION)
        self.constants = {d: (np.ones(1, d), np.zeros(1, d)) for d in ("float32", "float64")}
        self.calls: dict[Any, Call] = {}

    def close(self) -> None:
        """Give the handle and its workspace back."""
        self.cublas.destroy(self.handle)
        self.driver.free(self.workspace)

    def __call__(self, out: Ref, a: Ref, b: Ref, attrs: Mapping[str, Any]) -> None:
        """Queue ``out = a @ b``."""
        key = (out.dtype, out.shape, a.shape[-1], a.strides, b.strides, attrs.get("precision", "highest"))
        call = self.calls.get(key)
        if call is None:
            if len(self.calls) > 4096:  # noqa: PLR2004  shapes that keep changing must not grow it for ever
                self.calls.clear()
            call = self.calls[key] = self._call(out, a, b, attrs)
        call(out, a, b)

    def on_stream(self, out: Ref, a: Ref, b: Ref) -> bool:
        """Whether a product is nothing but launches on the stream: no list of addresses is sent from the host."""
        if out.dtype not in DATA_TYPES:
            return True
        planned, _ = plan(out.shape, a.shape[-1], (a.strides, b.strides, out.strides))
        if planned is None:
            return len(out.shape) == 2  # noqa: PLR2004  copies, and one product
        return len(_offsets(planned.outer, 1)) <= CALLS

    def _call(self, out: Ref, a: Ref, b: Ref, attrs: Mapping[str, Any]) -> Call:
        """Return what to do with operands of these shapes and strides, wherever they lie."""
        if out.dtype not in DATA_TYPES:
            return self._integers
        precision = attrs.get("precision", "highest")
        if precision not in ("highest", "tf32"):
            raise UnsupportedOp(f"matmul knows the precisions 'highest' and 'tf32', not {precision!r}")
        planned, poor = plan(out.shape, a.shape[-1], (a.strides, b.strides, out.strides))
        if planned is None:
            return functools.partial(self._copied, poor, attrs)
        product = self._product(planned, out.dtype, precision)
        size = ITEMSIZE[out.dtype]
        offsets = _offsets(planned.outer, size)
        if len(offsets) == 1:
            return lambda out, a, b: product(
                a.handle + a.offset * size, b.handle + b.offset * size, out.handle + out.offset * size
            )
        if len(offsets) > CALLS:
            table = np.array(_offsets((*planned.outer, planned.batch), size), np.uint64).T
            return functools.partial(self._pointers, planned, table, precision)

        def several(out: Ref, a: Ref, b: Ref) -> None:
            bases = [r.handle + r.offset * size for r in (a, b, out)]
            for x, y, z in offsets:
                product(bases[0] + x, bases[1] + y, bases[2] + z)

        return several

    def _copied(self, poor: tuple[bool, bool], attrs: Mapping[str, Any], out: Ref, a: Ref, b: Ref) -> None:
        with self.driver.scratch() as scratch:
            self(out, scratch.contiguous(a) if poor[0] else a, scratch.contiguous(b) if poor[1] else b, attrs)

    def _product(self, p: Plan, dtype: str, precision: str) -> Callable[[int, int, int], None]:
        """Return one call of cuBLAS as a function of the addresses of a, b and c."""
        code, compute, one, zero = self._numbers(dtype, precision)
        count, sa, sb, sc = p.batch
        wide = "_64" if max(p.m, p.n, p.k, p.a.leading, p.b.leading) > INT32 else ""
        head = (self.handle, int(p.b.transposed), int(p.a.transposed), p.n, p.m, p.k, one)
        a_leading, b_leading, n = p.a.leading, p.b.leading, p.n
        if count == 1:
            gemm = getattr(self.cublas, f"gemm_ex{wide}")
            return lambda a, b, c: gemm(
                *head, b, code, b_leading, a, code, a_leading, zero, c, code, n, compute, -1
            )  # fmt: skip
        batched = getattr(self.cublas, f"gemm_strided_batched_ex{wide}")
        return lambda a, b, c: batched(
            *head, b, code, b_leading, sb, a, code, a_leading, sa, zero, c, code, n, sc, count, compute, -1
        )

    def _pointers(self, p: Plan, table: "np.ndarray[Any, Any]", precision: str, out: Ref, a: Ref, b: Ref) -> None:
        code, compute, one, zero = self._numbers(out.dtype, precision)
        bases = np.array([r.handle + r.offset * ITEMSIZE[r.dtype] for r in (a, b, out)], np.uint64)
        addresses, count = table + bases[:, None], table.shape[1]
        with self.driver.scratch() as scratch:
            lists = scratch.take(addresses.nbytes)
            self.driver.staging.write(lists, memoryview(addresses.tobytes()))
            x, y, z = (lists + 8 * count * i for i in range(3))
            self.cublas.gemm_batched_ex(
                self.handle, int(p.b.transposed), int(p.a.transposed), p.n, p.m, p.k, one, y, code, p.b.leading,
                x, code, p.a.leading, zero, z, code, p.n, count, compute, -1,
            )  # fmt: skip

    def _numbers(self, dtype: str, precision: str) -> tuple[int, int, int, int]:
        compute = COMPUTE_64F if dtype == "float64" else COMPUTE_32F
        if dtype == "float32" and precision == "tf32":
            compute = COMPUTE_32F_TF32
        one, zero = self.constants["float64" if dtype == "float64" else "float32"]
        return DATA_TYPES[dtype], compute, int(one.ctypes.data), int(zero.ctypes.data)

    def _integers(self, out: Ref, a: Ref, b: Ref) -> None:
        if out.dtype == "bool":
            raise UnsupportedOp("matmul of bool is not offered by driver 'cuda'; cast to an integer or float dtype")
        m, n = out.shape[-2:]
        size = ITEMSIZE[out.dtype]
        axes = collapse(list(zip(out.shape[:-2], a.strides[:-2], b.strides[:-2], out.strides[:-2], strict=True)))
        count, sa, sb, sc = axes.pop() if axes and axes[-1][0] <= BLOCKS else (1, 0, 0, 0)
        numbers = (m, n, a.shape[-1], *a.strides[-2:], *b.strides[-2:], out.strides[-2], sa, sb, sc)
        grid = (-(-n // TILE), min(BLOCKS, -(-m // TILE)), count)
        text = INTEGER_MATMUL.replace("TYPE", UNSIGNED[size])
        bases = [r.handle + size * r.offset for r in (a, b, out)]
        for distances in _offsets(axes, size):
            places = tuple(base + distance for base, distance in zip(bases, distances, strict=True))
            slots = ("pointer",) * 3 + ("int64",) * len(numbers)
            self.driver.launch(text, "product", grid, (TILE, TILE, 1), slots, places + numbers)


def _offsets(axes: Sequence[tuple[int, int, int, int]], size: int) -> list[Offsets]:
    """Return the distances in bytes of a, b and c from their bases, for every index along *axes*."""
    out: list[Offsets] = [(0, 0, 0)]
    for extent, *strides in axes:
        x, y, z = (s * size for s in strides)
        out = [(p + i * x, q + i * y, r + i * z) for p, q, r in out for i in range(extent)]
    return out
