"""NumPy's BLAS for drivers that multiply on the host: how many threads it uses, and in which pieces ours share it.

Here: `single`, within which each call of BLAS stays in its own thread, and `pieces`, a product as several such calls.
Not here: threads, any product. It is the core's because there is one BLAS in a process, for all drivers.

A BLAS that divides a product itself makes its threads wait for each other many times. Where another program has one
of the cores each wait lasts a time slice; independent pieces do not wait (measured beside one busy program: 0.4 ms
instead of 60 for 128x512 times 512x256, and as long as BLAS on a quiet machine).
"""

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

# What OpenBLAS calls the pair, as NumPy's wheels and distributions build it.
NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_",
         "openblas_{}_num_threads")  # fmt: skip
NUMPY = "numpy._core._multiarray_umath"  # the library that is linked with it; looked up, never imported

SHARED = 1 << 23  # multiplications from which a product is worth a second thread: a tenth of a millisecond
ROWS = 256  # rows or columns of a piece: few enough pieces that packing the other operand again is little
ALIGNED = 16  # rows or columns that the innermost routines do at once
Index = tuple[slice, ...]

_lock = threading.Lock()
_inside = [0, 0]  # how many are within `single`, and the number of threads before the first of them


@functools.cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return the functions that tell and set the number of threads; None if this BLAS has none that we know."""
    loaded = sys.modules.get(NUMPY)
    if loaded is None or not loaded.__file__:
        return None
    library = ctypes.CDLL(loaded.__file__)
    for name in NAMES:
        tell, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
        if tell is not None and put is not None:
            return tell, put
    return None


def adjustable() -> bool:
    """Return whether `single` can do what it says: with another BLAS it changes nothing."""
    return _functions() is not None


@contextlib.contextmanager
def single() -> Iterator[None]:
    """Let each call of BLAS, by any thread, use one thread: two that divide their work would wait for each other."""
    found = _functions()
    if found is None:
        yield
        return
    tell, put = found
    with _lock:
        if not _inside[0]:
            _inside[1] = tell()
            put(1)
        _inside[0] += 1
    try:
        yield
    finally:
        with _lock:
            _inside[0] -= 1
            if not _inside[0]:
                put(_inside[1])


def pieces(shape: Sequence[int], threads: int) -> list[tuple[Index, Index, Index]]:
    """Return indices of the left operand, the right operand and the result of a product, one triple a piece.

    Parameters
    ----------
    shape : sequence of int
        Of the result: axes of a stack, rows, columns. Operands have as many axes, those of the stack as long.
    threads : int
        There are at least as many pieces, and a few times as many of a large product, so that a thread that is held
        up is left less to do.

    Examples
    --------
    >>> [at[2] for at in pieces((64, 40), 2)]
    [(slice(0, 32, None), slice(0, 40, None)), (slice(32, 64, None), slice(0, 40, None))]
    >>> len(pieces((64, 128, 128), 2)), len(pieces((3000, 128), 2))
    (8, 8)
    """
    last = len(shape) - 1
    axis = max(range(last - 1), key=lambda k: shape[k], default=last)
    if axis == last or shape[axis] < threads:
        axis = last if shape[last] > shape[last - 1] else last - 1
        count = min(4 * threads, max(threads, shape[axis] // ROWS))
        step = -(-shape[axis] // (count * ALIGNED)) * ALIGNED
    else:
        step = max(1, shape[axis] // (4 * threads))
    whole = [slice(0, extent) for extent in shape]
    found = []
    for start in range(0, shape[axis], step):
        at = [*whole[:axis], slice(start, min(start + step, shape[axis])), *whole[axis + 1 :]]
        left, right = [*at[:last], slice(None)], [*at[: last - 1], slice(None), at[last]]
        found.append((tuple(left), tuple(right), tuple(at)))
    return found
