"""The torch driver: open, memory, ops. Read top to bottom.

Here: what the waist asks for; PyTorch is imported when the device is opened. Not here: kernels (`unfuse.py`).
"""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from polygrad import driver as pg
from polygrad.driver.ir import DTYPES, ITEMSIZE, STORAGE


class TorchDriver(pg.DriverBase):
    """Blocks are tensors of bytes; a kernel is run instruction by instruction, each a PyTorch op on whole arrays."""

    info = pg.DriverInfo("torch", "PyTorch's CPU tensors, op by op", "torch >= 2.4", api=(1, 0), ir=(1, 0))

    def open(self, ordinal: int, options: Mapping[str, str]) -> pg.DeviceInfo:
        import torch

        from polygrad_driver_torch import unfuse

        if ordinal != 0:
            raise pg.DriverUnavailable(f"there is no device torch:{ordinal}; the host is one device, torch:0")
        self.torch, self.unfuse, self.used = torch, unfuse, 0
        self.total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pg.DeviceInfo(
            "torch", 0, "PyTorch on the CPU", frozenset(DTYPES) - {"uint64"},
            frozenset(unfuse.FUNCTIONS) - {"where"}, frozenset(pg.REDUCTIONS), version=torch.__version__,
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
        a, b = map(self.unfuse.load, ins)
        wide = self.torch.float32 if outs[0].dtype in STORAGE else a.dtype
        self.unfuse.store(outs[0], self.unfuse.cast(self.torch.matmul(a.to(wide), b.to(wide)), outs[0].dtype))

    def op_random_bits(self, outs: Sequence[pg.Ref], ins: Sequence[pg.Ref], attrs: Mapping[str, Any]) -> None:
        mask, (k1, k0), counter = 0xFFFFFFFF, divmod(attrs["key"], 1 << 32), attrs["counter"]
        at = self.torch.arange(-(-outs[0].shape[0] // 4)) + (counter - (counter >> 63 << 64))
        c = [
            at & mask,
            at >> 32 & mask,
            at * 0,
            at * 0,
        ]  # words of 32 bits in int64, whose products wrap as they should
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32 & mask) ^ c[1] ^ k0, q & mask, (p >> 32 & mask) ^ c[3] ^ k1, p & mask]
            k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
        self.unfuse.store(outs[0], self.torch.stack(c, 1).flatten()[: outs[0].shape[0]])

    def prepare_fused(self, kernel: pg.Kernel) -> pg.Prepared:
        return functools.partial(self.unfuse.run, kernel)
