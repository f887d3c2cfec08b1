"""Libraries that take part: what each is called, what it needs, and what it may be asked.

Here: the list, and the interface of an adapter.
Not here: the adapters, a module each, here or in `foreign/`, which alone import their library.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from polygrad.bench.work import Work

Place = Literal["cpu", "nvidia", "other"]
Step = Callable[[], Any]  # one call: a sequence of results, or the seconds that count (of graphs)

KEPT_MEMORY = "glibc.malloc.mmap_threshold=17179869184:glibc.malloc.trim_threshold=17179869184"


class Library(Protocol):
    """An adapter: one library in one mode on one device, in a process of its own.

    It is made as ``Adapter(mode, device, threads)``.
    """

    version: str

    def build(self, work: Work) -> Step | None:
        """Return what does the work once when it is called, launched but not waited for; None: it cannot."""

    def wait(self, results: Any) -> None:
        """Wait until everything is done."""

    def numbers(self, result: Any) -> Any:
        """Return one result as a NumPy array."""

    def let_go(self) -> None:
        """Give back what the work that is over has left in pools and caches."""

    def peak(self, *, reset: bool = False) -> int | None:
        """Return the most bytes held on the device since the last reset; None: they are the process's own."""


@dataclass(frozen=True)
class Peer:
    """A library in one mode.

    Parameters
    ----------
    name : str
        What the command line and the tables call it.
    module, mode : str
        The adapter's module, and what it is told.
    package : str
        What has to be installed.
    places : tuple of str
        Where it can run.
    usual : bool
        Whether it takes part unless others are named.
    environment : mapping of str to str
        Of its process.
    """

    name: str
    module: str
    mode: str
    package: str
    places: tuple[Place, ...] = ("cpu",)
    usual: bool = True
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    def found(self) -> bool:
        """Return whether its package is installed; nothing is imported."""
        return importlib.util.find_spec(self.package) is not None


_HERE, _FOREIGN = "polygrad.bench.peers.", "polygrad.bench.foreign."


def place_of(driver: str, kind: str, vendor: str) -> Place:
    """Return what hardware a device of polygrad is, from what its driver says of it.

    >>> place_of("opencl", "gpu", "NVIDIA Corporation"), place_of("opencl", "cpu", "AuthenticAMD")
    ('nvidia', 'cpu')
    """
    if driver == "cpu" or "cpu" in kind.lower():
        return "cpu"
    return "nvidia" if "nvidia" in vendor.lower() else "other"


def _named(*peers: Peer) -> dict[str, Peer]:
    return {peer.name: peer for peer in peers}


_ANY: tuple[Place, ...] = ("cpu", "nvidia", "other")
_BOTH: tuple[Place, ...] = ("cpu", "nvidia")
_POOL = {"GLIBC_TUNABLES": KEPT_MEMORY}
_TINY = {"DEV": "CPU", "TRAINING": "1"}

OWN = _named(
    Peer("polygrad", _HERE + "polygrad_arrays", "plain", "polygrad", _ANY),
    Peer("polygrad.compile", _HERE + "polygrad_arrays", "compile", "polygrad", _ANY),
)
PEERS = _named(
    Peer("torch", _FOREIGN + "torch_tensors", "eager", "torch", _BOTH),
    Peer("torch.pool", _FOREIGN + "torch_tensors", "eager", "torch", environment=_POOL),
    Peer("torch.compile", _FOREIGN + "torch_tensors", "compile", "torch", _BOTH, usual=False),
    Peer("jax.jit", _FOREIGN + "jax_arrays", "jit", "jax", _BOTH),
    Peer("tinygrad", _FOREIGN + "tinygrad_tensors", "jit", "tinygrad", usual=False, environment=_TINY),
    Peer("cupy", _FOREIGN + "cupy_arrays", "plain", "cupy", ("nvidia",)),
    Peer("numpy", _HERE + "numpy_arrays", "plain", "numpy", usual=False),
    Peer("numpy.block", _HERE + "numpy_arrays", "block", "numpy"),
    Peer("netcl", _FOREIGN + "netcl_tensors", "plain", "netcl", usual=False),
)
