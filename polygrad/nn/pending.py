"""Values that are recorded but not computed yet, and that the next optimiser's step computes together with its own.

Here: a note of buffers with a new value, such as running statistics, so that no chain of graphs grows; losses are noted
where `backward` is.
Not here: what the buffers are.
"""

import threading
import weakref

from polygrad.array.object import Array
from polygrad.array.recording import take_losses

_lock = threading.Lock()
_noted: dict[int, "weakref.ref[Array]"] = {}


def note(buffer: Array) -> None:
    """Remember that *buffer* was given a value that is yet to be computed."""
    with _lock:
        _noted[id(buffer)] = weakref.ref(buffer)


def take() -> list[Array]:
    """Return the noted buffers, and this thread's losses, that are still alive, and forget them."""
    with _lock:
        alive = [buffer for ref in _noted.values() if (buffer := ref()) is not None]
        _noted.clear()
    return alive + take_losses()
