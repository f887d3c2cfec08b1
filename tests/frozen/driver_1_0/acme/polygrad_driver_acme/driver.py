"""The acme driver: open, memory, transfers, kernels. Read top to bottom.

Here: what polygrad asks of a device, on host memory for now: each "Yours:" says what to put in its place.
Not here: pooling, views, gradients, graphs, which are polygrad's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polygrad.driver import (
    REDUCTIONS,
    SCALAR_OPS,
    DeviceInfo,
    DriverBase,
    DriverInfo,
    DriverUnavailable,
    Kernel,
    Limits,
    OutOfMemory,
    Prepared,
    Ref,
    oracle,
)
from polygrad.driver.ir import DTYPES, ITEMSIZE

TOTAL = 4 << 30  # bytes


class AcmeDriver(DriverBase):
    """One instance is one open device."""

    # The versions that this driver was written for: polygrad refuses it by name when they no longer fit.
    info = DriverInfo(
        name="acme",
        summary="Acme devices",
        requires="the Acme runtime",
        api=(1, 0),
        ir=(1, 0),
    )

    def open(self, ordinal: int, options: Mapping[str, str]) -> DeviceInfo:
        """Open device number *ordinal* and declare what it can do: what is declared is tested."""
        # Yours: import the vendor's library here and not above, open the device, ask it for name and memory.
        if ordinal != 0:
            raise DriverUnavailable(f"there is no device acme:{ordinal}; this machine has one, acme:0")
        self.used = 0
        return DeviceInfo(
            driver="acme",
            ordinal=ordinal,
            name="host memory",
            dtypes=frozenset(DTYPES),
            scalar_ops=frozenset(SCALAR_OPS),
            reductions=frozenset(REDUCTIONS),
            limits=Limits(max_alloc=TOTAL, total=TOTAL, alignment=16),
        )

    def allocate(self, nbytes: int) -> Any:
        """Return a block of nbytes > 0 bytes: anything at all, polygrad only hands it back."""
        # Yours: the vendor's allocation; its error for a full device becomes OutOfMemory.
        if nbytes > TOTAL - self.used:
            raise OutOfMemory(f"acme:0 cannot allocate {nbytes} bytes: {self.used} of {TOTAL} are in use")
        self.used += nbytes
        return np.empty(nbytes, np.uint8)

    def free(self, handle: Any) -> None:
        """Give a block back. Launches made before may still use it: wait for them if the device does not."""
        self.used -= handle.size

    def op_write(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Copy host bytes to the device; done with them when it returns."""
        data = np.frombuffer(attrs["data"], np.uint8)
        start = outs[0].offset * ITEMSIZE[outs[0].dtype]
        outs[0].handle[start : start + data.size] = data

    def op_read(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Copy device bytes to the host, after every launch made before."""
        into = np.frombuffer(attrs["into"], np.uint8)
        start = ins[0].offset * ITEMSIZE[ins[0].dtype]
        into[:] = ins[0].handle[start : start + into.size]

    def prepare_fused(self, kernel: Kernel) -> Prepared:
        """Compile *kernel* and return what launches it. Called once a structure; what it returns is the hot path."""
        # Yours: write the kernel for your compiler (`polygrad.driver.render` has OpenCL C, CUDA C++ and C99), compile
        # it, and pass it the buffers, ints and scalars. The oracle is slow, and by definition right.

        def launch(buffers: Sequence[Any], ints: tuple[int, ...], scalars: Sequence[Any]) -> None:
            oracle.run(kernel, [typed(b, d) for b, d in zip(buffers, kernel.buffers, strict=True)], ints, scalars)

        return launch


def typed(block: Any, dtype: str) -> Any:
    """Return a block of bytes as an array of *dtype*."""
    return block[: block.size // ITEMSIZE[dtype] * ITEMSIZE[dtype]].view(oracle.compute_dtype(dtype))
