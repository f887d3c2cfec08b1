"""The matrix product: which of three ways, and the arithmetic of batches.

Here: `Matmul`, called by the driver's `op_matmul`. Not here: kernel text (`matmul_tiles.py` for GPUs,
`matmul_source.py` for CPU devices), which tile fits (`matmul_form.py`).

On a CPU device with unified memory a large product of floats is computed by NumPy's BLAS in the device's own memory:
the three buffers are mapped, which waits for the queue and gives the host the right to touch them, and unmapped
afterwards. Small products, integers, and every other device use kernels of this driver. POLYGRAD_OPENCL_GEMM=host|own
overrules the choice.
"""

import concurrent.futures
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import Ref, UnsupportedOp, blas
from polygrad_opencl import matmul_source, matmul_tiles
from polygrad_opencl.faults import translated
from polygrad_opencl.matmul_form import Layout, Size, form_of
from polygrad_opencl.session import Session

FLOATS = ("float32", "float64", "float16", "bfloat16")
# Multiply-adds below which the own kernel is faster than waiting for the queue and mapping three buffers.
HOST_THRESHOLD = {"cpu": 2_000_000}
LONG = np.int64


def layout_of(out: Ref, a: Ref, b: Ref) -> Layout:
    """Return the loops of a product with as few batch axes as its strides allow.

    A batch axis along which b is constant and a's rows continue becomes part of m: one big product instead of many
    small ones.

    >>> a, b = Ref(0, 0, (5, 2, 3), (6, 3, 1), "float32"), Ref(0, 0, (5, 3, 4), (0, 4, 1), "float32")
    >>> layout_of(Ref(0, 0, (5, 2, 4), (8, 4, 1), "float32"), a, b)
    Layout(batch=(), m=10, n=4, k=3, a=(3, 1), b=(4, 1))
    """
    m, k = a.shape[-2:]
    n = b.shape[-1]
    batch: list[tuple[int, int, int, int]] = []
    stride = m * n
    for axis in reversed(range(len(out.shape) - 2)):
        extent = out.shape[axis]
        if extent == 1:
            continue
        entry = (extent, stride, a.strides[axis], b.strides[axis])
        stride *= extent
        if batch and all(entry[i] == batch[-1][i] * batch[-1][0] for i in (1, 2, 3)):
            batch[-1] = (batch[-1][0] * extent, *batch[-1][1:])
        else:
            batch.append(entry)
    if batch and batch[0][3] == 0 and (batch[0][2] == m * a.strides[-2] or m == 1):
        extent, _, step, _ = batch.pop(0)
        rows = (step if m == 1 else a.strides[-2], a.strides[-1])
        return Layout(tuple(reversed(batch)), m * extent, n, k, rows, (b.strides[-2], b.strides[-1]))
    return Layout(tuple(reversed(batch)), m, n, k, (a.strides[-2], a.strides[-1]), (b.strides[-2], b.strides[-1]))


def span(ref: Ref) -> tuple[int, int]:
    """Return the first and one past the last element that a view touches.

    >>> span(Ref(0, 5, (2, 3), (-4, 1), "float32"))
    (1, 8)
    """
    ends = [(n - 1) * s for n, s in zip(ref.shape, ref.strides, strict=True)]
    return ref.offset + sum(e for e in ends if e < 0), ref.offset + sum(e for e in ends if e > 0) + 1


def in_tiles(session: Session) -> bool:
    """Whether products of ours come in tiles, which end with a sum at no cost; on a CPU fused kernels add as fast."""
    return session.kind != "cpu" or os.environ.get("POLYGRAD_OPENCL_STYLE") == "gpu"


class Ending(NamedTuple):
    """What a product ends with: an addend, if there is one, and whether relu follows."""

    addend: Ref | None
    relu: bool

    @property
    def how(self) -> str:
        """What is added: nothing, a "row", or an array as the "whole" result."""
        if self.addend is None:
            return ""
        return "row" if self.addend.strides[-2] == 0 else "whole"


class Matmul:
    """The products of one device."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.local_bytes = session.device.local_mem_size
        self.threads = session.compute_units
        self.helpers: concurrent.futures.Executor | None = None  # made when first needed

    def __call__(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Compute ``outs[0] = ins[0] @ ins[1]``, or that plus ``ins[2]``, then relu if it is the attr `activation`.

        No device here could gain from the attr `precision`.
        """
        out, (a, b, *added) = outs[0], ins
        if not out.dtype == a.dtype == b.dtype or out.dtype == "bool":
            dtypes = f"{a.dtype} and {b.dtype} into {out.dtype}"
            message = f"{self.session.label} multiplies matrices of one number dtype, not {dtypes}"
            raise UnsupportedOp(message)
        layout = layout_of(out, a, b)
        if not added and self._by_host(out.dtype, layout):
            self._host(out, a, b, layout)
        else:
            self._own(out, a, b, layout, Ending(added[0] if added else None, attrs.get("activation") == "relu"))

    def _by_host(self, dtype: str, layout: Layout) -> bool:
        wish = os.environ.get("POLYGRAD_OPENCL_GEMM", "")
        session = self.session
        able = session.kind == "cpu" and session.unified and not session.simulated and dtype in FLOATS
        if wish in ("own", "host") or not able:
            return able and wish == "host"
        work = layout.m * layout.n * layout.k
        for extent, *_ in layout.batch:
            work *= extent
        return work >= HOST_THRESHOLD["cpu"]

    # ---- by BLAS on the host --------------------------------------------------------------------------

    def _host(self, out: Ref, a: Ref, b: Ref, layout: Layout) -> None:
        session, cl = self.session, self.session.cl
        flags = cl.map_flags
        maps: list[Any] = []
        axes = [entry[0] for entry in layout.batch]
        try:
            views: list[Any] = []
            # The queue is in order: when the last map has returned, the other two are done as well.
            for ref, flag, which, matrix in (
                (a, flags.READ, 2, ((layout.m, layout.a[0]), (layout.k, layout.a[1]))),
                (b, flags.READ, 3, ((layout.k, layout.b[0]), (layout.n, layout.b[1]))),
                (out, flags.WRITE_INVALIDATE_REGION, 1, ((layout.m, layout.n), (layout.n, 1))),
            ):
                low, high = span(ref)
                dtype = np.dtype("uint16" if ref.dtype == "bfloat16" else ref.dtype)
                mapped, _ = cl.enqueue_map_buffer(
                    session.queue,
                    ref.handle,
                    flag,
                    low * dtype.itemsize,
                    (high - low,),
                    dtype,
                    is_blocking=ref is out,
                )
                maps.append(mapped)
                shape = (*axes, *(extent for extent, _ in matrix))
                steps = (*(entry[which] for entry in layout.batch), *(step for _, step in matrix))
                origin = (ref.offset - low) * dtype.itemsize
                views.append(np.ndarray(shape, dtype, mapped, origin, [s * dtype.itemsize for s in steps]))
            multiply(views[0], views[1], views[2], out.dtype, self._floating)
        except cl.Error as error:
            raise translated(error, session.label, "map the operands of a matrix product") from error
        finally:
            for mapped in maps:
                mapped.base.release(session.queue)

    def _floating(self, a: Any, b: Any, out: Any) -> None:
        """Multiply floats by BLAS, in pieces that do not wait for each other."""
        if self.threads == 1 or out.size * a.shape[-1] < blas.SHARED or not blas.adjustable():
            np.matmul(a, b, out=out)
            return
        if self.helpers is None:
            self.helpers = concurrent.futures.ThreadPoolExecutor(self.threads - 1, "polygrad-opencl-matmul")
        left = iter(blas.pieces(out.shape, self.threads))
        taking = threading.Lock()

        def some() -> None:
            with np.errstate(all="ignore"):
                while True:
                    with taking:
                        at = next(left, None)
                    if at is None:
                        return
                    np.matmul(a[at[0]], b[at[1]], out=out[at[2]])

        with blas.single():
            others = [self.helpers.submit(some) for _ in range(self.threads - 1)]
            some()
            for other in others:
                if not other.cancel():
                    other.result()

    # ---- by a kernel of ours --------------------------------------------------------------------------

    def _own(self, out: Ref, a: Ref, b: Ref, layout: Layout, ending: Ending) -> None:
        *outer, first, second = ((1, 0, 0, 0), (1, 0, 0, 0), *layout.batch)
        extents = [entry[0] for entry in outer]
        for index in np.ndindex(*extents):
            offsets = [
                sum(i * entry[which] for i, entry in zip(index, outer, strict=True)) + ref.offset
                for which, ref in ((1, out), (2, a), (3, b))
            ]
            batch = first[0] * second[0]
            numbers = [
                *offsets, layout.m, layout.n, layout.k, *layout.a, *layout.b, batch, second[0],
                first[1], second[1], first[2], second[2], first[3], second[3],
            ]  # fmt: skip
            handles = (out.handle, a.handle, b.handle)
            added: list[Any] = []
            if ending.addend is not None:
                moved = offsets[0] - out.offset if ending.how == "whole" else 0
                added = [(None, ending.addend.handle), (LONG, ending.addend.offset + moved)]
            if not in_tiles(self.session):
                size = (8 * self.session.compute_units,)
                source = matmul_source.strips(out.dtype)
                self.session.run(source, "matmul", size, (1,), arguments(handles, numbers))
            else:
                self._tiled(out.dtype, layout._replace(batch=(first, second)), handles, numbers, ending, added)

    def _tiled(
        self,
        dtype: str,
        layout: Layout,
        handles: Sequence[Any],
        numbers: Sequence[int],
        ending: Ending,
        added: Sequence[Any],
    ) -> None:
        """Launch the tiled kernel; if its groups share the inner axis, add up what they leave."""
        session, items = self.session, matmul_tiles.ITEMS
        size = Size(session.compute_units, self.local_bytes, session.simulated)
        form, split = form_of(dtype, layout, numbers[:3], size)
        form = form._replace(ending=ending.how, relu=ending.relu)
        source = matmul_tiles.tiled(form)
        batch = math.prod(entry[0] for entry in layout.batch)
        across, down = -(-layout.n // form.columns), -(-layout.m // form.rows)
        grid, group = (across * items, down, batch * split.parts), (items, 1, 1)
        if not form.split:
            session.run(source, "matmul", grid, group, [*arguments(handles, [*numbers, *split]), *added])
            return
        out, *operands = handles
        count = batch * layout.m * layout.n
        with session.lock:
            sums = session.scratch(split.parts * count * np.dtype(matmul_tiles.SUMS.get(dtype, dtype)).itemsize)
            session.run(source, "matmul", grid, group, arguments((sums, *operands), [*numbers, *split]))
            join = [*arguments((out, sums), [numbers[0], count, split.parts, layout.n]), *added]
            session.run(source, "matmul_join", (-(-count // items) * items,), (items,), join)


def arguments(handles: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    """Return the arguments of a kernel that takes buffers, then numbers."""
    return [*((None, handle) for handle in handles), *((LONG, number) for number in numbers)]


def multiply(a: Any, b: Any, out: Any, dtype: str, floating: Callable[..., Any] = np.matmul) -> None:
    """Compute ``out = a @ b`` on the host; 16-bit floats through float32, bfloat16 given as its bits in uint16.

    *floating* multiplies float32 and float64: (a, b, out).

    >>> one = np.full((1, 1), 0x3F80, np.uint16)
    >>> out = np.zeros((1, 1), np.uint16)
    >>> multiply(one, one, out, "bfloat16")
    >>> hex(out[0, 0])
    '0x3f80'
    """
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (a, b)]
            product = np.empty(out.shape, np.float32)
            floating(*wide, product)
            bits = product.view(np.uint32)
            even = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            out[...] = np.where(np.isnan(product), (bits >> 16) | 64, even)
        elif dtype == "float16":
            product = np.empty(out.shape, np.float32)
            floating(a.astype(np.float32), b.astype(np.float32), product)
            out[...] = product
        else:
            floating(a, b, out)
