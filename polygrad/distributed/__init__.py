"""Training by several processes together: ``pg.distributed``.

Here: the public names, once.
Not here: any code. Start reading at `communicator.py`, then `data_parallel.py`; `hub.py` is what notices that a rank is
gone.
"""

from polygrad.distributed.communicator import Communicator, SingleProcess
from polygrad.distributed.data_parallel import DataParallel
from polygrad.distributed.job import current, is_initialized, local_rank, rank, seed, shutdown, split_random, world_size
from polygrad.distributed.reduction import Overlap
from polygrad.distributed.sharded import ShardedOptimizer
from polygrad.distributed.starting import init, is_launched

__all__ = [
    "Communicator",
    "DataParallel",
    "Overlap",
    "ShardedOptimizer",
    "SingleProcess",
    "current",
    "init",
    "is_initialized",
    "is_launched",
    "local_rank",
    "rank",
    "seed",
    "shutdown",
    "split_random",
    "world_size",
]
