"""DataLoader: batches of a data set, in order or shuffled, on the device where they are needed.

Here: epochs, places in them, the way from reader to user.
Not here: reading (`reading.py`), processes (`workers.py`), the thread (`ahead.py`).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from polygrad.array import config, random
from polygrad.array.object import Array
from polygrad.array.tree import leaves_of
from polygrad.data.ahead import Ahead
from polygrad.data.collating import host, placed
from polygrad.data.order import Permutation, Plan, mixed
from polygrad.data.reading import Reader
from polygrad.data.workers import Pool
from polygrad.errors import DataError, StateError

_PREFETCH = 2


class DataLoader:
    """An iterable over the batches of one epoch after another.

    The order of an epoch follows from the seed and the number of the epoch, and a place in it is a number: `state_dict`
    in the middle of an epoch, loaded into a loader of the same data, goes on with the very next batch. What random
    numbers a data set draws from `pg.random`, `random` or NumPy's global stream depends on the batch alone, however
    many workers there are.

    Parameters
    ----------
    dataset : Dataset or IterableDataset
        Anything with ``__len__`` and ``__getitem__``, or with ``__iter__`` alone.
    batch_size : int
        Samples in a batch of this process.
    shuffle : bool
        Whether samples come in a new order in each epoch.
    num_workers : int
        Processes that read; 0 reads in this one. Batch k is read by worker k modulo their number. Of a stream each
        worker reads all of it and collates its share of batches.
    collate_fn : callable, optional
        From a list of samples to a batch; `collate` unless given.
    drop_last : bool
        Whether a last batch that is not full is left out.
    seed : int, optional
        Of the order; `pg.random`'s own unless given.
    device : str, optional
        Where batches go; the default device unless given.
    prefetch_factor : int, optional
        How many batches a thread keeps ready on the device, and each worker under way: 2 if there are workers, else 0
        (and then the data set is read when a batch is asked for). With a thread and no workers `random` and NumPy's
        stream are left as they are.
    rank, world : int
        Which of how many processes this one is. All together take world * batch_size samples a step, this one the part
        with its rank.
    numpy : bool
        Whether batches stay NumPy arrays.
    start_method : {"fork", "spawn", "forkserver"}, optional
        How workers are started; by default forked if no device is open, else spawned.

    Raises
    ------
    DataError
        If there is too little data, or a number makes no sense. While iterating: if a worker fails; the sentence has
        its traceback.

    Examples
    --------
    >>> import polygrad as pg
    >>> data = pg.data.TensorDataset(pg.arange(5), pg.arange(5) * 10)
    >>> for x, y in pg.data.DataLoader(data, batch_size=2):
    ...     print(x.tolist(), y.tolist())
    [0, 1] [0, 10]
    [2, 3] [20, 30]
    [4] [40]
    """

    def __init__(  # noqa: PLR0913  the names that PyTorch's users know
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        device: str | None = None,
        prefetch_factor: int | None = None,
        rank: int = 0,
        world: int = 1,
        numpy: bool = False,
        start_method: str | None = None,
    ) -> None:
        _check(batch_size, num_workers, rank, world)
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.num_workers, self.device, self.rank, self.world, self.numpy = num_workers, device, rank, world, numpy
        self.seed = random.key() if seed is None else int(seed)
        self._listed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not self._listed and not hasattr(dataset, "__iter__"):
            raise DataError(
                f"cannot load {type(dataset).__name__}: a data set has __len__ and __getitem__, or __iter__"
            )
        if not self._listed and shuffle:
            raise DataError("cannot shuffle a stream: only a set with __len__ and __getitem__ can be")
        if num_workers and any(isinstance(a, Array) for a in getattr(dataset, "arrays", ())):
            raise DataError("cannot read arrays on a device in workers: use num_workers=0, which takes batches there")
        self._method = start_method
        self._prefetch = (_PREFETCH if num_workers else 0) if prefetch_factor is None else prefetch_factor
        self._plan = self._planned() if self._listed else None
        self._pool: Pool | None = None
        self._reader = Reader(
            dataset, collate_fn, self.seed, size=batch_size, drop_last=drop_last, rank=rank, world=world
        )
        self._epoch, self._batch = 0, 0
        self._resumed = False
        self._passes = 0

    def _planned(self) -> Plan:
        return Plan(len(self.dataset), self.batch_size, drop_last=self.drop_last, rank=self.rank, world=self.world)

    def __len__(self) -> int:
        if self._plan is None:
            raise TypeError("a loader of a stream has no length")
        return self._plan.batches

    @property
    def epoch(self) -> int:
        """The number of the epoch under way, or of the next if none is."""
        return self._epoch

    def __iter__(self) -> Iterator[Any]:
        if self._batch and not self._resumed:  # the pass before was left early: its epoch is over
            self._epoch, self._batch = self._epoch + 1, 0
        self._resumed = False
        self._passes += 1
        if self.num_workers and self._pool is None:  # before a device is opened, so that they may be forked
            self._pool = Pool(self._reader, self.num_workers, self._method)
        device = "" if self.numpy else config.resolve(self.device)
        return self._passing(self._passes, self._epoch, self._batch, device)

    def _passing(self, number: int, epoch: int, start: int, device: str) -> Iterator[Any]:
        k = start
        if self._prefetch:
            source: Any = Ahead(lambda: self._ahead(epoch, start, device), self._prefetch)
        else:
            source = self._placed(epoch, start, device)
        batches = iter(source)
        try:
            for batch in batches:
                if number != self._passes:
                    raise DataError("cannot go on with this pass over the loader: another one was begun after it")
                k += 1
                self._epoch, self._batch = epoch, k
                yield batch
            if number == self._passes:
                self._epoch, self._batch = epoch + 1, 0
        finally:
            batches.close()
            if isinstance(source, Ahead):
                source.close()

    def _placed(self, epoch: int, start: int, device: str) -> Iterator[Any]:
        for batch in self._read(epoch, start):
            if self.numpy:
                yield host(batch)
                continue
            on_device = placed(batch, device)
            for array in leaves_of(on_device):
                array.realize()
            yield on_device

    def _ahead(self, epoch: int, start: int, device: str) -> Iterator[Any]:
        """Yield as `_placed` does, in a thread, whose default device is its own."""
        with config.device(device) if device else contextlib.nullcontext():
            yield from self._placed(epoch, start, device)

    def _read(self, epoch: int, start: int) -> Iterator[Any]:
        tasks = self._tasks(epoch, start)
        if self._pool is not None:
            yield from self._pool.batches(epoch, tasks, max(1, self._prefetch))
            return
        self._reader.begin(epoch)
        globally = not self._prefetch
        for k, indices in tasks:
            if indices is not None:
                yield self._reader.chosen(epoch, k, indices, globally=globally)
                continue
            there, batch = self._reader.streamed(epoch, k, globally=globally)
            if not there:
                return
            yield batch

    def _tasks(self, epoch: int, start: int) -> Iterator[tuple[int, list[int] | None]]:
        if self._plan is None:
            k = start
            while True:
                yield k, None
                k += 1
        n = self._plan.n
        order = Permutation(n, mixed(self.seed, epoch)) if self.shuffle else range(n)
        for k in range(start, self._plan.batches):
            yield k, self._plan.batch(order, k)

    def state_dict(self) -> dict[str, Any]:
        """Return the place: how many batches of which epoch the user has had."""
        samples = None if self._plan is None else self._plan.n
        step = self.batch_size * self.world
        return {
            "epoch": self._epoch, "batch": self._batch, "seed": self.seed,
            "samples": samples, "step": step, "shuffle": self.shuffle,
        }  # fmt: skip

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; nothing is changed if it does not fit.

        The number of processes may differ if all together take as many samples a step.

        Raises
        ------
        StateError
            If it is of other data, another number of samples a step, or another order.
        """
        own = self.state_dict()
        lacking = [key for key in own if key not in saved]
        faults = [f"it has no {key!r}" for key in lacking] or [
            f"its {key} is {saved[key]!r}, here it is {own[key]!r}"
            for key in ("samples", "step", "shuffle")
            if saved[key] != own[key]
        ]
        if not faults:
            faults = [
                f"its {key} is {saved[key]!r}"
                for key in ("epoch", "batch", "seed")
                if not isinstance(saved[key], int) or (key != "seed" and saved[key] < 0)
            ]
        if faults:
            raise StateError(f"cannot load this state into DataLoader: {'; '.join(faults)}")
        self.seed = self._reader.seed = int(saved["seed"])
        self.close()  # workers know the seed
        self._epoch, self._batch = int(saved["epoch"]), int(saved["batch"])
        if self._plan is not None and self._batch >= self._plan.batches:
            self._epoch, self._batch = self._epoch + 1, 0
        self._resumed = True
        self._passes += 1

    def close(self) -> None:
        """End the workers, if there are any; another pass starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _check(batch_size: int, num_workers: int, rank: int, world: int) -> None:
    if batch_size < 1:
        raise DataError(f"cannot load batches of {batch_size} samples: it must be at least 1")
    if num_workers < 0:
        raise DataError(f"cannot load with {num_workers} workers: it must be at least 0")
    if not 0 <= rank < world:
        raise DataError(f"cannot load the share of rank {rank} of {world}: it must be in [0, {world})")
