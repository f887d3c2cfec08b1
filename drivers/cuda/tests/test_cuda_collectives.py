"""NCCL without a GPU: what is called, with which addresses, counts, types and streams, in which order.

Here: the logic of `collectives.py`, with a library that writes down its calls.
Not here: NCCL itself (``benchmarks/distributed_gpu.py`` checks and times it on GPUs).
"""

import os
import sys
import types

import pytest

from polygrad.driver import DriverError, LaunchError, Ref
from polygrad_cuda.collectives import TYPES, NcclCollectives, collectives


class NcclError(RuntimeError):
    """As CuPy has it."""


class Library:
    """Stands for CuPy: its nccl, streams and runtime write down what is called."""

    def __init__(self):
        self.__name__ = "library_of_tests"
        sys.modules["library_of_tests.cuda.nccl"] = self
        self.calls = []
        self.cuda = self
        self.available = True
        self.NcclError = NcclError
        self.NCCL_SUM, self.NCCL_MAX, self.NCCL_MIN = 0, 2, 3
        for k, code in enumerate(sorted(set(TYPES.values()))):
            setattr(self, code, k)
        self.fails = ""
        self.events = 100
        self.queries = [600, 0]

    def Stream(self, non_blocking):
        self.note("Stream", non_blocking)
        return types.SimpleNamespace(ptr=22)

    def NcclCommunicator(self, size, identity, rank):
        self.note("NcclCommunicator", size, identity, rank)
        return self

    def note(self, *call):
        self.calls.append(call)
        if call[0] == self.fails:
            raise NcclError(f"{call[0]} went wrong")

    def get_unique_id(self):
        return bytes(range(64, 192))

    def eventCreate(self):
        self.events += 1
        return self.events

    def eventQuery(self, event):
        status = self.queries.pop(0)
        self.note("eventQuery", event, status)
        return status

    def eventElapsedTime(self, first, last):
        return 1000.0 * (last - first)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: self.note(name, *arguments)


class Calls:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


class Driver:
    """Stands for an open device."""

    def __init__(self):
        self.cupy = self.runtime = Library()
        self.errors = (OSError,)
        self.stream, self.device = 11, "cuda:0"

    def vendor_calls(self, doing):
        return Calls()


@pytest.fixture(autouse=True)
def _no_module_stays():
    yield
    sys.modules.pop("library_of_tests.cuda.nccl", None)


@pytest.fixture
def joined(monkeypatch):
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    found = collectives(Driver())
    found.connect(bytes(128), 1, 3)
    found.driver.cupy.calls.clear()
    return found


def ref(address, shape, dtype, offset=0):
    strides = tuple(int(k) for k in range(len(shape)))
    return Ref(address, offset, shape, strides, dtype)


def test_without_the_library_there_are_no_collectives():
    driver = Driver()
    driver.cupy.available = False
    assert collectives(driver) is None


def test_a_job_is_joined_with_multicast_off(monkeypatch):
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    found = collectives(Driver())
    identity = found.identity()
    assert len(identity) == 128
    assert identity[0] == 64
    assert os.environ.pop("NCCL_NVLS_ENABLE") == "0"
    found.connect(identity, 1, 3)
    assert os.environ.pop("NCCL_NVLS_ENABLE") == "0"
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    found.connect(identity, 1, 3)
    assert os.environ["NCCL_NVLS_ENABLE"] == "1", "whoever wants it has it"
    name, size, given, rank = found.driver.cupy.calls[1]
    assert (name, size, rank) == ("NcclCommunicator", 3, 1)
    assert given == bytes(range(64, 192))


def test_all_reduce_is_one_group_between_events_on_a_stream_of_its_own(joined):
    token = joined.all_reduce([(ref(1000, (2, 3), "float32", 5), ref(2000, (2, 3), "float32")),
                               (ref(3000, (4,), "bfloat16"), ref(4000, (4,), "bfloat16", 2))], "max")  # fmt: skip
    library = joined.nccl
    assert library.calls == [
        ("eventRecord", token.begun, 11),
        ("streamWaitEvent", 22, token.begun),
        ("eventRecord", token.begun, 22),
        ("groupStart",),
        ("allReduce", 1020, 2000, 6, library.NCCL_FLOAT32, library.NCCL_MAX, 22),
        ("allReduce", 3000, 4004, 4, library.NCCL_BFLOAT16, library.NCCL_MAX, 22),
        ("groupEnd",),
        ("eventRecord", token.ended, 22),
    ]
    library.calls.clear()
    assert (joined.done(token), joined.done(token)) == (False, True)
    joined.wait(token)
    assert library.calls == [
        ("check_async_error",), ("eventQuery", token.ended, 600), ("check_async_error",),
        ("eventQuery", token.ended, 0), ("streamWaitEvent", 11, token.ended),
    ]  # fmt: skip
    begun, ended = joined.times(token)
    assert ended - begun == token.ended - token.begun
    events = {token.begun, token.ended}
    del token
    again = joined.mark()
    assert {again.begun, again.ended} == events, "events are used again"


@pytest.mark.parametrize("dtype", TYPES)
def test_every_dtype_has_its_type(joined, dtype):
    joined.all_reduce([(ref(0, (3,), dtype), ref(64, (3,), dtype))], "sum")
    (call,) = [c for c in joined.nccl.calls if c[0] == "allReduce"]
    assert call[4] == getattr(joined.nccl, TYPES[dtype])
    assert (dtype in joined.sums) == (dtype != "bool")


def test_what_is_only_moved_is_moved_as_bytes(joined):
    byte = joined.nccl.NCCL_UINT8
    joined.broadcast([(ref(8, (3,), "int16", 1), ref(64, (3,), "int16"))], 2)
    joined.all_gather([(ref(8, (3,), "bfloat16"), ref(64, (3, 3), "bfloat16"))])
    joined.reduce_scatter([(ref(8, (6,), "float64"), ref(64, (2,), "float64", 1))])
    assert [c for c in joined.nccl.calls if c[0] in ("broadcast", "allGather", "reduceScatter")] == [
        ("broadcast", 10, 64, 6, byte, 2, 22),
        ("allGather", 8, 64, 6, byte, 22),
        ("reduceScatter", 8, 72, 2, joined.nccl.NCCL_FLOAT64, joined.nccl.NCCL_SUM, 22),
    ]


def test_failures_are_sentences_and_leave_no_group_open(joined):
    with pytest.raises(LaunchError, match=r"^NCCL has no numbers of int16: it has bfloat16, bool, float16"):
        joined.all_reduce([(ref(0, (3,), "int16"), ref(64, (3,), "int16"))], "sum")
    assert joined.nccl.calls[-1] == ("groupEnd",)
    joined.nccl.fails = "allReduce"
    with pytest.raises(
        LaunchError, match=r"cuda:0 failed while all_reduce by sum: allReduce went wrong; NCCL_DEBUG=WARN"
    ):
        joined.all_reduce([(ref(0, (3,), "int8"), ref(64, (3,), "int8"))], "sum")
    assert joined.nccl.calls[-1] == ("groupEnd",)
    joined.nccl.fails = "check_async_error"
    with pytest.raises(LaunchError, match="failed while communicating"):
        joined.done(joined.mark())
    joined.nccl.fails, joined.nccl.queries = "", [1]
    with pytest.raises(LaunchError, match="^cuda:0 failed while communicating: CUDA's error 1$"):
        joined.done(joined.mark())
    joined.abort()
    assert joined.nccl.calls[-1] == ("abort",)
    with pytest.raises(DriverError, match="it has joined no job, or the job was given up"):
        joined.broadcast([], 0)
    joined.close()
    assert joined.nccl.calls[-1] == ("abort",), "what was given up is not closed again"


def test_closing_waits_for_the_stream_and_gives_back_what_was_taken(joined):
    token = joined.mark()
    mine = {token.begun, token.ended}
    del token
    joined.nccl.calls.clear()
    joined.close()
    assert joined.nccl.calls[:2] == [("streamSynchronize", 22), ("destroy",)]
    assert {c[1] for c in joined.nccl.calls if c[0] == "eventDestroy"} >= mine
    assert isinstance(joined, NcclCollectives)
