"""Buffers whose new values are recorded but not computed yet, such as running statistics.

Here: a note of them, so that an optimiser's step computes them together with everything else and no chain of graphs
grows.
Not here: what the buffers are.
"""

import threading
import weakref

from polygrad.array.object import Array

_lock = threading.Lock()
_noted: dict[int, "weakref.ref[Array]"] = {}


def note(buffer: Array) -> None:
    """Remember that *buffer* was given a value that is yet to be computed."""
    with _lock:
        _noted[id(buffer)] = weakref.ref(buffer)


def take() -> list[Array]:
    """Return the noted buffers that are still alive, and forget them."""
    with _lock:
        alive = [buffer for ref in _noted.values() if (buffer := ref()) is not None]
        _noted.clear()
    return alive
