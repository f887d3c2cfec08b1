"""The torch driver: open, memory, ops. Read top to bottom.

Here: what the waist asks for; PyTorch is imported when the device is opened. Not here: PyTorch's ops (`library.py`).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from polygrad import driver as pg
from polygrad.driver import unfuse
from polygrad.driver.ir import DTYPES, ITEMSIZE, STORAGE


class TorchDriver(pg.DriverBase):
    """Blocks are tensors of bytes; a kernel is run instruction by instruction, each a PyTorch op on whole tensors."""

    info = pg.DriverInfo("torch", "PyTorch's CPU tensors, op by op", "torch >= 2.4", api=(1, 0), ir=(1, 0))

    def open(self, ordinal: int, options: Mapping[str, str]) -> pg.DeviceInfo:
        import torch

        from polygrad_driver_torch.library import FUNCTIONS, TorchLibrary

        if ordinal != 0:
            raise pg.DriverUnavailable(f"there is no device torch:{ordinal}; the host is one device, torch:0")
        self.torch, self.library, self.used = torch, TorchLibrary(), 0
        self.total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pg.DeviceInfo(
            "torch", 0, "PyTorch on the CPU", frozenset(DTYPES) - {"uint64"},
            frozenset(FUNCTIONS) - {"where"}, frozenset(pg.REDUCTIONS), version=torch.__version__,
            limits=pg.Limits(self.total, self.total), features=pg.Features(correctly_rounded=True),
        )  # fmt: skip

    def allocate(self, nbytes: int) -> Any:
        if nbytes > self.total - self.used:
            have = f"{self.used} of {self.total} are in use"
            raise pg.OutOfMemory(f"torch:0 cannot allocate {nbytes} bytes: {have}; drop arrays no longer needed")
        self.used += nbytes
        return self.torch.empty(nbytes, dtype=self.torch.uint8)

    def free(self, handle: Any) -> None:
        self.used -= handle.numel()

    def op_write(self, outs: Sequence[pg.Ref], ins: Sequence[pg.Ref], attrs: Mapping[str, Any]) -> None:
        start = outs[0].offset * ITEMSIZE[outs[0].dtype]
        memoryview(outs[0].handle.numpy())[start : start + len(attrs["data"])] = attrs["data"]

    def op_read(self, outs: Sequence[pg.Ref], ins: Sequence[pg.Ref], attrs: Mapping[str, Any]) -> None:
        start = ins[0].offset * ITEMSIZE[ins[0].dtype]
        attrs["into"][:] = memoryview(ins[0].handle.numpy())[start : start + len(attrs["into"])]

    def op_matmul(self, outs: Sequence[pg.Ref], ins: Sequence[pg.Ref], attrs: Mapping[str, Any]) -> None:
        a, b = map(self.library.load, ins)
        wide = "float32" if outs[0].dtype in STORAGE else outs[0].dtype
        a, b = (self.library.cast(x, outs[0].dtype, wide) for x in (a, b))
        self.library.store(outs[0], self.library.cast(self.torch.matmul(a, b), wide, outs[0].dtype))

    def op_random_bits(self, outs: Sequence[pg.Ref], ins: Sequence[pg.Ref], attrs: Mapping[str, Any]) -> None:
        unfuse.random_bits(self.library, outs[0], attrs["key"], attrs["counter"])

    def prepare_fused(self, kernel: pg.Kernel) -> pg.Prepared:
        return unfuse.unfuse(self.library, kernel)
