"""How a process becomes a rank: `init`.

Here: reading how the process was started, choosing its device, making its communicator.
Not here: what communicators do; the end of a job (`job.py`); starting processes (`launcher.py`).
"""

import contextlib
import importlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from polygrad.array import config
from polygrad.distributed.collectives import DeviceCommunicator, offers
from polygrad.distributed.communicator import Communicator, SingleProcess
from polygrad.distributed.job import become, is_initialized
from polygrad.distributed.link import Link, start_hub
from polygrad.distributed.mpi import MPICommunicator
from polygrad.driver import binding
from polygrad.driver.loader import REGISTRY
from polygrad.errors import DistributedError
from polygrad.runtime.devices import state

BACKENDS = ("auto", "mpi", "device", "single")
TIMEOUT = "POLYGRAD_DISTRIBUTED_TIMEOUT"  # seconds, unless init is given some
TOKEN = "POLYGRAD_DISTRIBUTED_TOKEN"  # noqa: S105  the name of a variable, which says who belongs to a job
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")  # of MPI's launchers
_RANK = "PMIX_RANK"  # of those that do not say how many there are
_LOCAL = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")


def init(
    backend: str = "auto", *, device: str | None = None, timeout: float | None = None, grace: float = 10.0
) -> Communicator:
    """Make this process a rank of the job that it was started for, and return its communicator.

    The default device becomes this rank's own: of a driver with several devices the one with the number of the rank on
    its host. When this rank raises, the whole job ends; so it does when a rank is killed or waits too long.

    Parameters
    ----------
    backend : {"auto", "mpi", "device", "single"}
        What moves arrays: MPI through host memory, the device's own library (NCCL on CUDA, and "nccl" means it too), or
        nothing, for one process alone. "auto" is the device's library where its driver offers one and each rank has a
        device for itself, else MPI, and "single" for a process that was not started as one of several.
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
    if is_initialized():
        raise DistributedError("polygrad.distributed.init() was called before: once is enough")
    wait = float(os.environ.get(TIMEOUT, "600")) if timeout is None else timeout
    if not wait > 0:
        raise DistributedError(f"cannot wait {wait:g} seconds for other ranks: the limit must be positive")
    given = _started_as(os.environ)
    if backend not in BACKENDS:
        backend = _library(backend, device)
    if backend == "single" or (backend == "auto" and given is None):
        made: Communicator = SingleProcess()
        _use_device(device, 0)
    elif given == "mpi" or (backend == "mpi" and given is None):
        made = _over_mpi(backend, device, wait, grace)
    else:
        made = _over_sockets(backend, device, wait, grace)
    become(made)
    return made


def is_launched() -> bool:
    """Whether this process was started as one of several, by MPI's mpiexec, say."""
    return _started_as(os.environ) is not None


def _started_as(environment: Mapping[str, str]) -> str | None:
    """Return by whom this process was started: "mpi", "sockets" (RANK and WORLD_SIZE are set) or None for nobody."""
    if any(environment.get(name, "1") not in ("", "1") for name in _SIZES) or environment.get(_RANK):
        return "mpi"
    if environment.get("RANK") and environment.get("WORLD_SIZE"):
        return "sockets"
    return None


def _library(backend: str, device: str | None) -> str:
    """Return "device" if *backend* is what the device's own library is called."""
    made = state(_use_device(device, _local() or 0)).device.collectives() if backend.isalpha() else None
    if made is None or made.name.lower() != backend.lower():
        raise DistributedError(
            f"there is no backend {backend!r} on {config.get_device()}: it is one of {', '.join(map(repr, BACKENDS))}"
        )
    return "device"


def _local() -> int | None:
    """Return the number among the ranks of this host that a launcher has given, if one has."""
    return next((int(os.environ[n]) for n in _LOCAL if os.environ.get(n, "").isdecimal()), None)


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
    expected = next((os.environ[n] for n in _SIZES if os.environ.get(n, "1") not in ("", "1")), "1")
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
            given = start_hub(world.size, "127.0.0.1" if len(set(hosts)) == 1 else "")
        except (DistributedError, OSError) as error:
            fault = str(error)
    given, fault = world.bcast((given, fault), 0)
    if given is None:
        raise DistributedError(fault)
    given["address"] = "127.0.0.1" if hosts[world.rank] == hosts[0] else hosts[0]
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
    found = _local()
    local_rank = rank if found is None else found
    if not rank < size:
        raise DistributedError(f"cannot join a job: RANK is {rank} and WORLD_SIZE {size}, but ranks count from 0")
    name = _use_device(device, local_rank)
    if size == 1:
        return DeviceCommunicator(name, None, local_rank) if backend == "device" else SingleProcess()
    if backend == "mpi" or not offers(name):
        raise DistributedError(
            f"cannot move arrays of {name} between processes that no MPI has started: its driver has no collectives of "
            f"its own here; start the processes with mpiexec -n {size}"
        )
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), _number("MASTER_PORT")
    token = os.environ.get(TOKEN, "")
    if rank == 0:
        start_hub(size, address, port, token)
    link = Link(rank, size, address, port, token, timeout, grace)
    with _telling(link):
        _wants_device("device", name, link)
        return DeviceCommunicator(name, link, local_rank)


def _wants_device(backend: str, name: str, link: Link) -> bool:
    """Whether arrays go through the device's own library: every rank decides alike."""
    if backend == "mpi":
        return False
    told = link.gather("init", [name, offers(name), socket.gethostname()])
    drivers = [device.partition(":")[0] for device, _, _ in told]
    if len(set(drivers)) > 1:
        raise DistributedError(f"the ranks have different devices ({', '.join(drivers)}): give all the same driver")
    able = all(able for _, able, _ in told)
    if backend == "device" and not able:
        raise DistributedError(f"the driver of {name} has no collectives of its own: use backend='mpi'")
    places: dict[tuple[str, str], int] = {}
    for r, (device, _, host) in enumerate(told):
        first = places.setdefault((host, device), r)
        if first != r and backend == "device":
            raise DistributedError(
                f"ranks {first} and {r} have the same device, {device} on {host}: its library needs one for each; "
                "start fewer processes, or use backend='mpi'"
            )
    return able and len(places) == len(told)
