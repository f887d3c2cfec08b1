"""The garbage collector, kept from looking in vain.

Here: `quiet`, a block that makes many objects, all of which live until it ends: every walk through them finds nothing.
Not here: what is made. Objects without cycles are freed within the block as ever.
"""

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_inside = [0, False]  # blocks that are under way, in all threads; whether the collector was on before the first


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run a block without the garbage collector; blocks of several threads may overlap."""
    with _lock:
        if not _inside[0]:
            _inside[1] = gc.isenabled()
            gc.disable()
        _inside[0] += 1
    try:
        yield
    finally:
        with _lock:
            _inside[0] -= 1
            if not _inside[0] and _inside[1]:
                gc.enable()


def _after_fork() -> None:
    """In a child none of the blocks goes on, and the lock may be held by a thread that is not there."""
    global _lock  # noqa: PLW0603  it is replaced, as the old one cannot be released
    _lock = threading.Lock()
    if _inside[0] and _inside[1]:
        gc.enable()
    _inside[0] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
