"""The OpenCL driver: open, memory, transfers, ops, kernels. Read top to bottom.

Here: the class that polygrad's hooks reach. Not here: how devices are found (`devices.py`), how programs are built
(`programs.py`), what kernels say (`source.py`, `matmul_tiles.py`, and the renderer in `polygrad.driver.render`).
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from polygrad.driver import (
    MANDATORY_REDUCTIONS,
    REDUCTIONS,
    SCALAR_OPS,
    DeviceInfo,
    DriverBase,
    DriverInfo,
    Features,
    Kernel,
    Limits,
    MemoryInfo,
    OutOfMemory,
    Prepared,
    Ref,
    UnsupportedOp,
)
from polygrad_opencl import attention, devices, pages, searching, source
from polygrad_opencl.copying import Copies
from polygrad_opencl.faults import translated
from polygrad_opencl.fused import FusedKernels
from polygrad_opencl.linalg import NEED_HOST, LinearAlgebra, able
from polygrad_opencl.matmul import Matmul, in_tiles
from polygrad_opencl.ordering import Ordering
from polygrad_opencl.session import Argument, Session

LONG = np.dtype(np.int64)
SCATTERING = 1 << 16  # work-items of a scatter on a device that is no CPU: each reads all row numbers
ITEMSIZE = {dtype: np.dtype("uint16" if dtype == "bfloat16" else dtype).itemsize for dtype in source.TYPES}


def nbytes_of(ref: Ref) -> int:
    """Return how many bytes a contiguous reference spans."""
    count = ITEMSIZE[ref.dtype]
    for extent in ref.shape:
        count *= extent
    return count


class OpenCLDriver(DriverBase):
    """One open OpenCL device."""

    info: ClassVar[DriverInfo] = DriverInfo(
        "opencl",
        summary="any OpenCL 1.2 device: GPUs of all vendors, and CPUs through PoCL or Intel's runtime",
        requires="pyopencl and a runtime; pip install 'pyopencl[pocl]' brings one for CPUs",
        priority=10,
    )

    # ---- open -----------------------------------------------------------------------------------------

    @classmethod
    def count(cls) -> int:
        """Return how many usable devices there are."""
        return len(devices.list_devices())

    def open(self, ordinal: int, options: Mapping[str, str]) -> DeviceInfo:
        """Open device number *ordinal* of the sorted list."""
        device = devices.find_device(ordinal)
        self.ordinal = ordinal
        self.session = session = Session(device, f"opencl:{ordinal}")
        self.fused = FusedKernels(session)
        self.matmul = Matmul(session)
        self.linalg = LinearAlgebra(session)
        self.ordering = Ordering(session)
        self.attention = attention.Attention(session)
        self.copies = Copies(session, self.fused)
        self.total = device.global_mem_size
        self.largest = device.max_mem_alloc_size
        self.in_use = 0
        self._sizes: dict[int, int] = {}
        self._lock = threading.Lock()
        dtypes = frozenset(source.TYPES) if session.float64 else frozenset(source.TYPES) - {"float64"}
        config = getattr(device, "single_fp_config", 0)
        flags = session.cl.device_fp_config
        cpu = session.kind == "cpu"
        return DeviceInfo(
            "opencl",
            ordinal,
            device.name.strip(),
            dtypes=dtypes,
            scalar_ops=frozenset(SCALAR_OPS),
            reductions=frozenset(REDUCTIONS) | MANDATORY_REDUCTIONS,
            ops=frozenset(self.ops()) - self._lacking(),
            limits=Limits(
                max_alloc=self.largest,
                total=self.total,
                alignment=max(1, device.mem_base_addr_align // 8),
                max_buffers=64 if cpu else max(8, min(64, device.max_parameter_size // 32)),
                max_instructions=512,
                partials=(8 if cpu else 4) * session.compute_units,
            ),
            features=Features(
                asynchronous=True,
                subnormals=cpu or bool(config & flags.DENORM),
                correctly_rounded=cpu or bool(config & getattr(flags, "CORRECTLY_ROUNDED_DIVIDE_SQRT", 0)),
                thread_safety="free",
                fork="unsafe",
                placed=True,
            ),
            vendor=device.vendor.strip(),
            version=f"{device.platform.version.strip()}, driver {device.driver_version.strip()}",
            extra={
                "platform": device.platform.name.strip(),
                "kind": session.kind,
                "style": self.fused.style,
                "compute units": str(session.compute_units),
                "local memory": f"{device.local_mem_size // 1024} KiB",
            },
        )

    def _lacking(self) -> frozenset[str]:
        """Return the ops that this device does not declare."""
        without = frozenset[str]() if able(self.session) else NEED_HOST
        if not in_tiles(self.session):
            without |= {"matmul_add"}
        if not attention.able(self.session):
            without |= {"attention", "attention_backward"}
        if self.ordering.chunked:  # a CPU, whose vector kernels find extremes five to sixteen times sooner
            without |= {"arg_extreme"}
        return without

    def close(self) -> None:
        """Wait for the queue; contexts and queues go when the last handle does."""
        self.session.close()

    # ---- memory ---------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Any:
        """Return a new buffer. OpenCL creates lazily and overcommits, so what is in use is counted here."""
        devices.check_process()
        session, cl = self.session, self.session.cl
        with self._lock:
            if nbytes > self.largest or self.in_use + nbytes > self.total:
                raise OutOfMemory(self._no_room(nbytes))
            self.in_use += nbytes
        try:
            handle = cl.Buffer(session.context, cl.mem_flags.READ_WRITE, nbytes)
            pages.ask(session, handle, nbytes)
        except (cl.Error, MemoryError) as error:
            with self._lock:
                self.in_use -= nbytes
            raise OutOfMemory(f"{self._no_room(nbytes)} ({error})") from error
        with self._lock:
            self._sizes[id(handle)] = nbytes
        return handle

    def _no_room(self, nbytes: int) -> str:
        return (
            f"{self.session.label} cannot allocate {nbytes} bytes: {self.in_use} of {self.total} are in use, "
            f"and one block is at most {self.largest}"
        )

    def free(self, handle: Any) -> None:
        """Release a buffer; commands already enqueued keep it until they are done."""
        devices.check_process()
        with self._lock:
            nbytes = self._sizes.pop(id(handle))
            self.in_use -= nbytes
        self.session.released(handle, nbytes)

    def memory_info(self) -> MemoryInfo:
        """Return what this driver has not handed out; OpenCL itself keeps no account."""
        return MemoryInfo(self.total - self.in_use, self.total)

    # ---- transfers ------------------------------------------------------------------------------------

    def op_write(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Copy host bytes to the device; blocks until they are read."""
        devices.check_process()
        session, ref = self.session, outs[0]
        data = np.frombuffer(attrs["data"], np.uint8)
        start = ref.offset * ITEMSIZE[ref.dtype]
        try:
            session.cl.enqueue_copy(session.queue, ref.handle, data, dst_offset=start, is_blocking=True)
        except session.cl.Error as error:
            raise translated(error, session.label, f"write {data.nbytes} bytes") from error

    def op_read(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Copy device bytes to the host; waits for every launch before, the queue being in order."""
        devices.check_process()
        session, ref = self.session, ins[0]
        into = np.frombuffer(attrs["into"], np.uint8)
        start = ref.offset * ITEMSIZE[ref.dtype]
        try:
            session.cl.enqueue_copy(session.queue, into, ref.handle, src_offset=start, is_blocking=True)
        except session.cl.Error as error:
            raise translated(error, session.label, f"read {into.nbytes} bytes") from error

    def export(self, ref: Ref, owner: object) -> Any:
        """Return the memory for DLPack, all launches done."""
        from polygrad_opencl.sharing import Exported

        devices.check_process()
        self.synchronize()
        return Exported(ref, self.ordinal, owner)

    # ---- ops ------------------------------------------------------------------------------------------

    def op_copy(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Copy a strided view into contiguous memory."""
        devices.check_process()
        self.copies(outs[0], ins[0])

    def op_matmul(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Multiply matrices."""
        devices.check_process()
        self.matmul(outs, ins, attrs)

    def op_matmul_add(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Multiply matrices, and add to the product."""
        devices.check_process()
        self.matmul(outs, ins, attrs)

    # Of these a device that is no CPU with unified memory does not declare those that only the host has.

    def op_solve(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("solve", outs, ins, attrs)

    def op_triangular_solve(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("triangular_solve", outs, ins, attrs)

    def op_cholesky(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("cholesky", outs, ins, attrs)

    def op_slogdet(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("slogdet", outs, ins, attrs)

    def op_det(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("det", outs, ins, attrs)

    def op_eigh(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("eigh", outs, ins, attrs)

    def op_eig(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("eig", outs, ins, attrs)

    def op_svd(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("svd", outs, ins, attrs)

    def op_qr(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("qr", outs, ins, attrs)

    def op_fft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("fft", outs, ins, attrs)

    def op_rfft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("rfft", outs, ins, attrs)

    def op_irfft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `linalg.py`."""
        self.linalg("irfft", outs, ins, attrs)

    def op_random_bits(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Fill with Philox words."""
        out = outs[0]
        count = nbytes_of(out) // 4
        numbers = ((LONG, out.offset), (LONG, count))
        words = ((np.dtype(np.uint64), attrs["key"]), (np.dtype(np.uint64), attrs["counter"]))
        size, group = self._geometry((count + 3) // 4)
        text = source.random_bits(chunked=self.session.kind == "cpu")
        self.session.run(text, "random_bits", size, group, [(None, out.handle), *numbers, *words])

    def op_scatter_add(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Add rows at given places, each place in the order of the index array: the result is always the same."""
        self._scatter("add", outs, ins, attrs)

    def op_scatter_reduce(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Keep the greatest, the least or the product of the rows that go to a place."""
        self._scatter(attrs["mode"], outs, ins, attrs)

    def _scatter(self, mode: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        session, out, (index, values) = self.session, outs[0], ins
        if out.dtype != values.dtype or out.dtype == "bool":
            raise UnsupportedOp(f"{session.label} scatters {values.dtype} into {values.dtype}, not into {out.dtype}")
        n, m = out.shape
        k = values.shape[0]
        chunked = session.kind == "cpu"
        text = source.scatter(out.dtype, mode, chunked=chunked)
        status, tag = attrs.get("status"), attrs.get("tag", 0)
        rounded = out.dtype in source.STORAGE  # 16-bit sums are kept in float32 until the end
        with session.lock:
            total, start = (session.scratch(n * m * 4), 0) if rounded else (out.handle, out.offset)
            size, group = self._geometry(n * m)
            session.run(text, "scatter_clear", size, group, [(None, total), (LONG, start), (LONG, n * m)])
            numbers = (start, index.offset, values.offset, n, m, k)
            arguments: list[Argument] = [
                (None, total),
                (None, index.handle),
                (None, values.handle),
                (None, total if status is None else status),
            ]
            arguments += [(LONG, v) for v in numbers]
            arguments += [(np.dtype(np.int32), int(status is not None)), (np.dtype(np.int32), tag)]
            if chunked:
                size, group = self._geometry(n * m + k * m)
                session.run(text, "scatter_rows", size, group, arguments)
            else:
                parts = max(1, min(n, SCATTERING // m))
                size, group = self._geometry(m * parts)
                session.run(text, "scatter_columns", size, group, [*arguments, (LONG, parts)])
            if rounded:
                size, group = self._geometry(n * m)
                ends = [(None, total), (None, out.handle), (LONG, out.offset), (LONG, n * m)]
                session.run(text, "scatter_round", size, group, ends)

    def op_attention(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Attention without weights in memory."""
        self.attention.forward(outs, ins, scale=attrs["scale"], causal=attrs["causal"])

    def op_attention_backward(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Its gradients."""
        self.attention.backward(outs, ins, scale=attrs["scale"], causal=attrs["causal"])

    def op_scan(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Reduce each element with all before it."""
        self.ordering.scan(outs[0], ins[0], attrs["kind"])

    def op_nonzero(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Find where a mask is true."""
        self.ordering.nonzero(outs[0], ins[0])

    def op_sort(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Sort rows."""
        self.ordering.sort(outs[0], outs[1], ins[0])

    def op_arg_extreme(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Find the first greatest or least element."""
        searching.arg_extreme(self.ordering, outs[0], ins[0], attrs["kind"])

    def op_searchsorted(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Find places in sorted rows."""
        searching.searchsorted(self.ordering, outs[0], ins[0], ins[1], right=attrs["right"])

    def _geometry(self, work: int) -> tuple[tuple[int], tuple[int]]:
        """Return grid and group for *work* pieces: few items on a CPU device, one a piece up to a limit on others."""
        session = self.session
        if session.kind == "cpu":
            return (1 if work < 4096 else 8 * session.compute_units,), (1,)  # noqa: PLR2004  not worth waking threads for
        group = min(64, session.device.max_work_group_size)
        return (group * max(1, min(-(-work // group), 16 * session.compute_units)),), (group,)

    # ---- kernels --------------------------------------------------------------------------------------

    def prepare_fused(self, kernel: Kernel) -> Prepared:
        """Return the callable that launches *kernel*."""
        devices.check_process()
        return self.fused.prepare(kernel)

    def source_text(self, kernel: Kernel, ints: tuple[int, ...]) -> str:
        """Return the OpenCL C of a launch."""
        return self.fused.text(kernel, ints)

    def synchronize(self) -> None:
        """Wait for all launches."""
        self.session.finish()
