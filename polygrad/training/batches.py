"""Batches: what a loader gives, pass after pass, with a place in it that can be saved.

Here: counting epochs and batches, and finding the place again.
Not here: the loader.
"""

from collections.abc import Iterable, Mapping, Sized
from typing import Any

from polygrad.errors import StateError, TrainingError


class Batches:
    """An iterator over the batches of one epoch after another, for ever or for so many epochs.

    A loader with a `state_dict` keeps its place itself. Of any other the batches before the place are read again and
    passed over, which finds the place if it gives the same batches in each run.
    """

    def __init__(self, loader: Iterable[Any], epochs: int | None) -> None:
        self._loader = loader
        self._epochs = epochs
        self._keeps_place = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._epoch, self._batch = 0, 0
        self._pass: Any = None

    @property
    def length(self) -> int | None:
        """How many batches an epoch has, if the loader knows."""
        if not isinstance(self._loader, Sized):
            return None
        try:
            return len(self._loader)
        except TypeError:  # a loader of a stream
            return None

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Any:
        while self._epochs is None or self._epoch < self._epochs:
            begun = self._pass is not None
            if self._pass is None:
                self._pass = self._begun()
            for batch in self._pass:
                self._batch += 1
                return batch
            if not begun and self._batch == 0:
                raise TrainingError(
                    f"cannot train: the loader gave no batches in epoch {self._epoch + 1}; it has too little data, or "
                    "it is an iterator, which can be read once"
                )
            self._pass = None
            self._epoch, self._batch = self._epoch + 1, 0
        raise StopIteration

    def _begun(self) -> Any:
        batches = iter(self._loader)
        if not self._keeps_place:
            for k in range(self._batch):
                if next(batches, self) is self:
                    raise StateError(f"cannot go on after {self._batch} batches: the loader gives only {k} of them now")
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return the place."""
        own = self._loader.state_dict() if self._keeps_place else None  # type: ignore[attr-defined]
        epoch, batch = (self._epoch + 1, 0) if self._batch == self.length else (self._epoch, self._batch)
        return {"epoch": epoch, "batch": batch, "loader": own}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go to the place that `state_dict` returned.

        Raises
        ------
        StateError
            If it is of another kind of loader, or of other data.
        """
        if not {"epoch", "batch", "loader"} <= set(saved) or (saved["loader"] is not None) != self._keeps_place:
            raise StateError("cannot load this state into a loader: it is of a loader of another kind")
        if self._keeps_place:
            self._loader.load_state_dict(saved["loader"])  # type: ignore[attr-defined]
        self.close()
        self._epoch, self._batch = int(saved["epoch"]), int(saved["batch"])

    def close(self) -> None:
        """End the pass under way."""
        close = getattr(self._pass, "close", None)
        if close is not None:
            close()
        self._pass = None
