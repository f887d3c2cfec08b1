"""The job that this process is a rank of: what it knows of it, and how it ends.

Here: the one communicator of the process, its numbers, its random numbers; what happens when the process raises, ends
or is forked.
Not here: how the process becomes a rank (`starting.py`), what communicators do.
"""

import atexit
import os
import sys
from types import TracebackType
from typing import Any

from polygrad.array import random
from polygrad.distributed.communicator import Communicator
from polygrad.errors import DistributedError


class _Current:
    communicator: Communicator | None = None
    forked = False
    watched = False
    hook: Any = None


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


def become(made: Communicator) -> None:
    """Make this process the rank of a communicator: the job ends when it raises, and it says goodbye when it ends."""
    _Current.communicator, _Current.forked = made, False
    if made.size == 1:
        return
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
