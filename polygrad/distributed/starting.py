"""How a process becomes a rank, and how it ends: `init`, `shutdown` and what they know.

Here: reading how the process was started, making its communicator, ending the job when this rank fails.
Not here: what communicators do; starting processes (`launcher.py`).
"""

import atexit
import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from polygrad.array import config, random
from polygrad.distributed.collectives import DeviceCommunicator, offers
from polygrad.distributed.communicator import Communicator, SingleProcess
from polygrad.distributed.link import Link, start_hub
from polygrad.distributed.mpi import MPICommunicator
from polygrad.driver import binding
from polygrad.driver.loader import REGISTRY
from polygrad.errors import DistributedError

BACKENDS = ("auto", "mpi", "device", "single")
TIMEOUT = "POLYGRAD_DISTRIBUTED_TIMEOUT"  # seconds, unless init is given some
TOKEN = "POLYGRAD_DISTRIBUTED_TOKEN"  # noqa: S105  the name of a variable, which says who belongs to a job
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE")  # of MPI's launchers
_LOCAL = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")


class _Current:
    communicator: Communicator | None = None
    forked = False
    watched = False
    hook: Any = None


def init(
    backend: str = "auto", *, device: str | None = None, timeout: float | None = None, grace: float = 10.0
) -> Communicator:
    """Make this process a rank of the job that it was started for, and return its communicator.

    The default device becomes this rank's own: of a driver with several devices the one with the number of the rank on
    its host. When this rank raises, the whole job ends; so it does when a rank is killed or waits too long.

    Parameters
    ----------
    backend : {"auto", "mpi", "device", "single"}
        What moves arrays: MPI through host memory, the device's own library (NCCL on CUDA), or nothing, for one process
        alone. "auto" is the device's library where its driver offers one, else MPI, and "single" for a process that was
        not started as one of several.
    device : str, optional
        A device, or a driver's name: then the one with the number of the local rank. The default device's driver unless
        given.
    timeout : float, optional
        Seconds that a rank waits for the others before the job ends; 600, or ``POLYGRAD_DISTRIBUTED_TIMEOUT``.
    grace : float
        Seconds that a process has to end by itself once another one is gone.

    Raises
    ------
    DistributedError
        If it was called before, what it needs is not installed, or the ranks do not find each other.

    Examples
    --------
    >>> import polygrad as pg
    >>> job = pg.distributed.init()  # one process, unless it was started as one of several
    >>> pg.distributed.rank(), pg.distributed.world_size()
    (0, 1)
    >>> pg.distributed.shutdown()
    """
    if backend not in BACKENDS:
        raise DistributedError(f"there is no backend {backend!r}: it is one of {', '.join(map(repr, BACKENDS))}")
    if _Current.communicator is not None:
        raise DistributedError("polygrad.distributed.init() was called before: once is enough")
    wait = float(os.environ.get(TIMEOUT, "600")) if timeout is None else timeout
    if not wait > 0:
        raise DistributedError(f"cannot wait {wait:g} seconds for other ranks: the limit must be positive")
    given = _started_as(os.environ)
    if backend == "single" or (backend == "auto" and given is None):
        made: Communicator = SingleProcess()
        _use_device(device, 0)
    elif given == "mpi" or (backend == "mpi" and given is None):
        made = _over_mpi(backend, device, wait, grace)
    else:
        made = _over_sockets(backend, device, wait, grace)
    _Current.communicator, _Current.forked = made, False
    if made.size > 1:
        _watch_end()
    return made


def _started_as(environment: Mapping[str, str]) -> str | None:
    """Return by whom this process was started: "mpi", "sockets" (RANK and WORLD_SIZE are set) or None for nobody."""
    if any(environment.get(name) for name in _SIZES):
        return "mpi"
    if environment.get("RANK") and environment.get("WORLD_SIZE"):
        return "sockets"
    return None


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise DistributedError(f"cannot join a job: the variable {name} is {text!r}, and must be a number")
    return int(text)


def _use_device(device: str | None, local_rank: int) -> str:
    """Make the device with the number of the local rank this process's default; return its name."""
    name = device or config.get_device()
    if device is None or ":" not in name:
        driver = name.partition(":")[0]
        there = binding.list_devices_of(REGISTRY, driver)
        name = there[local_rank % len(there)]
    config.set_device(name)
    return config.get_device()


def _mpi() -> Any:
    try:
        return importlib.import_module("mpi4py.MPI")
    except ImportError as error:
        raise DistributedError(
            f"several processes need mpi4py, which does not load ({error}): pip install 'polygrad-array[distributed]', "
            "and an MPI: of the system, or pip install mpich"
        ) from None
    except RuntimeError as error:  # mpi4py is there, but no MPI
        raise DistributedError(
            f"mpi4py finds no MPI ({str(error).splitlines()[0]}): install the system's, or pip install mpich"
        ) from None


def _over_mpi(backend: str, device: str | None, timeout: float, grace: float) -> Communicator:
    mpi = _mpi()
    world = mpi.COMM_WORLD
    expected = next((os.environ[n] for n in _SIZES if os.environ.get(n)), "1")
    if world.size == 1:
        if expected.isdecimal() and int(expected) > 1:
            raise DistributedError(
                f"this process was started as one of {expected}, but mpi4py takes it for the only one: it uses another "
                f"MPI than the mpirun that started it ({mpi.Get_library_version().splitlines()[0]}); use that one's"
            )
        _use_device(device, 0)
        return SingleProcess()
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise DistributedError("this MPI allows no calls from another thread than the first: use one that does")
    hosts = world.allgather(socket.gethostname())
    here = [r for r, host in enumerate(hosts) if host == hosts[world.rank]]
    local_rank = here.index(world.rank)
    given, fault = None, None
    if world.rank == 0:
        try:
            given = start_hub(world.size, *(("127.0.0.1",) if len(set(hosts)) == 1 else ("",)))
            given["address"] = given["address"] or socket.gethostbyname(socket.gethostname())
        except (DistributedError, OSError) as error:
            fault = str(error)
    given, fault = world.bcast((given, fault), 0)
    if given is None:
        raise DistributedError(fault)
    link = Link(world.rank, world.size, timeout=timeout, grace=grace, **given)
    with _telling(link):
        name = _use_device(device, local_rank)
        if _wants_device(backend, name, link):
            return DeviceCommunicator(name, link, local_rank)
        return MPICommunicator(mpi, world, link, local_rank)


@contextlib.contextmanager
def _telling(link: Link) -> Iterator[None]:
    """Tell the other ranks if this one cannot join."""
    try:
        yield
    except Exception as error:
        link.failed(str(error))
        raise


def _over_sockets(backend: str, device: str | None, timeout: float, grace: float) -> Communicator:
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    local_rank = next((int(os.environ[n]) for n in _LOCAL if os.environ.get(n, "").isdecimal()), rank)
    if not rank < size:
        raise DistributedError(f"cannot join a job: RANK is {rank} and WORLD_SIZE {size}, but ranks count from 0")
    name = _use_device(device, local_rank)
    if size == 1:
        return DeviceCommunicator(name, None, local_rank) if backend == "device" else SingleProcess()
    if backend == "mpi" or not offers(name):
        raise DistributedError(
            f"cannot move arrays of {name} between processes that no MPI has started: start them with mpiexec -n {size}"
        )
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), _number("MASTER_PORT")
    token = os.environ.get(TOKEN, "")
    if rank == 0:
        start_hub(size, address, port, token)
    link = Link(rank, size, address, port, token, timeout, grace)
    with _telling(link):
        return DeviceCommunicator(name, link, local_rank)


def _wants_device(backend: str, name: str, link: Link) -> bool:
    """Whether arrays go through the device's own library: every rank decides alike."""
    if backend == "mpi":
        return False
    told = link.gather("init", [name.partition(":")[0], offers(name)])
    if len({driver for driver, _ in told}) > 1:
        raise DistributedError(
            f"the ranks have different devices ({', '.join(driver for driver, _ in told)}): give all the same driver"
        )
    able = all(able for _, able in told)
    if backend == "device" and not able:
        raise DistributedError(f"the driver of {name} has no collectives of its own: use backend='mpi'")
    return able


# ---- what a process knows ---------------------------------------------------------------------------------------


def current() -> Communicator:
    """Return the communicator that `init` made.

    Raises
    ------
    DistributedError
        If `init` was not called, or this process was forked from a rank.
    """
    if _Current.communicator is None:
        raise DistributedError(
            "this process was forked from a rank, and is none itself: start processes with "
            "multiprocessing.get_context('spawn'), and let them call polygrad.distributed.init()"
            if _Current.forked
            else "no job was begun: call polygrad.distributed.init() first"
        )
    return _Current.communicator


def is_initialized() -> bool:
    """Whether `init` was called in this process."""
    return _Current.communicator is not None


def is_launched() -> bool:
    """Whether this process was started as one of several, by MPI's mpiexec, say."""
    return _started_as(os.environ) is not None


def rank() -> int:
    """Return this process's number, from 0 on."""
    return current().rank


def world_size() -> int:
    """Return how many processes there are."""
    return current().size


def local_rank() -> int:
    """Return this process's number among those on its host."""
    return current().local_rank


def seed(value: int) -> None:
    """Start this rank's stream of random numbers: rank 0's as ``pg.random.seed(value)`` does, each other one its own.

    Parameters
    ----------
    value : int
        The same on every rank.
    """
    random.seed(value)
    split_random()


def split_random(rank: int | None = None) -> None:
    """Give this rank a stream of its own, from the state that all ranks have in common, such as that of a checkpoint.

    Rank 0 goes on with the common one, so that a checkpoint that it saves is that of any number of ranks.
    """
    own = current().rank if rank is None else rank
    if own:
        state = random.get_state()
        random.set_state({**state, "key": random.fold_in(state["key"], own)})


def shutdown() -> None:
    """Leave the job; `init` may be called again in a process that was alone."""
    found = _Current.communicator
    if found is None:
        return
    _Current.communicator = None
    if _Current.hook is not None:
        sys.excepthook, _Current.hook = _Current.hook, None
    found.close()


# ---- the end ----------------------------------------------------------------------------------------------------


def _watch_end() -> None:
    """End the job when this rank raises, and say goodbye when it ends."""
    _Current.hook = sys.excepthook
    sys.excepthook = _ended_by
    if not _Current.watched:
        _Current.watched = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_after_fork)


def _ended_by(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    found, hook = _Current.communicator, _Current.hook or sys.__excepthook__
    if found is None:
        hook(kind, error, trace)
        return
    if not (isinstance(error, DistributedError) and found.link.lost):  # otherwise the other one has said it
        hook(kind, error, trace)
    text = f"{kind.__name__}: {error}".strip().splitlines()[0] if str(error) else kind.__name__
    if found.link.lost:
        sys.stderr.write(f"polygrad: rank {found.rank} of {found.size} ends, because {found.link.fault}\n")
    else:
        sys.stderr.write(f"polygrad: rank {found.rank} of {found.size} has failed, and the job ends: {text}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    _Current.communicator = None
    found.abort(text)


def _after_fork() -> None:
    found = _Current.communicator
    if found is None:
        return
    if found.size > 1:
        found.link.abandon()
    _Current.communicator, _Current.forked = None, True
    if _Current.hook is not None:
        sys.excepthook, _Current.hook = _Current.hook, None
