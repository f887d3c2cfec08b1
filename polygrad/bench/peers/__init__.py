"""Libraries that take part: what each is called, what it needs, and what it may be asked.

Here: the list, and the interface of an adapter.
Not here: the adapters, a module each, which alone import their library.
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
        The adapter in this folder, and what it is told.
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
    library: str = ""

    def found(self) -> bool:
        """Return whether its package is installed; nothing is imported."""
        return importlib.util.find_spec(self.package) is not None


OWN = {
    peer.name: peer
    for peer in (
        Peer("polygrad", "polygrad_arrays", "plain", "polygrad", ("cpu", "nvidia", "other"), library="polygrad"),
        Peer("polygrad.compile", "polygrad_arrays", "compile", "polygrad", ("cpu", "nvidia", "other"), library="polygrad"),
    )
}
PEERS = {
    peer.name: peer
    for peer in (
        Peer("torch", "torch_tensors", "eager", "torch", ("cpu", "nvidia"), library="torch"),
        Peer("torch.pool", "torch_tensors", "eager", "torch", environment={"GLIBC_TUNABLES": KEPT_MEMORY}, library="torch"),
        Peer("torch.compile", "torch_tensors", "compile", "torch", ("cpu", "nvidia"), usual=False, library="torch"),
        Peer("jax.jit", "jax_arrays", "jit", "jax", ("cpu", "nvidia"), library="jax"),
        Peer("tinygrad", "tinygrad_tensors", "jit", "tinygrad", usual=False, environment={"DEV": "CPU", "TRAINING": "1"}, library="tinygrad"),
        Peer("cupy", "cupy_arrays", "plain", "cupy", ("nvidia",), library="cupy"),
        Peer("numpy", "numpy_arrays", "plain", "numpy", usual=False, library="numpy"),
        Peer("numpy.block", "numpy_arrays", "block", "numpy", library="numpy"),
        Peer("netcl", "netcl_tensors", "plain", "netcl", usual=False, library="netcl"),
    )
}  # fmt: skip
