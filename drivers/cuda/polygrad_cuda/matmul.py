"""Matrix products: cuBLAS for floats through nvmath's bindings, kernels of our own for small ones and for integers.

Here: which of these takes a product, cuBLAS's handle and calls, batches. Not here: how strides become flags
(`matmul_plan.py`), small products (`small_products.py`), sums and tuning by cuBLASLt (`library_products.py`).

float32 means float32: TF32 is used only if the caller asks. float16 and bfloat16 accumulate in float32. CuPy's own
array functions are not used, because CuPy refuses them while a stream is being captured.
"""

import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polygrad.driver import DriverUnavailable, Ref, UnsupportedOp
from polygrad.driver.ir import ITEMSIZE
from polygrad_cuda.library_products import Addresses, LibraryProducts, Numbers
from polygrad_cuda.matmul_plan import Plan, collapse, plan
from polygrad_cuda.small_products import SmallProducts
from polygrad_cuda.sources import ENDING, INTEGER_MATMUL, TILE, UNSIGNED, loads_and_stores
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
Call = Callable[[Ref, Ref, Ref, Ref | None], None]  # out, a, b, addend


class Wish(NamedTuple):
    """How a product is to be computed, and what it ends with."""

    precision: str
    tune: bool
    row: bool | None  # whether one row is added to all rows, or an array of the product's size; None: nothing is
    activation: str


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
        self.small = SmallProducts(driver)
        self._library: LibraryProducts | None = None
        self.calls: dict[Any, Call] = {}

    def close(self) -> None:
        """Give the handles and their workspace back."""
        if self._library is not None:
            self._library.close()
        self.cublas.destroy(self.handle)
        self.driver.free(self.workspace)

    def __call__(self, out: Ref, a: Ref, b: Ref, attrs: Mapping[str, Any], addend: Ref | None = None) -> None:
        """Queue ``out = a @ b``, or ``out = activation(a @ b + addend)``."""
        row = None if addend is None else len(addend.strides) > 1 and addend.strides[-2] == 0
        get = attrs.get
        wish = Wish(get("precision", "highest"), get("tune", False), row, get("activation", ""))
        key = (out.dtype, out.shape, a.shape[-1], a.strides, b.strides, wish)
        call = self.calls.get(key)
        if call is None:
            if len(self.calls) > 4096:  # noqa: PLR2004  shapes that keep changing must not grow it for ever
                self.calls.clear()
            call = self.calls[key] = self._call(out, a, b, wish)
        call(out, a, b, addend)

    def on_stream(self, out: Ref, a: Ref, b: Ref) -> bool:
        """Whether a product is nothing but launches on the stream: no list of addresses is sent from the host."""
        if out.dtype not in DATA_TYPES:
            return True
        planned, _ = plan(out.shape, a.shape[-1], (a.strides, b.strides, out.strides))
        if planned is None:
            return len(out.shape) == 2  # noqa: PLR2004  copies, and one product
        return len(_offsets(planned.outer, 1)) <= CALLS

    def _call(self, out: Ref, a: Ref, b: Ref, wish: Wish) -> Call:
        """Return what to do with operands of these shapes and strides, wherever they lie."""
        if out.dtype not in DATA_TYPES:
            return self._integers
        if wish.precision not in ("highest", "tf32"):
            raise UnsupportedOp(f"matmul knows the precisions 'highest' and 'tf32', not {wish.precision!r}")
        planned, poor = plan(out.shape, a.shape[-1], (a.strides, b.strides, out.strides))
        if planned is None:
            return functools.partial(self._copied, poor, wish)
        size = ITEMSIZE[out.dtype]
        single = self._single(planned, out.dtype, wish)
        if single is not None:
            return lambda out, a, b, addend: single(
                *(0 if r is None else r.handle + r.offset * size for r in (a, b, out, addend))
            )
        apart = self._several(planned, out.dtype, wish)
        return apart if wish.row is None else functools.partial(self._ended, apart, wish)

    def _single(self, p: Plan, dtype: str, wish: Wish) -> Addresses | None:
        """Return what computes all of a product in one launch, with what it ends with; None if nothing does."""
        if dtype == "float32" and wish.precision == "highest":
            small = self.small.call(p, wish.row, wish.activation)
            if small is not None:
                return small
        if p.outer or p.batch[0] > 1:
            return None
        plain = self._product(p, dtype, wish.precision)
        if wish.row is None and not wish.tune:
            return lambda a, b, out, _: plain(a, b, out)

        def apart(a: int, b: int, out: int, addend: int) -> None:
            plain(a, b, out)
            if wish.row is not None:
                self._end(out, addend, p.m * p.n, p.n, dtype, wish)

        numbers = self._numbers(dtype, wish.precision)
        return self.library().call(p, numbers, wish.row, wish.activation, tune=wish.tune, otherwise=apart)

    def _several(self, planned: Plan, dtype: str, wish: Wish) -> Call:
        """Return what computes a stack of products that takes several calls, or one with a list of addresses."""
        product = self._product(planned, dtype, wish.precision)
        size = ITEMSIZE[dtype]
        offsets = _offsets(planned.outer, size)
        if len(offsets) > CALLS:
            table = np.array(_offsets((*planned.outer, planned.batch), size), np.uint64).T
            return functools.partial(self._pointers, planned, table, wish.precision)

        def several(out: Ref, a: Ref, b: Ref, _: Ref | None) -> None:
            bases = [r.handle + r.offset * size for r in (a, b, out)]
            for x, y, z in offsets:
                product(bases[0] + x, bases[1] + y, bases[2] + z)

        return several

    def _ended(self, apart: Call, wish: Wish, out: Ref, a: Ref, b: Ref, addend: Ref | None) -> None:
        apart(out, a, b, None)
        assert addend is not None  # noqa: S101  the wish says that there is one
        place, added = (r.handle + r.offset * ITEMSIZE[r.dtype] for r in (out, addend))
        self._end(place, added, math.prod(out.shape), out.shape[-1], out.dtype, wish)

    def _end(self, out: int, addend: int, count: int, n: int, dtype: str, wish: Wish) -> None:
        """Add to a product that is there."""
        narrow, wide = {2: ("unsigned short", "float"), 4: ("float", "float"), 8: ("double", "double")}[ITEMSIZE[dtype]]
        text = (loads_and_stores(dtype) + ENDING).replace("TYPE", narrow).replace("SUM", wide)
        grid = (min(-(-count // 1024), 8 * self.driver.multiprocessors), 1, 1)
        slots = ("pointer", "pointer", "int64", "int64", "bool", "bool")
        values = (out, addend, count, n, bool(wish.row), bool(wish.activation))
        self.driver.launch(text, "ending", grid, (256, 1, 1), slots, values)

    def _copied(self, poor: tuple[bool, bool], wish: Wish, out: Ref, a: Ref, b: Ref, addend: Ref | None) -> None:
        with self.driver.scratch() as scratch:
            a, b = (scratch.contiguous(r) if copied else r for r, copied in zip((a, b), poor, strict=True))
            self(out, a, b, wish._asdict(), addend)

    def library(self) -> LibraryProducts:
        """Return what calls cuBLASLt."""
        if self._library is None:
            self._library = LibraryProducts(self.driver, self.workspace, WORKSPACE)
        return self._library

    def _product(self, p: Plan, dtype: str, precision: str) -> Callable[[int, int, int], None]:
        """Return one call of cuBLAS as a function of the addresses of a, b and c."""
        code, compute, _, one, zero = self._numbers(dtype, precision)
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

    def _pointers(
        self, p: Plan, table: "np.ndarray[Any, Any]", precision: str, out: Ref, a: Ref, b: Ref, _: Ref | None
    ) -> None:
        numbers = self._numbers(out.dtype, precision)
        code, compute, one, zero = numbers.code, numbers.compute, numbers.one, numbers.zero
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

    def _numbers(self, dtype: str, precision: str) -> Numbers:
        double = dtype == "float64"
        compute = COMPUTE_64F if double else COMPUTE_32F
        if dtype == "float32" and precision == "tf32":
            compute = COMPUTE_32F_TF32
        one, zero = (int(x.ctypes.data) for x in self.constants["float64" if double else "float32"])
        return Numbers(DATA_TYPES[dtype], compute, DATA_TYPES["float64" if double else "float32"], one, zero)

    def _integers(self, out: Ref, a: Ref, b: Ref, _: Ref | None) -> None:
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
