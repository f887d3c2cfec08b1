"""The bench: an open device with what checks need to put things on it, launch, look, and judge.

Here: `Bench`, which tracks every block that it allocates and every capability that a launch has exercised.
Not here: checks; how results are compared (`case.py`).
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygrad.driver import Kernel, Ref, Requirements, oracle
from polygrad.driver.binding import Device
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.loader import Registry
from polygrad_conformance.case import Array, Case, Mismatch, compare


@dataclass(frozen=True)
class Effort:
    """How much a profile asks: `seconds` is the cap of a whole run, `random` of all random kernels together."""

    name: str
    seconds: float
    random: float
    points: int  # of a function, in float32
    precise: int  # points computed with mpmath
    repeats: int  # of leak and storm loops
    alone: bool  # each scalar op in a kernel of its own


EFFORTS = {
    "quick": Effort("quick", 480, 12, 1 << 13, 120, 40, alone=False),
    "standard": Effort("standard", 1800, 120, 1 << 18, 1000, 300, alone=True),
    "full": Effort("full", 1e9, 1800, 1 << 21, 5000, 2000, alone=True),
}


@dataclass
class Bench:
    """See the module's docstring.

    Attributes
    ----------
    device : Device
        Bound, as the runtime uses it.
    exercised : set of str
        Capabilities (words of `gating.capabilities`) that a launch or transfer has used.
    figures : dict
        Numbers for the report; ``figures["ulp"]`` maps ``"exp.float32"`` to (worst, ceiling, where).
    memo : dict
        What checks of one family share: results of a kernel that serves them all.
    launched : (Kernel, launch ints or None) or None
        The kernel that was prepared last, for the report of a failure.
    """

    registry: Registry
    device: Device
    effort: Effort = EFFORTS["quick"]
    seed: int = 0
    requirements: Requirements = field(default_factory=Requirements)
    exercised: set[str] = field(default_factory=set)
    figures: dict[str, Any] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)
    launched: tuple[Kernel, tuple[int, ...] | None] | None = None
    _blocks: list[Any] = field(default_factory=list)

    @property
    def info(self) -> Any:
        """The DeviceInfo."""
        return self.device.info

    def rng(self, *key: int) -> np.random.Generator:
        """Return a generator that depends on the run's seed and *key* alone."""
        return np.random.default_rng((self.seed, *key))

    # ---- memory -------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Any:
        """Return a block that `tidy` will free."""
        handle = self.device.allocate(nbytes)
        self._blocks.append(handle)
        return handle

    def free(self, handle: Any) -> None:
        """Free a block that `allocate` gave."""
        for place, block in enumerate(self._blocks):
            if block is handle:
                del self._blocks[place]
                break
        self.device.free(handle)

    def tidy(self) -> None:
        """Free what is left."""
        while self._blocks:
            self.device.free(self._blocks.pop())

    def write(self, handle: Any, data: Array, offset: int = 0) -> None:
        """Copy *data* to the block, *offset* elements from its beginning."""
        flat = np.ascontiguousarray(data).reshape(-1)
        raw = flat.view(np.uint8).data.toreadonly()
        self.device.launch_op("write", (Ref(handle, offset, flat.shape, (1,), dtype_name(flat)),), (), {"data": raw})

    def read(self, handle: Any, dtype: str, count: int, offset: int = 0) -> Array:
        """Return *count* elements of the block; bools keep whatever bytes they are."""
        into = np.full(count * ITEMSIZE[dtype], 0xA7, np.uint8)
        ref = Ref(handle, offset, (count,), (1,), dtype)
        self.device.launch_op("read", (), (ref,), {"into": into.data})
        return into.view(oracle.compute_dtype(dtype))

    def put(self, data: Array) -> Any:
        """Return a new block that holds *data*."""
        handle = self.allocate(max(data.nbytes, 1))
        self.write(handle, data)
        return handle

    # ---- launches -----------------------------------------------------------------------------------------

    def prepare(self, kernel: Kernel) -> Any:
        """Return the device's launch of *kernel*, and note what it exercises."""
        self.launched = kernel, None
        launch = self.device.prepare(kernel)
        self.exercised |= words_of(kernel)
        return launch

    def launch(
        self, kernel: Kernel, arrays: Sequence[Array], ints: Sequence[int], scalars: Sequence[Any] = ()
    ) -> list[Array]:
        """Put *arrays* on the device, launch *kernel* on them, and return what they are afterwards."""
        launch = self.prepare(kernel)
        self.launched = kernel, tuple(ints)
        handles = [self.put(a) for a in arrays]
        try:
            launch(tuple(handles), tuple(ints), tuple(scalars))
            names = kernel.buffers
            return [self.read(h, d, len(a)) for h, d, a in zip(handles, names, arrays, strict=True)]
        finally:
            for handle in handles:
                self.free(handle)

    def op(self, name: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Run an op of the device."""
        self.device.launch_op(name, outs, ins, dict(attrs))
        self.exercised.add(f"op.{name}")

    def judge(self, case: Case) -> None:
        """Launch *case* on the device and compare with the oracle; a failure carries the case.

        Raises
        ------
        Failure
            With `case`, which `replay.save` can write.
        """
        try:
            got = self.launch(case.kernel, case.fresh(), case.ints, case.scalars)
            compare(case, got)
        except Mismatch as error:
            raise Failure(str(error), case) from None
        except Exception as error:
            raise Failure(f"the launch raised {type(error).__name__}: {error}", case) from error

    @contextlib.contextmanager
    def raises(self, kind: type[BaseException], doing: str) -> Iterator[None]:
        """Assert that the block raises *kind*."""
        try:
            yield
        except kind:
            return
        except Exception as error:
            raise AssertionError(f"{doing} must raise {kind.__name__}, not {type(error).__name__}: {error}") from error
        raise AssertionError(f"{doing} must raise {kind.__name__}; it raised nothing")


class Failure(AssertionError):
    """A device's results are wrong, with the case that shows it."""

    def __init__(self, message: str, case: Case) -> None:
        super().__init__(message)
        self.case = case


def dtype_name(array: Array) -> str:
    """Return the IR's name of an array's dtype.

    >>> dtype_name(np.zeros(1, np.int8)), dtype_name(np.zeros(1, bool))
    ('int8', 'bool')
    """
    return str(array.dtype.name)


def words_of(kernel: Kernel) -> set[str]:
    """Return the capabilities that a launch of *kernel* exercises."""
    words = {f"dtype.{d}" for d in kernel.buffers}
    for instr in kernel.body:
        words.add(f"dtype.{instr.dtype}")
        words.add(f"reduction.{instr.attr}" if instr.op == "reduce" else f"scalar.{instr.op}")
    return words
