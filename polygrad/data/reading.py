"""Reader: what turns the number of a batch into its values, in this process or in a worker.

Here: samples collated, streams cut into batches, random numbers that depend on the batch alone.
Not here: processes (`workers.py`), threads (`ahead.py`), the order (`order.py`).
"""

import contextlib
import itertools
import random as python_random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polygrad.array import interchange, random
from polygrad.data.collating import collate
from polygrad.data.order import mixed


class Reader:
    """Reads batches of a data set; what `pg.random`, `random` and NumPy's global stream draw meanwhile depends on the
    seed, the epoch and the batch alone, whoever reads it.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        seed: int,
        *,
        size: int,
        drop_last: bool,
        rank: int,
        world: int,
    ) -> None:
        self.dataset, self.collate_fn, self.seed = dataset, collate_fn, seed
        self.size, self.drop_last, self.rank, self.world = size, drop_last, rank, world
        self._stream: Iterator[Any] = iter(())
        self._position = 0  # which batch the stream comes to next

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stream": iter(())}

    def begin(self, epoch: int) -> None:
        """Begin an epoch: the set is told, a stream starts anew."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        if not hasattr(self.dataset, "__getitem__"):
            self._stream, self._position = iter(self.dataset), 0

    def chosen(self, epoch: int, k: int, indices: Sequence[int], *, globally: bool = True) -> Any:
        """Return batch *k* of an epoch, of the samples with these numbers."""
        with seeded(mixed(self.seed, epoch, k), globally=globally):
            if self.collate_fn is None and hasattr(self.dataset, "batch"):
                return self.dataset.batch(indices)
            return self._collated([self.dataset[i] for i in indices])

    def streamed(self, epoch: int, k: int, *, globally: bool = True) -> tuple[bool, Any]:
        """Return whether a stream has a batch *k*, and the batch."""
        step = self.size * self.world
        with seeded(mixed(self.seed, epoch, k), globally=globally):
            _skip(self._stream, (k - self._position) * step)
            samples = list(itertools.islice(self._stream, step))
            self._position = k + 1
            if not samples or (len(samples) < step and (self.drop_last or self.world > 1)):
                return False, None
            own = samples[self.rank * self.size : (self.rank + 1) * self.size]
            return True, self._collated(own)

    def _collated(self, samples: list[Any]) -> Any:
        return (self.collate_fn or collate)(samples)


def _skip(stream: Iterator[Any], count: int) -> None:
    next(itertools.islice(stream, count, count), None)


@contextlib.contextmanager
def seeded(number: int, *, globally: bool) -> Iterator[None]:
    """Have random numbers start from *number* within a block; those of the whole process only if *globally*."""
    with random.replayed({"key": number, "counter": 0}):
        if not globally:
            yield
            return
        before = python_random.getstate()
        python_random.seed(number)
        try:
            with interchange.seeded_numpy(number):
                yield
        finally:
            python_random.setstate(before)
