"""The cuda driver, top to bottom: open, memory, transfers, fused kernels, ops.

Here: one open device. Not here: CuPy's import and errors (`vendor.py`), compiling (`compiler.py`), argument blocks
(`launching.py`), fused kernels (`fused.py`), cuBLAS (`matmul.py`).
"""

import functools
import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar

from polygrad.driver import (
    SCALAR_OPS,
    DeviceError,
    DeviceInfo,
    DeviceLost,
    DriverBase,
    DriverInfo,
    DriverUnavailable,
    Features,
    Kernel,
    Limits,
    MemoryInfo,
    OutOfMemory,
    Prepared,
    Ref,
)
from polygrad.driver.ir import DTYPES, ITEMSIZE, REDUCTIONS
from polygrad.driver.render.dialect import CUDA
from polygrad.driver.render.gpu_many import Layout
from polygrad.driver.render.gpu_style import Choice, GpuLimits, Source, render_gpu, render_many
from polygrad_cuda import convolution, fft, ordering, searching, sources, vendor
from polygrad_cuda.attention import Attention
from polygrad_cuda.bundles import CudaBundle, CudaCapturing, Nodes, Varying
from polygrad_cuda.collectives import NcclCollectives, collectives
from polygrad_cuda.compiler import Compiler
from polygrad_cuda.cudnn import Cudnn, installed
from polygrad_cuda.fused import FusedKernel, copy_kernel, texts
from polygrad_cuda.launching import Launcher
from polygrad_cuda.linalg import LinearAlgebra, has_eig
from polygrad_cuda.many import LARGE_ROOM, ROOM, SINCE, VOLTA
from polygrad_cuda.matmul import MatrixProducts
from polygrad_cuda.notices import CudaNotices
from polygrad_cuda.row_sums import scatter
from polygrad_cuda.scratch import Arena, Scratch, contiguous_strides
from polygrad_cuda.sharing import Exported, exported, imported
from polygrad_cuda.staging import Staging

# Devices open in this process; a forked child inherits the objects, but CUDA does not work in it.
_open: "weakref.WeakSet[CudaDriver]" = weakref.WeakSet()


def _after_fork() -> None:
    for driver in _open:
        driver.dead = DeviceLost(
            f"{driver.device} was opened before this process was forked, and CUDA does not survive a fork; start "
            "processes with multiprocessing.get_context('spawn')"
        )
        driver.forked = True


os.register_at_fork(after_in_child=_after_fork)


class CudaDriver(DriverBase):
    """One NVIDIA GPU: raw blocks, one stream, kernels by NVRTC, products by cuBLAS."""

    info: ClassVar[DriverInfo] = DriverInfo(
        name="cuda",
        summary="NVIDIA GPUs through CuPy, NVRTC and cuBLAS",
        requires=f"an NVIDIA GPU with its driver 580 or newer; {vendor.INSTALL}",
        priority=20,
    )

    # ---- open -----------------------------------------------------------------------------------------

    @classmethod
    def count(cls) -> int:
        return vendor.device_count(vendor.load())

    def open(self, ordinal: int, options: Mapping[str, str]) -> DeviceInfo:
        self.cupy = vendor.load()
        count = vendor.device_count(self.cupy)
        if not 0 <= ordinal < count:
            raise DriverUnavailable(f"there is no cuda:{ordinal}; this machine has cuda:0 to cuda:{count - 1}")
        self.ordinal = ordinal
        self.device = f"cuda:{ordinal}"
        self.dead: Exception | None = None
        self.forked = False
        self.runtime = self.cupy.cuda.runtime
        self.errors = vendor.vendor_errors(self.cupy)
        self.launch_kernel = self.cupy.cuda.driver.launchKernel
        self.route = [self.launch_kernel]  # where kernels go: elsewhere while launches are written down
        self.noting: Varying | None = None  # the launch that is written down, if its numbers will change
        self.capturing = False  # whether launches are written down
        self.nodes = Nodes()
        self._notices: list[CudaNotices] = []
        self.bundles: weakref.WeakSet[CudaBundle] = weakref.WeakSet()
        self.set_device = self.runtime.setDevice
        with self.vendor_calls("opening it"):
            self.cupy_stream = self.cupy.cuda.Stream(non_blocking=True)
            self.stream = int(self.cupy_stream.ptr)
            self.staging = Staging(self.runtime, self.stream)
            properties = self.runtime.getDeviceProperties(ordinal)
        architecture = f"{properties['major']}{properties['minor']}"
        self.compiler = Compiler(self.cupy, self.device, architecture)
        self.multiprocessors = int(properties["multiProcessorCount"])
        self.shared_optin = int(properties["sharedMemPerBlockOptin"])
        self.linalg = LinearAlgebra(self)
        self.attention = Attention(self)
        self._products: MatrixProducts | None = None
        self._cudnn: Cudnn | None = None
        self._programs: dict[Kernel, FusedKernel] = {}
        self._launchers: dict[Any, Launcher] = {}
        self._sources: dict[tuple[Any, ...], Source] = {}
        self._scratch, self._scratch_bytes = 0, 0
        self._counter = 0
        self._retired: list[int] = []  # scratch memory that graphs use still
        self.arena = Arena(self)
        self.gpu_limits = GpuLimits(
            multiprocessors=self.multiprocessors,
            threads=int(properties["maxThreadsPerBlock"]),
            shared_bytes=int(properties["sharedMemPerBlock"]),
        )
        _open.add(self)
        return self._describe(properties)

    def _describe(self, properties: Mapping[str, Any]) -> DeviceInfo:
        version = self.runtime.driverGetVersion()
        total = int(properties["totalGlobalMem"])
        return DeviceInfo(
            driver="cuda",
            ordinal=self.ordinal,
            name=properties["name"].decode(),
            dtypes=frozenset(DTYPES),
            scalar_ops=frozenset(SCALAR_OPS),
            reductions=frozenset(REDUCTIONS),
            ops=frozenset(self.ops()) - self._lacking(),
            limits=Limits(max_alloc=total, total=total, alignment=256, partials=4 * self.multiprocessors),
            features=Features(
                asynchronous=True, correctly_rounded=True, capture=True, many=True, notices=True, placed=True
            ),
            vendor="NVIDIA",
            version=f"CUDA {version // 1000}.{version % 1000 // 10}",
            extra={
                "architecture": f"sm_{self.compiler.architecture}",
                "multiprocessors": str(self.multiprocessors),
                "cupy": str(self.cupy.__version__),
            },
        )

    def _lacking(self) -> frozenset[str]:
        """Return the ops that need what is not installed."""
        eig = frozenset() if has_eig(self.cupy) else frozenset({"eig"})
        return eig | (frozenset() if installed() else convolution.OPS)

    def close(self) -> None:
        if self.forked:
            return
        with self.vendor_calls("closing it"):
            self.runtime.streamSynchronize(self.stream)
            if self._products is not None:
                self._products.close()
            self.staging.close()
            for bundle in list(self.bundles):
                bundle.close()
            if self._cudnn is not None:  # bundles launch its kernels
                self._cudnn.close()
            for notices in self._notices:
                notices.close()
            self.arena.close()
            self.retire(self._scratch)
            self.retire(self._counter)
            for block in self._retired:
                self.runtime.free(block)
            self.cupy_stream = None  # CuPy destroys it
        self.dead = DeviceError(f"device {self.device} is closed; open it again with pg.set_device({self.device!r})")
        _open.discard(self)

    def vendor_calls(self, doing: str) -> "VendorCalls":
        """Return a context that makes this device the thread's current one and turns CUDA's errors into ours."""
        return VendorCalls(self, doing)

    def failure(self, error: Exception, doing: str) -> Exception:
        """Return our exception for one of CUDA's; after one that lasts, the device is dead."""
        found = vendor.translated(error, self.device, doing)
        if getattr(error, "status", 0) in vendor.STICKY:
            self.dead = found
        return found

    # ---- memory ---------------------------------------------------------------------------------------

    def memory_errors(self, nbytes: int) -> "Allocation":
        """As `vendor_calls`, for an allocation of *nbytes*."""
        return Allocation(self, nbytes)

    def allocate(self, nbytes: int) -> int:
        with self.memory_errors(nbytes):
            return int(self.runtime.malloc(nbytes))

    def free(self, handle: int) -> None:
        if self.dead is not None:
            return  # the memory went with the context, or belongs to the parent process
        with self.vendor_calls("freeing memory"):
            self.runtime.free(handle)  # waits for what still uses it

    def memory_info(self) -> MemoryInfo:
        with self.vendor_calls("asking for its memory"):
            free, total = self.runtime.memGetInfo()
            return MemoryInfo(int(free), int(total))

    def export(self, ref: Ref, owner: object) -> Exported | None:
        return exported(self, ref, owner)

    def import_(self, producer: Any) -> tuple[Ref, object] | None:
        return imported(self, producer)

    def collectives(self) -> NcclCollectives | None:
        return collectives(self)

    def capture(self) -> CudaCapturing:
        return CudaCapturing(self)

    def notices(self, nbytes: int) -> CudaNotices:
        self._notices.append(CudaNotices(self, nbytes))
        return self._notices[-1]

    def scratch(self) -> Scratch:
        """Return a context in which an op can take memory for a moment."""
        return Scratch(self)

    def zero(self, address: int, nbytes: int) -> None:
        """Queue zeros at *address*."""
        self.runtime.memsetAsync(address, 0, nbytes, self.stream)

    @staticmethod
    def address(ref: Ref) -> int:
        """Return the address of the first element."""
        return int(ref.handle) + ref.offset * ITEMSIZE[ref.dtype]

    @staticmethod
    def itemsize(dtype: str) -> int:
        """Return the bytes of an element."""
        return ITEMSIZE[dtype]

    # ---- transfers ------------------------------------------------------------------------------------

    def op_write(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        with self.vendor_calls("writing"):
            self.staging.write(self.address(outs[0]), attrs["data"])

    def op_read(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        with self.vendor_calls("reading"):
            self.staging.read(self.address(ins[0]), attrs["into"])

    def op_copy(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        with self.vendor_calls("copying"):
            self.copy(outs[0], ins[0])

    def copy(self, out: Ref, source: Ref) -> None:
        """Queue a copy of the strided *source* to the contiguous *out*."""
        if _is_contiguous(source):
            nbytes = ITEMSIZE[out.dtype]
            for extent in out.shape:
                nbytes *= extent
            kind = self.runtime.memcpyDeviceToDevice
            self.runtime.memcpyAsync(self.address(out), self.address(source), nbytes, kind, self.stream)
            return
        kernel, ints = copy_kernel(out, source)
        self.prepare_fused(kernel)((source.handle, out.handle), ints, ())

    def synchronize(self) -> None:
        with self.vendor_calls("waiting for its launches"):
            self.runtime.streamSynchronize(self.stream)

    # ---- fused kernels --------------------------------------------------------------------------------

    def prepare_fused(self, kernel: Kernel) -> Prepared:
        found = self._programs.get(kernel)
        if found is None:
            found = self._programs[kernel] = FusedKernel(self, kernel)
        return found

    def source_text(self, kernel: Kernel, ints: tuple[int, ...]) -> str:
        return "\n".join(texts(kernel, ints, self.gpu_limits))

    def source(self, kernel: Kernel, choice: Choice) -> Source:
        """Return the rendered *kernel* in the form of *choice*."""
        found = self._sources.get((kernel, choice))
        if found is None:
            found = self._sources[kernel, choice] = render_gpu(kernel, CUDA, choice)
        return found

    def source_of_many(self, kernel: Kernel, choice: Choice, layout: Layout) -> Source:
        """Return the rendered *kernel* in the form of *choice* for as many launches as *layout* has room for."""
        key = (kernel, choice, layout.capacity)
        found = self._sources.get(key)
        if found is None:
            found = self._sources[key] = render_many(kernel, choice, layout)
        return found

    @functools.cached_property
    def parameter_bytes(self) -> int:
        """How many bytes of arguments a kernel takes."""
        version = min(self.runtime.driverGetVersion(), self.runtime.runtimeGetVersion())
        return LARGE_ROOM if version >= SINCE and int(self.compiler.architecture) >= VOLTA else ROOM

    def scratch_memory(self, nbytes: int) -> int:
        """Return memory that the next launches may use; the stream is in order, so all share one block."""
        if nbytes > self._scratch_bytes:
            if self.bundles:  # they keep the old block, so that it must not grow by a little each time
                nbytes = max(nbytes, 2 * self._scratch_bytes)
            self.retire(self._scratch)
            self._scratch, self._scratch_bytes = 0, 0
            self._scratch = self.allocate(nbytes)
            self._scratch_bytes = nbytes
        return self._scratch

    def counter(self) -> int:
        """Return the address of a uint32 that is 0 between launches: a kernel that counts there sets it back."""
        if not self._counter:
            self._counter = self.allocate(256)
            self.zero(self._counter, 256)
        return self._counter

    def retire(self, block: int) -> None:
        """Give a block of scratch memory back: at once, or when the device is closed if a graph may use it."""
        if block and self.bundles:
            self._retired.append(block)
        elif block:
            self.runtime.free(block)  # waits for its users

    def launch(
        self,
        source: str,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        slots: tuple[str, ...],
        values: tuple[Any, ...],
    ) -> None:
        """Queue the kernel *name* of *source*; for the ops that are no fused kernels."""
        key = (source, name, grid, block)
        launcher = self._launchers.get(key)
        if launcher is None:
            if len(self._launchers) > 1024:  # noqa: PLR2004  grids that keep changing must not grow it for ever
                self._launchers.clear()
            function = self.compiler.function(source, name)
            launcher = self._launchers[key] = Launcher(
                self.route, function, grid, block, slots, fixed={}, stream=self.stream
            )
        launcher.call(*values)

    # ---- ops ------------------------------------------------------------------------------------------

    def op_matmul(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """C = A @ B; see `matmul.py`."""
        with self.vendor_calls("multiplying matrices"):
            self.products()(outs[0], ins[0], ins[1], attrs)

    def op_matmul_add(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """A product that ends with a sum, and perhaps relu; see `matmul.py`."""
        a, b, addend = ins
        with self.vendor_calls("multiplying matrices"):
            self.products()(outs[0], a, b, attrs, addend)

    def products(self) -> MatrixProducts:
        """Return what multiplies matrices."""
        if self._products is None:
            self._products = MatrixProducts(self)
        return self._products

    def cudnn(self) -> Cudnn:
        """Return what runs cuDNN's graphs."""
        if self._cudnn is None:
            self._cudnn = Cudnn(self)
        return self._cudnn

    def library_plans(self) -> list[Any]:
        """Return the plans of libraries that launches may have used."""
        return [] if self._cudnn is None else list(self._cudnn.graphs.values())

    def op_convolution(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Convolve; see `convolution.py`."""
        with self.vendor_calls("convolving"):
            convolution.convolve(self, "convolution", outs, ins, attrs)

    def op_convolution_input(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """The gradient of a convolution by its images."""
        with self.vendor_calls("convolving"):
            convolution.convolve(self, "convolution_input", outs, ins, attrs)

    def op_convolution_weight(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """The gradient of a convolution by its weights."""
        with self.vendor_calls("convolving"):
            convolution.convolve(self, "convolution_weight", outs, ins, attrs)

    def op_attention(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Attention without weights in memory; see `attention.py`."""
        with self.vendor_calls("attending"):
            self.attention.forward(outs, ins, scale=attrs["scale"], causal=attrs["causal"])

    def op_attention_backward(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Its gradients; see `attention.py`."""
        with self.vendor_calls("differentiating attention"):
            self.attention.backward(outs, ins, scale=attrs["scale"], causal=attrs["causal"])

    def op_random_bits(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Philox-4x32-10."""
        out = outs[0]
        blocks = -(-out.shape[0] // 4)
        grid = (min(-(-blocks // 256), 32 * self.multiprocessors), 1, 1)
        slots = ("pointer", "int64", "uint64", "uint64")
        values = (self.address(out), out.shape[0], attrs["key"], attrs["counter"])
        with self.vendor_calls("drawing random bits"):
            self.launch(sources.PHILOX, "philox", grid, (256, 1, 1), slots, values)

    def op_scatter_add(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Add up rows by index; see `row_sums.py`."""
        with self.vendor_calls("adding up rows"):
            scatter(self, "add", outs[0], ins[0], ins[1], attrs)

    def op_scatter_reduce(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Keep the greatest, the least or the product of rows by index; see `row_sums.py`."""
        with self.vendor_calls("combining rows"):
            scatter(self, attrs["mode"], outs[0], ins[0], ins[1], attrs)

    def op_scan(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Reduce each element with all before it; see `ordering.py`."""
        with self.vendor_calls("scanning"):
            ordering.scan(self, outs[0], ins[0], attrs["kind"])

    def op_nonzero(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Find where a mask is true; see `ordering.py`."""
        with self.vendor_calls("finding what is true"):
            ordering.nonzero(self, outs[0], ins[0])

    def op_sort(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Sort rows; see `ordering.py`."""
        with self.vendor_calls("sorting"):
            ordering.sort(self, outs[0], outs[1], ins[0])

    def op_sort_values(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Sort rows; see `ordering.py`."""
        with self.vendor_calls("sorting"):
            ordering.sort(self, outs[0], None, ins[0])

    def op_arg_extreme(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Find the first greatest or least element; see `searching.py`."""
        with self.vendor_calls("finding an extreme"):
            searching.arg_extreme(self, outs[0], ins[0], attrs["kind"])

    def op_searchsorted(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Find places in sorted rows; see `searching.py`."""
        with self.vendor_calls("searching"):
            searching.searchsorted(self, outs[0], ins[0], ins[1], right=attrs["right"])

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
        """See `fft.py`."""
        fft.fft(self, outs[0], ins[0], attrs["inverse"])

    def op_rfft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `fft.py`."""
        fft.rfft(self, outs[0], ins[0])

    def op_irfft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """See `fft.py`."""
        fft.irfft(self, outs[0], ins[0], attrs["n"])


class VendorCalls:
    """A context around CUDA's calls; a class and not a generator, because every launch of an op passes through one."""

    __slots__ = ("doing", "driver")

    def __init__(self, driver: CudaDriver, doing: str) -> None:
        self.driver = driver
        self.doing = doing

    def __enter__(self) -> None:
        if self.driver.dead is not None:
            raise self.driver.dead
        try:
            self.driver.set_device(self.driver.ordinal)
        except self.driver.errors as error:
            raise self.failure(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, self.driver.errors):
            raise self.failure(error) from error

    def failure(self, error: Exception) -> Exception:
        """Return our exception for one of CUDA's."""
        return self.driver.failure(error, self.doing)


class Allocation(VendorCalls):
    """The context of an allocation: no room is told apart from other failures."""

    __slots__ = ("nbytes",)

    def __init__(self, driver: CudaDriver, nbytes: int) -> None:
        super().__init__(driver, f"allocating {nbytes} bytes")
        self.nbytes = nbytes

    def failure(self, error: Exception) -> Exception:
        """Return OutOfMemory with the figures, or what `VendorCalls` gives."""
        if getattr(error, "status", 0) != vendor.OUT_OF_MEMORY:
            return super().failure(error)
        free, total = self.driver.runtime.memGetInfo()
        return OutOfMemory(
            f"{self.driver.device} has no room for {self.nbytes} bytes: {free} of {total} bytes are free; free arrays, "
            "call pg.empty_cache() or use smaller batches"
        )


def _is_contiguous(ref: Ref) -> bool:
    wanted = contiguous_strides(ref.shape)
    return all(n == 1 or s == w for n, s, w in zip(ref.shape, ref.strides, wanted, strict=True))
