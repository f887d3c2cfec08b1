"""Train two classifiers of handwritten digits with the same code on every device, and compare the devices.

Here: the demo behind ``./dev demo``: models, the training loop, the table, the verdict. Not here: anything that
polygrad itself needs.

Data: the 1,797 scanned digits of 8 x 8 pixels that scikit-learn ships. All random numbers (weights, shuffling, dropout)
come from ``pg.random``, which gives the same bits on every device, so the loss curves differ by rounding alone.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import polygrad as pg

SEED = 1
BATCH = 64
COMPARED = 100  # steps whose losses must agree between devices
TOLERANCE = 1e-4
WANTED = 0.97  # accuracy on images that were not trained on


class Net(pg.nn.Module):
    """A small convolutional network, written as a class.

    It is smooth: at the kinks of ReLU and of a maximum a rounding error can turn into another gradient, and two right
    float32 trainings then part ways, on one device as on two.
    """

    def __init__(self) -> None:
        self.first = pg.nn.Conv2d(1, 16, 3, padding=1)
        self.second = pg.nn.Conv2d(16, 32, 3, padding=1)
        self.head = pg.nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: pg.Array) -> pg.Array:
        """Return logits [N, 10] of images [N, 64]."""
        x = pg.reshape(images, (images.shape[0], 1, 8, 8))
        x = pg.nn.gelu(self.first(x))
        x = pg.nn.avg_pool2d(pg.nn.gelu(self.second(x)), 2)
        return self.head(pg.reshape(x, (x.shape[0], 32 * 4 * 4)))


def perceptron() -> pg.nn.Module:
    """Return a network of two hidden layers."""
    nn = pg.nn
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


class Job(NamedTuple):
    """A model, how it is optimised, and for how long."""

    name: str
    model: Callable[[], pg.nn.Module]
    optimizer: Callable[[pg.nn.Module], Any]
    epochs: int


JOBS = (
    Job("MLP", perceptron, lambda m: pg.optim.AdamW(m, lr=4e-3), 20),
    Job("CNN", Net, lambda m: pg.optim.SGD(m, lr=0.2, momentum=0.9, nesterov=True), 12),
)


class Result(NamedTuple):
    """What one job came to on one device."""

    job: str
    device: str
    accuracy: float
    step_ms: float
    losses: list[float]


def digits() -> tuple[Any, Any, Any, Any]:
    """Return training images and labels, test images and labels, as NumPy arrays; pixels in [0, 1]."""
    data = load_digits()
    images = (data.data / 16.0).astype("float32")
    train, test, train_labels, test_labels = train_test_split(
        images, data.target.astype("int32"), test_size=0.2, random_state=7, stratify=data.target
    )
    return train, train_labels, test, test_labels


def train(job: Job, device: str, advance: Callable[[], None]) -> Result:
    """Run *job* on *device*, calling *advance* after each step."""
    with pg.device(device):
        pg.random.seed(SEED)
        images, labels, test, test_labels = (pg.asarray(a) for a in digits())
        model = job.model()
        optimizer = job.optimizer(model)
        steps = images.shape[0] // BATCH
        schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimizer, total=job.epochs * steps, warmup=steps)
        losses: list[pg.Array] = []
        times: list[float] = []
        for _ in range(job.epochs):
            order = pg.random.permutation(images.shape[0])
            start = time.perf_counter()
            for k in range(steps):
                batch = order[k * BATCH : (k + 1) * BATCH]
                optimizer.zero_grad()
                loss = pg.nn.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step(also=loss)
                schedule.step()
                losses.append(loss.detach())
                advance()
            pg.synchronize()
            times.append((time.perf_counter() - start) / steps)
        model.eval()
        with pg.no_grad():
            right = pg.argmax(model(test), axis=1) == test_labels
        accuracy = float(pg.mean(right.astype(pg.float32)))
        return Result(job.name, device, accuracy, sorted(times)[len(times) // 2] * 1e3, [float(x) for x in losses])


def difference(result: Result, reference: Result) -> float:
    """Return the largest difference of two loss curves over the first steps."""
    pairs = zip(result.losses[:COMPARED], reference.losses[:COMPARED], strict=True)
    return max(abs(a - b) for a, b in pairs)


def verdict(results: Sequence[Result]) -> list[str]:
    """Return a sentence for each thing that is not as it should be."""
    faults = []
    for r in results:
        if r.accuracy < WANTED:
            faults.append(
                f"{r.job} on {r.device} got {r.accuracy:.1%} of the test images right; at least {WANTED:.0%} were "
                "expected."
            )
        apart = difference(r, _reference(results, r))
        if not apart <= TOLERANCE:
            faults.append(
                f"{r.job} on {r.device} has losses up to {apart:.1e} away from {_reference(results, r).device}'s; at "
                f"most {TOLERANCE:.0e} were expected."
            )
    return faults


def _reference(results: Sequence[Result], result: Result) -> Result:
    return next(r for r in results if r.job == result.job)


def table(results: Sequence[Result]) -> Table:
    """Return the closing table."""
    out = Table(title="Handwritten digits, one program on every device")
    for heading in ("model", "device", "test accuracy", "time a step", f"largest loss difference, {COMPARED} steps"):
        out.add_column(heading, justify="left" if heading in ("model", "device") else "right")
    for r in results:
        reference = _reference(results, r)
        apart = "reference" if reference is r else f"{difference(r, reference):.1e}"
        out.add_row(r.job, r.device, f"{r.accuracy:.1%}", f"{r.step_ms:.2f} ms", apart)
    return out


def found_devices(console: Console) -> list[str]:
    """Return the devices, the host's first, and say in one line each which drivers have none."""
    devices = pg.list_devices()
    for record in pg.drivers():
        if not any(d.partition(":")[0] == record.name for d in devices):
            console.print(
                f"not used: {record.name}, because {record.reason or record.status}",
                style="dim",
                highlight=False,
                markup=False,
            )
    return sorted(devices, key=lambda d: d != "cpu:0")


def main(argv: Sequence[str] | None = None) -> int:
    """Train everywhere, print the table, and return 0 if accuracy and agreement are as they should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", help="names with commas between; all that are found unless given")
    parser.add_argument("--models", default="MLP,CNN", help="which of them (default: %(default)s)")
    parser.add_argument("--plain", action="store_true", help="no progress bar")
    arguments = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 100)
    devices = arguments.devices.split(",") if arguments.devices else found_devices(console)
    console.print(f"devices: {', '.join(devices)}", highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    results = []
    jobs = [job for job in JOBS if job.name in arguments.models.split(",")]
    steps = digits()[0].shape[0] // BATCH
    with Progress(*columns, console=console, disable=arguments.plain) as progress:
        bars = [
            (job, d, progress.add_task(f"{job.name} on {d}", total=job.epochs * steps, start=False))
            for job in jobs
            for d in devices
        ]
        for job, device, bar in bars:
            progress.start_task(bar)
            results.append(train(job, device, lambda bar=bar: progress.advance(bar)))  # type: ignore[misc]
    console.print(table(results))
    faults = verdict(results)
    for fault in faults:
        console.print(fault, style="bold red", highlight=False, markup=False, soft_wrap=True)
    if not faults:
        console.print(f"All at least {WANTED:.0%} right, and all devices agree to {TOLERANCE:.0e}.", highlight=False)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
