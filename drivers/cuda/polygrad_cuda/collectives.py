"""Values between GPUs of several processes: NCCL, through CuPy.

Here: one communicator of one GPU, on a stream of its own beside that of the launches.
Not here: who calls it and in which order (polygrad's), how ranks find each other.
"""

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polygrad.driver import DriverError, LaunchError, Ref
from polygrad.driver.ir import ITEMSIZE

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

TYPES = {
    "int8": "NCCL_INT8", "uint8": "NCCL_UINT8", "int32": "NCCL_INT32", "uint32": "NCCL_UINT32", "int64": "NCCL_INT64",
    "uint64": "NCCL_UINT64", "float16": "NCCL_FLOAT16", "float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64",
    "bfloat16": "NCCL_BFLOAT16", "bool": "NCCL_UINT8",
}  # fmt: skip
OPS = {"sum": "NCCL_SUM", "max": "NCCL_MAX", "min": "NCCL_MIN"}
NOT_READY = 600  # what CUDA answers for an event whose work is under way
BYTE = "NCCL_UINT8"  # what is only moved is moved as bytes, whatever its dtype


def collectives(driver: "CudaDriver") -> "NcclCollectives | None":
    """Return the collectives of an open GPU; None if there is no NCCL for CuPy to load."""
    nccl = library(driver.cupy)
    return None if nccl is None else NcclCollectives(driver, nccl)


def library(cupy: Any) -> Any:
    """Return CuPy's module for NCCL; None if it finds no library.

    CuPy looks where the system has libraries, and imports the module only when asked. A library of the package
    nvidia-nccl is loaded first, so that it is found by its name.
    """
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(folder, "nccl", "lib", "libnccl.so.2")
        if path.exists():
            ctypes.CDLL(os.fspath(path), mode=ctypes.RTLD_GLOBAL)
            break
    nccl = importlib.import_module(f"{cupy.__name__}.cuda.nccl")
    return nccl if nccl.available else None


class Token:
    """Work on the stream of collectives, between two events."""

    __slots__ = ("begun", "ended", "kept")

    def __init__(self, begun: int, ended: int, kept: list[int]) -> None:
        self.begun, self.ended, self.kept = begun, ended, kept

    def __del__(self) -> None:
        self.kept += [self.begun, self.ended]  # nobody asks for them any more: they can mark other work


class NcclCollectives:
    """NCCL's communicator of one GPU.

    Parameters
    ----------
    driver : CudaDriver
        The open device.
    nccl : module
        ``cupy.cuda.nccl``.
    """

    name = "NCCL"

    def __init__(self, driver: "CudaDriver", nccl: Any) -> None:
        self.driver, self.nccl = driver, nccl
        self.runtime = driver.runtime
        self.types = {name: getattr(nccl, code) for name, code in TYPES.items() if hasattr(nccl, code)}
        self.sums = frozenset(self.types) - {"bool"}
        self.communicator: Any = None
        self.stream, self.zero = 0, 0
        self.aborted = False
        self._kept: list[int] = []  # events that can be used again
        self._cupy_stream: Any = None

    def identity(self) -> bytes:
        self._environment()
        with self._calls("making an identity for NCCL"):
            return bytes(self.nccl.get_unique_id())

    @staticmethod
    def _environment() -> None:
        # NVLink multicast (NVLS) needs rights and a fabric manager that containers and shared hosts often lack; NCCL
        # then fails or hangs when the communicator is made. Rings and trees do without. Whoever has it sets 1.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

    def connect(self, identity: bytes, rank: int, size: int) -> None:
        self._environment()
        with self._calls(f"joining {size} ranks through NCCL"):
            self._cupy_stream = self.driver.cupy.cuda.Stream(non_blocking=True)
            self.stream = int(self._cupy_stream.ptr)
            self.communicator = self.nccl.NcclCommunicator(size, identity, rank)
            self.zero = self._event()
            self.runtime.eventRecord(self.zero, self.stream)

    # ---- collectives ---------------------------------------------------------------------------------------

    def all_reduce(self, pairs: Sequence[tuple[Ref, Ref]], op: str) -> Token:
        code = getattr(self.nccl, OPS[op])

        def one(ours: Ref, result: Ref) -> None:
            dtype = self._type(ours)
            self.communicator.allReduce(_address(ours), _address(result), _count(ours), dtype, code, self.stream)

        return self._launch(f"all_reduce by {op}", pairs, one)

    def broadcast(self, pairs: Sequence[tuple[Ref, Ref]], root: int) -> Token:
        byte = getattr(self.nccl, BYTE)

        def one(ours: Ref, result: Ref) -> None:
            self.communicator.broadcast(_address(ours), _address(result), _bytes(ours), byte, root, self.stream)

        return self._launch("broadcast", pairs, one)

    def all_gather(self, pairs: Sequence[tuple[Ref, Ref]]) -> Token:
        byte = getattr(self.nccl, BYTE)

        def one(ours: Ref, result: Ref) -> None:
            self.communicator.allGather(_address(ours), _address(result), _bytes(ours), byte, self.stream)

        return self._launch("all_gather", pairs, one)

    def reduce_scatter(self, pairs: Sequence[tuple[Ref, Ref]]) -> Token:
        code = self.nccl.NCCL_SUM

        def one(ours: Ref, result: Ref) -> None:
            dtype = self._type(ours)
            self.communicator.reduceScatter(_address(ours), _address(result), _count(result), dtype, code, self.stream)

        return self._launch("reduce_scatter", pairs, one)

    def _launch(self, what: str, pairs: Sequence[tuple[Ref, Ref]], one: Callable[[Ref, Ref], None]) -> Token:
        """Enqueue calls as one group, after what the driver's stream has so far."""
        if self.communicator is None:
            raise DriverError(f"cannot {what} on {self.driver.device}: it has joined no job, or the job was given up")
        runtime = self.runtime
        with self._calls(what):
            token = Token(self._event(), self._event(), self._kept)
            runtime.eventRecord(token.begun, self.driver.stream)
            runtime.streamWaitEvent(self.stream, token.begun)
            runtime.eventRecord(token.begun, self.stream)
            self.nccl.groupStart()
            try:
                for ours, result in pairs:
                    one(ours, result)
            finally:
                self.nccl.groupEnd()  # a group left open would swallow whatever comes next
            runtime.eventRecord(token.ended, self.stream)
        return token

    def _type(self, ref: Ref) -> int:
        found = self.types.get(ref.dtype)
        if found is None:
            raise LaunchError(f"NCCL has no numbers of {ref.dtype}: it has {', '.join(sorted(self.types))}")
        return int(found)

    # ---- waiting -------------------------------------------------------------------------------------------

    def done(self, token: Token) -> bool:
        with self._calls("communicating"):
            if self.communicator is not None:
                self.communicator.check_async_error()
            status = int(self.runtime.eventQuery(token.ended))
        if status not in (0, NOT_READY):
            raise LaunchError(f"{self.driver.device} failed while communicating: CUDA's error {status}")
        return status == 0

    def wait(self, token: Token) -> None:
        with self._calls("waiting for other ranks"):
            self.runtime.streamWaitEvent(self.driver.stream, token.ended)

    def mark(self) -> Token:
        with self._calls("marking"):
            token = Token(self._event(), self._event(), self._kept)
            self.runtime.eventRecord(token.begun, self.driver.stream)
            self.runtime.eventRecord(token.ended, self.driver.stream)
        return token

    def times(self, token: Token) -> tuple[float, float]:
        with self._calls("measuring"):
            self.runtime.eventSynchronize(token.ended)
            begun, ended = (float(self.runtime.eventElapsedTime(self.zero, e)) for e in (token.begun, token.ended))
        return begun / 1000.0, ended / 1000.0

    def _event(self) -> int:
        return self._kept.pop() if self._kept else int(self.runtime.eventCreate())

    # ---- the end -------------------------------------------------------------------------------------------

    def abort(self) -> None:
        found, self.communicator, self.aborted = self.communicator, None, True
        if found is not None:
            with self._calls("giving a job up"):
                found.abort()

    def close(self) -> None:
        found, self.communicator = self.communicator, None
        if found is None:
            return
        with self._calls("leaving a job"):
            self.runtime.streamSynchronize(self.stream)
            found.destroy()
            while self._kept:
                self.runtime.eventDestroy(self._kept.pop())
            self._cupy_stream = None

    def _calls(self, doing: str) -> "NcclCalls":
        return NcclCalls(self, doing)


class NcclCalls:
    """A context around NCCL's and CUDA's calls: the device is the thread's current one, errors become ours."""

    __slots__ = ("cuda", "doing", "owner")

    def __init__(self, owner: NcclCollectives, doing: str) -> None:
        self.owner, self.doing = owner, doing
        self.cuda = owner.driver.vendor_calls(doing)

    def __enter__(self) -> None:
        self.cuda.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, self.owner.nccl.NcclError):
            hint = "; NCCL_DEBUG=WARN says more" if "NCCL_DEBUG" not in os.environ else ""
            raise LaunchError(f"{self.owner.driver.device} failed while {self.doing}: {error}{hint}") from error
        self.cuda.__exit__(kind, error, trace)


def _address(ref: Ref) -> int:
    return int(ref.handle) + ref.offset * ITEMSIZE[ref.dtype]


def _count(ref: Ref) -> int:
    count = 1
    for extent in ref.shape:
        count *= extent
    return count


def _bytes(ref: Ref) -> int:
    return _count(ref) * ITEMSIZE[ref.dtype]
