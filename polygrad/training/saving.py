"""Saver: the checkpoints of a run that `fit` trains.

Here: going on from the newest, saving, and what happens if that fails.
Not here: what a checkpoint is (`polygrad.io`), when to save (`fitting.py`).
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polygrad.errors import TrainingError
from polygrad.io import Checkpoints, load_checkpoint

_UNSAVED = ("warn", "raise")


class Saver:
    """Saves and loads all parts of a run in a folder of checkpoints; does nothing if there is none.

    Processes with a rank above 0 take part in collecting the state, which may be spread over all, and write nothing.
    """

    def __init__(self, where: Any, parts: Mapping[str, Any], metadata: Any, unsaved: str, rank: int) -> None:
        if unsaved not in _UNSAVED:
            raise TrainingError(f"cannot train with unsaved={unsaved!r}: it is 'warn' or 'raise'")
        try:
            self.folder = Checkpoints(where) if isinstance(where, (str, os.PathLike)) else where
        except OSError as error:
            raise TrainingError(f"cannot keep checkpoints in {where}: {error.strerror}") from error
        self.parts = {name: part for name, part in parts.items() if part is not None}
        mute = [n for n, p in self.parts.items() if not (hasattr(p, "state_dict") and hasattr(p, "load_state_dict"))]
        if mute and self.folder is not None:
            raise TrainingError(
                f"cannot keep checkpoints with {mute[0]}, which is {type(self.parts[mute[0]]).__name__}: it has no "
                "state_dict and load_state_dict"
            )
        self.metadata = dict(metadata or {})
        self.last: Path | None = None
        self.saved_at: int | None = None
        self._unsaved = unsaved
        self._rank = rank

    def begin(self, resume: bool) -> int:
        """Load the newest checkpoint, if the run is to go on; return how many steps were done."""
        if self.folder is None:
            if resume:
                raise TrainingError("cannot resume a run without checkpoints=, the folder of its checkpoints")
            return 0
        there = self.folder.paths()
        if not resume:
            if there:
                raise TrainingError(
                    f"cannot begin a run: {self.folder.folder} has checkpoints of another one, the newest called "
                    f"{there[-1].name}; go on from it with resume=True, or take another folder"
                )
            return 0
        if not there:
            return 0
        self.last = self.folder.latest()
        if self.last is None:
            raise TrainingError(
                f"cannot resume from {self.folder.folder}: none of its {len(there)} checkpoints is whole"
            )
        self.saved_at = int(load_checkpoint(self.last, **self.parts)["step"])
        return self.saved_at

    def save(self, step: int, *, last: bool = False) -> None:
        """Save after *step*; if that fails the checkpoints that are there are unharmed, and before the end of the run
        it may be a warning.
        """
        if self.folder is None or self.saved_at == step:
            return
        if self._rank:
            for part in self.parts.values():
                part.state_dict()
            self.saved_at = step
            return
        try:
            self.last = self.folder.save(step, metadata=self.metadata, **self.parts)
        except OSError as error:
            before = f"the last one is {self.last}" if self.last else "there is none before it"
            said = f"cannot save the checkpoint of step {step} in {self.folder.folder}: {error.strerror}; {before}"
            if last or self._unsaved == "raise":
                raise TrainingError(said) from error
            warnings.warn(f"{said}; the run goes on", stacklevel=2)
        else:
            self.saved_at = step
