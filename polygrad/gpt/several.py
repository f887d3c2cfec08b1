"""Training by several processes: ``mpiexec -n 2 python -m polygrad.gpt train ...``.

Here: joining the job that this process was started for, its share of a batch, silence of all ranks but the first, and
the end of the job when a rank fails.
Not here: training, collectives (`polygrad.distributed`).
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from polygrad import distributed
from polygrad.array.config import device as on_device
from polygrad.errors import DistributedError, TrainingError


@contextlib.contextmanager
def joined(device: str | None) -> Iterator[distributed.Communicator]:
    """Yield the communicator of this process's job, which may be one of one; its device is the default in the block.

    If a rank fails it says why, once, and the job ends on all.
    """
    if not distributed.is_launched() or distributed.is_initialized():
        with on_device(device) if device else contextlib.nullcontext():
            yield distributed.current() if distributed.is_initialized() else distributed.SingleProcess()
        return
    job = distributed.init(device=device)
    try:
        with _silent() if job.rank else contextlib.nullcontext():
            yield job
    except Exception as error:
        if job.size > 1:
            _end(job, error)
        raise
    finally:
        distributed.shutdown()


def share_of(batch: int, job: distributed.Communicator) -> int:
    """Return how many sequences of a batch are this process's.

    Raises
    ------
    TrainingError
        If the batch cannot be divided.
    """
    if batch % job.size:
        raise TrainingError(
            f"cannot divide a batch of {batch} sequences (--batch) among {job.size} processes: it must be a multiple "
            "of their number"
        )
    return batch // job.size


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        yield


def _end(job: distributed.Communicator, error: Exception) -> None:
    """Say what is wrong, unless another rank has said it, and end the job."""
    if job.rank and not isinstance(error, DistributedError):
        time.sleep(0.5)  # all ranks may have met the same: then the first one says it
    if job.link.fault is None:
        sys.stderr.write(f"polygrad.gpt train: rank {job.rank} of {job.size}: {' '.join(str(error).split())}\n")
        sys.stderr.flush()
    job.abort(str(error))
