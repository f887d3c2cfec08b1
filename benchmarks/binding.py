"""What a launch costs on its way through the binding, beside a plain call.

Here: microseconds a call, printed. Not here: any device work; the driver below does nothing.

    python benchmarks/binding.py
"""

import sys
import timeit
from collections.abc import Callable
from typing import Any

import polygrad.driver as pd
from polygrad.driver.binding import open_device
from polygrad.driver.device import Device
from polygrad.driver.loader import Registry

KERNEL = pd.Kernel(
    1,
    0,
    ("float32", "float32"),
    (pd.View(0, "float32", (1,)), pd.View(1, "float32", (1,))),
    (),
    (pd.Instr("load", "float32", (), 0), pd.Instr("sqrt", "float32", (0,))),
    (pd.Store(1, 1),),
)


def nothing(_buffers: Any, _ints: Any, _scalars: Any) -> None:
    """Stand for an enqueued launch."""


class Idle(pd.DriverBase):
    """A driver whose launches do nothing."""

    info = pd.DriverInfo("idle")

    def open(self, ordinal: int, options: Any) -> pd.DeviceInfo:  # noqa: ARG002  the contract's arguments
        """Open."""
        return pd.DeviceInfo("idle", ordinal, "nothing", dtypes=frozenset({"float32"}))

    def allocate(self, nbytes: int) -> int:
        """Return a handle."""
        return nbytes

    def free(self, handle: Any) -> None:
        """Do nothing."""

    def op_copy(self, outs: Any, ins: Any, attrs: Any) -> None:
        """Do nothing."""

    def prepare_fused(self, kernel: pd.Kernel) -> pd.Prepared:  # noqa: ARG002  the contract's arguments
        """Return the launch that does nothing."""
        return nothing


class Wrapper:
    """A plugin that sees each fused launch."""

    @pd.hookimpl(wrapper=True)
    def polygrad_launch_fused(self, kernel: pd.Kernel) -> Any:  # noqa: ARG002  the contract's arguments
        """Pass it on."""
        return (yield)


def microseconds(call: Callable[[], Any], repeats: int = 100_000) -> float:
    """Return the least of seven means, in microseconds a call."""
    return min(timeit.repeat(call, number=repeats, repeat=7)) / repeats * 1e6


def main() -> None:
    """Print the table."""
    registry = Registry(discovering=False)
    registry.register(Idle)
    device: Device = open_device(registry, "idle")
    launch, buffers, ints = device.prepare(KERNEL), (0, 1), (4, 0, 0)
    attrs: dict[str, Any] = {}
    info, hook = device.info, registry.plugins.hook.polygrad_launch_fused
    empty = microseconds(lambda: None)
    rows = [
        ("plain call", microseconds(lambda: nothing(buffers, ints, ()))),
        ("prepared launch", microseconds(lambda: launch(buffers, ints, ()))),
        ("launch_op", microseconds(lambda: device.launch_op("copy", (), (), attrs))),
        ("prepare, found", microseconds(lambda: device.prepare(KERNEL))),
        (
            "pluggy hook, one launch",
            microseconds(
                lambda: hook(device=info, kernel=KERNEL, buffers=buffers, ints=ints, scalars=()), repeats=10_000
            ),
        ),
    ]
    registry.register(Wrapper())
    rows.append(("prepared launch, one wrapper", microseconds(lambda: launch(buffers, ints, ()), repeats=10_000)))
    for what, cost in rows:
        sys.stdout.write(f"{what:30s} {cost - empty:7.3f} us\n")


if __name__ == "__main__":
    main()
