"""Data sets: what has samples.

Here: the two kinds, and sets made of arrays and of other sets.
Not here: batches (`loader.py`), files of tokens (`tokens.py`).
"""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from polygrad.array.creation import asarray
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.data.order import Permutation
from polygrad.errors import DataError


class Dataset:
    """Samples by number: subclass it, and write ``__len__`` and ``__getitem__``; anything with these two will do.

    A sample is an array, a number, or a tree of them. A set may have ``batch(indices)``, which returns a whole batch at
    once, and ``set_epoch(epoch)``, which is called before each epoch.
    """

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no length: write def __len__(self)")

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no samples: write def __getitem__(self, index)")


class IterableDataset:
    """Samples one after another: subclass it, and write ``__iter__``, which starts from the beginning each time."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no samples: write def __iter__(self)")


class TensorDataset(Dataset):
    """Arrays whose first axes count the same samples; a sample is a tuple of their elements.

    Arrays of polygrad stay on their device, where whole batches are taken from them.

    Examples
    --------
    >>> import polygrad as pg
    >>> data = pg.data.TensorDataset(pg.asarray([[1, 2], [3, 4], [5, 6]]), pg.asarray([0, 1, 0]))
    >>> len(data), data.batch([2, 0])[0].tolist()
    (3, [[5, 6], [1, 2]])
    """

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise DataError("cannot make a TensorDataset of nothing: give it arrays")
        self.arrays = tuple(a.detach() if isinstance(a, Array) else a for a in arrays)
        lengths = [len(a) for a in self.arrays]
        if len(set(lengths)) > 1:
            raise DataError(f"cannot make a TensorDataset of arrays with {lengths} samples: the lengths must be equal")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(a[index] for a in self.arrays)

    def batch(self, indices: Sequence[int]) -> tuple[Any, ...]:
        """Return the samples together, on the arrays' device."""
        out = []
        for array in self.arrays:
            if isinstance(array, Array):
                out.append(FUNCTIONS["take"](array, asarray(list(indices), device=array.device), axis=0))
            else:
                out.append(array[list(indices)] if hasattr(array, "shape") else [array[k] for k in indices])
        return tuple(out)


class Subset(Dataset):
    """Some samples of another set, by number."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices
        if not isinstance(indices, (Permutation, range)):
            bad = [k for k in indices if not 0 <= k < len(dataset)]
            if bad:
                raise DataError(f"cannot take sample {bad[0]} of a set of {len(dataset)}")
        if hasattr(dataset, "batch"):
            self.batch = lambda chosen: dataset.batch([self.indices[k] for k in chosen])

    def set_epoch(self, epoch: int) -> None:
        """Tell the other set of a new epoch."""
        _tell(self.dataset, epoch)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __reduce__(self) -> Any:
        return Subset, (self.dataset, self.indices)


def _tell(dataset: Any, epoch: int) -> None:
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)


class _Stretch(Sequence[int]):
    """A part of a permutation."""

    def __init__(self, order: Permutation, start: int, stop: int) -> None:
        self.order, self.start, self.stop = order, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"cannot take sample {index} of {len(self)}")
        return self.order[self.start + index]


class ConcatDataset(Dataset):
    """Several sets, one after another."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise DataError("cannot concatenate nothing: give it data sets")
        self.ends = list(itertools.accumulate(len(d) for d in self.datasets))

    def set_epoch(self, epoch: int) -> None:
        """Tell the sets of a new epoch."""
        for dataset in self.datasets:
            _tell(dataset, epoch)

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"cannot take sample {index} of {len(self)}")
        k = bisect.bisect_right(self.ends, index)
        return self.datasets[k][index - (self.ends[k - 1] if k else 0)]


def random_split(dataset: Any, lengths: Sequence[float], seed: int = 0) -> list[Subset]:
    """Return disjoint random parts of a set.

    Parameters
    ----------
    dataset : Dataset
        What to split.
    lengths : sequence of int, or of float
        Numbers of samples that add up to the set's, or fractions that add up to 1.
    seed : int
        Which split: the same seed gives the same parts.

    Raises
    ------
    DataError
        If the lengths do not add up.

    Examples
    --------
    >>> import polygrad as pg
    >>> [len(part) for part in pg.data.random_split(pg.data.TensorDataset(pg.arange(10)), [0.7, 0.3])]
    [7, 3]
    """
    n = len(dataset)
    counts = [int(k) for k in lengths]
    if any(isinstance(k, float) for k in lengths):
        if any(k < 0 for k in lengths) or not math.isclose(sum(lengths), 1.0, abs_tol=1e-9):
            raise DataError(f"cannot split by the fractions {list(lengths)}: they must add up to 1")
        counts = [math.floor(n * k + 1e-9) for k in lengths]
        for k in range(n - sum(counts)):  # what rounding has left over, one for each
            counts[k % len(counts)] += 1
    if sum(counts) != n or min(counts, default=0) < 0:
        raise DataError(f"cannot split {n} samples into {counts}: the lengths must add up to {n}")
    order = Permutation(n, seed)
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, _Stretch(order, end - count, end)) for count, end in zip(counts, ends, strict=True)]
