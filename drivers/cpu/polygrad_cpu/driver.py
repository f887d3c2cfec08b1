"""The cpu driver: open, memory, kernels, ops. Read top to bottom.

Here: what the waist asks for, each handed to the module that does it; NumPy is imported when the device is opened.
Not here: how any of it is done.
"""

import platform
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from polygrad.driver import (
    REDUCTIONS,
    SCALAR_OPS,
    DeviceInfo,
    DriverBase,
    DriverInfo,
    DriverUnavailable,
    Features,
    Kernel,
    Limits,
    MemoryInfo,
    Prepared,
    Ref,
)
from polygrad.driver.ir import DTYPES, guards_as_operands


class CpuDriver(DriverBase):
    """NumPy on the host's cores: generated calls of its ufuncs over blocks that fit the cache, on threads."""

    info: ClassVar[DriverInfo] = DriverInfo(
        name="cpu", summary="the host's cores through NumPy", requires="numpy >= 2.0", priority=0
    )

    def open(self, ordinal: int, options: Mapping[str, str]) -> DeviceInfo:
        """Open the only device; *options* are those of `settings.read_settings`."""
        import numpy as np

        from polygrad_cpu import memory, settings

        if ordinal != 0:
            message = f"there is no device cpu:{ordinal}; the cores of this machine are one device, cpu:0"
            raise DriverUnavailable(message)
        self.settings = settings.read_settings(options)
        self.memory = memory.Memory(memory.total_memory())
        return DeviceInfo(
            driver="cpu",
            ordinal=0,
            name=platform.processor() or platform.machine() or "cpu",
            dtypes=frozenset(DTYPES),
            scalar_ops=frozenset(SCALAR_OPS),
            reductions=frozenset(REDUCTIONS),
            limits=Limits(
                max_alloc=self.memory.total, total=self.memory.total, alignment=memory.ALIGNMENT,
                partials=4 * self.settings.threads,
            ),
            features=Features(
                host_memory=True, correctly_rounded=True, thread_safety="free", fork="safe", notices=True, placed=True
            ),
            version=f"NumPy {np.__version__}",
            extra={"threads": str(self.settings.threads), "block": f"{self.settings.block_bytes} bytes"},
        )  # fmt: skip

    # ---- memory -------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Any:
        return self.memory.allocate(nbytes)

    def free(self, handle: Any) -> None:
        if handle.base is not None and not isinstance(handle.base, memoryview):  # adopted memory was never counted
            self.memory.give_back(len(handle))

    def memory_info(self) -> MemoryInfo:
        return self.memory.info()

    def view(self, handle: Any, nbytes: int) -> memoryview:
        return memoryview(handle)[:nbytes]

    def adopt(self, memory: memoryview) -> Any:
        from polygrad_cpu.memory import adopt

        return adopt(memory)

    def notices(self, nbytes: int) -> Any:
        from polygrad_cpu.memory import Notices

        return Notices(nbytes)

    def op_write(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import transfer

        transfer.write(outs[0], attrs["data"])

    def op_read(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import transfer

        transfer.read(ins[0], attrs["into"])

    # ---- kernels ------------------------------------------------------------------------------------------

    def prepare_fused(self, kernel: Kernel) -> Prepared:
        from polygrad_cpu.program import prepare

        return prepare(kernel, self.settings)

    def source_text(self, kernel: Kernel, ints: tuple[int, ...]) -> str:
        """Return the Python that runs a small launch; a large one is cut into blocks and levels of the same calls."""
        from polygrad_cpu.source import Programs

        return Programs(guards_as_operands(kernel)).whole.text

    # ---- ops ----------------------------------------------------------------------------------------------

    def op_copy(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import transfer

        transfer.copy(outs[0], ins[0], self.settings)

    def op_matmul(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.product import matmul

        matmul(outs[0], ins[0], ins[1], self.settings.threads)

    def op_matmul_add(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.product import matmul_add

        a, b, c = ins
        matmul_add(outs[0], a, b, c, attrs.get("activation", ""), self.settings.threads)

    def op_convolution(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import convolution

        convolution.convolution(outs, ins, attrs, self.settings)

    def op_convolution_input(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import convolution

        convolution.input_gradient(outs, ins, attrs, self.settings)

    def op_convolution_weight(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import convolution

        convolution.weight_gradient(outs, ins, attrs, self.settings)

    def op_max_pool(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import pooling

        pooling.max_pool(outs, ins, attrs, self.settings)

    def op_max_pool_gradient(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import pooling

        pooling.max_pool_gradient(outs, ins, attrs, self.settings)

    def op_attention(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.attention import attention

        attention(outs, ins, attrs, self.settings)

    def op_attention_backward(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.attention import attention_backward

        attention_backward(outs, ins, attrs, self.settings)

    def op_random_bits(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.philox import fill

        fill(outs[0], attrs["key"], attrs["counter"], self.settings)

    def op_scatter_add(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.scatter import scatter_add

        scatter_add(outs[0], ins[0], ins[1], attrs)

    def op_scan(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.scan import scan

        scan(outs[0], ins[0], attrs["kind"], self.settings)

    def op_nonzero(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.scan import nonzero

        nonzero(outs[0], ins[0])

    def op_sort(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.ordering import sort

        sort(outs[0], outs[1], ins[0], self.settings)

    def op_sort_values(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.ordering import sort_values

        sort_values(outs[0], ins[0], self.settings)

    def op_arg_extreme(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.searching import arg_extreme

        arg_extreme(outs[0], ins[0], attrs["kind"], self.settings)

    def op_searchsorted(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.searching import searchsorted

        searchsorted(outs[0], ins[0], ins[1], self.settings, right=attrs["right"])

    def op_solve(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.solve(outs, ins, attrs)

    def op_triangular_solve(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.triangular_solve(outs, ins, attrs)

    def op_cholesky(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.cholesky(outs, ins, attrs)

    def op_slogdet(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.slogdet(outs, ins, attrs)

    def op_det(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.det(outs, ins, attrs)

    def op_eigh(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.eigh(outs, ins, attrs)

    def op_eig(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.eig(outs, ins, attrs)

    def op_svd(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.svd(outs, ins, attrs)

    def op_qr(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import linalg

        linalg.qr(outs, ins, attrs)

    def op_fft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import fft

        fft.fft(outs[0], ins[0], attrs["inverse"])

    def op_rfft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import fft

        fft.rfft(outs[0], ins[0])

    def op_irfft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu import fft

        fft.irfft(outs[0], ins[0], attrs["n"])

    def op_scatter_reduce(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        from polygrad_cpu.scatter import scatter_reduce

        scatter_reduce(outs[0], ins[0], ins[1], attrs)
