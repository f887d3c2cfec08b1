"""What the kernels of a GPT's training step read and write, and how fast a GPU does that, kernel by kernel.

    python benchmarks/step_traffic.py                                          # plans alone, on no device: two seconds
    python benchmarks/step_traffic.py --float32 --batch 4
    python benchmarks/step_traffic.py --device cuda:0                          # needs PyTorch, whose profiler sees all

Without a device the step is planned for one that only exists on paper: it declares what a GPU does, and launches
nothing. The table shows for each kernel how often it is launched, the bytes that it moves if it touches each element
once, and the microseconds that this takes at a bandwidth; on a device also what it takes there (all launches of its
functions in one replay), as a ratio. The last line is the sum.

Here: fused kernels. Not here: matrix products and attention, whose time is not that of memory.
"""

import argparse
import collections
import contextlib
import re
from typing import Any, ClassVar

import polygrad as pg
from polygrad.driver import SCALAR_OPS, DeviceInfo, DriverBase, DriverInfo, Features, Limits
from polygrad.driver.describe import kernel_bytes, kernel_identifier, kernel_name
from polygrad.driver.ir import DTYPES, REDUCTIONS
from polygrad.driver.loader import REGISTRY
from polygrad.driver.render.collapse import collapse

OPS = ("matmul", "attention", "attention_backward", "random_bits", "scatter_add", "scatter_reduce", "copy")


class Paper(DriverBase):
    """A device with the abilities of a large GPU that launches nothing, and notes what it should have launched."""

    info = DriverInfo("paper", summary="plans for a GPU, and launches nothing")
    launched: ClassVar[list[tuple[Any, tuple[int, ...]]]] = []

    def open(self, ordinal, _options):
        return DeviceInfo(
            "paper", ordinal, "a plan", dtypes=frozenset(DTYPES), scalar_ops=frozenset(SCALAR_OPS),
            reductions=frozenset(REDUCTIONS), ops=frozenset(OPS),
            limits=Limits(max_alloc=1 << 40, total=1 << 40, alignment=256, partials=4 * 132),
            features=Features(asynchronous=True, correctly_rounded=True, placed=True),
        )  # fmt: skip

    def allocate(self, _nbytes):
        return object()

    def free(self, handle):
        pass

    def op_write(self, outs, ins, attrs):
        pass

    def op_read(self, _outs, _ins, attrs):
        attrs["into"][:] = bytes(len(attrs["into"]))

    def prepare_fused(self, kernel):
        return lambda _buffers, ints, _scalars: self.launched.append((kernel, tuple(ints)))


for name in OPS:
    setattr(Paper, f"op_{name}", lambda _self, _outs, _ins, _attrs: None)


def compiled_step(device: str, wanted: argparse.Namespace) -> Any:
    """Return the training step of the GPT on a device, compiled, after the calls that make it ready."""
    pg.set_device(device)
    pg.random.seed(0)
    model = pg.nn.GPT(
        vocab_size=wanted.vocabulary, context=wanted.length, dim=wanted.dim, layers=wanted.layers, heads=wanted.heads,
        hidden=4 * wanted.dim, positions="learned", tied=False,
    )  # fmt: skip
    optimiser = pg.optim.AdamW(model, lr=3e-4)
    tokens, targets = (pg.random.randint(0, wanted.vocabulary, (wanted.batch, wanted.length)) for _ in range(2))
    pg.realize(tokens, targets, *model.parameters())

    def step():
        with contextlib.nullcontext() if wanted.float32 else pg.autocast("bfloat16"):
            loss = model.loss(tokens, targets)
        loss.backward()
        optimiser.step(also=loss)
        optimiser.zero_grad()
        return loss.detach()

    function = pg.compile(step)
    for _ in range(2 if device.startswith("paper") else 4):
        function()
    return function


def planned(wanted: argparse.Namespace) -> list[tuple[Any, tuple[int, ...]]]:
    """Return the fused kernels of one replay, with their launch ints."""
    REGISTRY.register(Paper.plugin())
    function = compiled_step("paper:0", wanted)
    Paper.launched.clear()
    function()
    return list(Paper.launched)


def measured(device: str, wanted: argparse.Namespace) -> dict[str, float]:
    """Return the microseconds of one replay on a device, by the name of kernels' functions without their numbers."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.zeros(1, device="cuda")
    function = compiled_step(device, wanted)
    pg.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        function()
        pg.synchronize()
        torch.cuda.synchronize()
    found: dict[str, float] = collections.defaultdict(float)
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.name.startswith("pg_"):
            found[re.sub(r"(_many)?_\d+$", "", event.name)] += event.device_time
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in (("dim", 768), ("layers", 16), ("length", 1024), ("batch", 16), ("vocabulary", 32768)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--float32", action="store_true", help="without autocast to bfloat16")
    parser.add_argument("--device", help="also run it there, such as cuda:0")
    parser.add_argument("--bandwidth", type=float, default=4.2, help="TB/s of a copy, read and written")
    parser.add_argument("--rows", type=int, default=30)
    wanted = parser.parse_args()

    groups: dict[str, list[Any]] = {}
    for kernel, ints in planned(wanted):
        simple, _ = collapse(kernel, ints)
        group = groups.setdefault(kernel_identifier(simple), [0, 0, kernel_name(kernel)])
        group[0] += 1
        group[1] += kernel_bytes(kernel, ints)
    times = measured(wanted.device, wanted) if wanted.device else {}
    print(f"{'kernel':40} {'launches':>8} {'MB':>10} {'us at ' + str(wanted.bandwidth):>10} {'us':>10} {'ratio':>6}")
    for title, (count, nbytes, what) in sorted(groups.items(), key=lambda item: -item[1][1])[: wanted.rows]:
        least = nbytes / wanted.bandwidth / 1e6
        taken = f"{times[title]:10.1f} {times[title] / least:6.2f}" if title in times else f"{'':10} {'':6}"
        print(f"{title:40} {count:8} {nbytes / 1e6:10.1f} {least:10.1f} {taken}  {what}")
    total = sum(group[1] for group in groups.values())
    print(f"all: {sum(g[0] for g in groups.values())} launches, {total / 1e9:.2f} GB, "
          f"{total / wanted.bandwidth / 1e9:.2f} ms", end="")  # fmt: skip
    print(f"; measured {sum(times.values()) / 1e3:.2f} ms" if times else "")


if __name__ == "__main__":
    main()
