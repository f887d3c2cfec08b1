"""Random numbers: ``pg.random``. Counter-based (Philox-4x32-10): the same seed gives the same bits on every device.

Here: the seed, the global counter, and the functions that draw.
Not here: the distributions, which are ops (`ops/randomness.py`).

A draw takes its counter when it is recorded, under one lock; when it is computed does not matter.
"""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.capturing import capturing, effect, number
from polygrad.array.config import default_float, default_int, held, resolve
from polygrad.array.functions import wrap
from polygrad.array.object import Array
from polygrad.array.operators import as_node
from polygrad.autograd import folded_key
from polygrad.errors import DTypeError
from polygrad.graph.functions import F
from polygrad.ops.batching import folded
from polygrad.ops.randomness import words_for

__all__ = (
    "bernoulli", "bits", "exponential", "fold_in", "get_state", "key", "normal", "permutation", "randint", "replayed",
    "seed", "set_state", "snapshot", "uniform",
)  # fmt: skip

_WORDS = 4  # words a step of the counter
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  a thread that does not exist in the child may have held the old one
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _State:
    """A key and the next counter."""

    __slots__ = ("counter", "key")

    def __init__(self, key: int, counter: int = 0) -> None:
        self.key = key
        self.counter = counter


class _Local(threading.local):
    replay: _State | None = None


_state = _State(int.from_bytes(os.urandom(8), "little"))
_local = _Local()


def seed(value: int) -> None:
    """Start the stream of random numbers of this process anew.

    Parameters
    ----------
    value : int
        Any integer; it is taken modulo 2**64.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.random.seed(7)
    >>> a = pg.random.normal((3,))
    >>> pg.random.seed(7)
    >>> bool(pg.all(pg.random.normal((3,)) == a))
    True
    """
    _go_to(int(value) % 2**64, 0)


def _go_to(key: Any, counter: Any) -> None:
    """Set the stream, at each call of a compiled function too."""

    def do() -> Callable[[], None]:
        with _lock:
            before = _state.key, _state.counter
            _state.key, _state.counter = key, counter

        def undo() -> None:
            with _lock:
                _state.key, _state.counter = before

        return undo

    effect(do)


def get_state() -> dict[str, int]:
    """Return the key and the counter, to be saved with a checkpoint."""
    with _lock:
        return {"key": number(lambda: _state.key), "counter": number(lambda: _state.counter)}


def set_state(state: dict[str, int]) -> None:
    """Go on from a state that `get_state` returned."""
    _go_to(int(state["key"]) % 2**64, int(state["counter"]) % 2**64)


def key() -> int:
    """Return the key of the stream: the seed."""
    return get_state()["key"]


def fold_in(key: int, index: int) -> int:
    """Return the key of number *index* of the streams that belong to *key*: each is as good as the seed of another.

    A function mapped by `vmap` draws for example i under the key ``fold_in(key, i)``, from the same counter for all.

    >>> import polygrad as pg
    >>> start = pg.random.get_state()
    >>> both = pg.vmap(lambda x: x + pg.random.uniform(()))(pg.zeros(2))
    >>> pg.random.set_state({**start, "key": pg.random.fold_in(start["key"], 1)})
    >>> bool(both[1] == pg.random.uniform(()))
    True
    """
    return int(folded(int(key) % 2**64, int(index)))


def snapshot() -> dict[str, int]:
    """Return where this thread's stream stands."""
    replay = _local.replay
    return get_state() if replay is None else {"key": replay.key, "counter": replay.counter}


@contextlib.contextmanager
def replayed(state: dict[str, int]) -> Iterator[None]:
    """Draw again what was drawn from *state* on, in this thread, without moving the process's stream."""
    before, _local.replay = _local.replay, _State(state["key"], state["counter"])
    try:
        yield
    finally:
        _local.replay = before


def _take(words: int) -> tuple[Any, Any]:
    """Return key and counter of a draw of so many words, and move on."""
    steps = -(-words // _WORDS)
    source = _local.replay
    if source is None:
        drawn = _moved_on(steps) if capturing() is None else _captured(steps)
    else:
        drawn = source.key, source.counter
        source.counter = (source.counter + steps) % 2**64
    return folded_key(F.constant(drawn[0], dtypes.uint64)), F.constant(drawn[1], dtypes.uint64)


def _moved_on(steps: int) -> tuple[int, int]:
    """Return where the stream of the process stands, and move it on."""
    with _lock:
        drawn = _state.key, _state.counter
        _state.counter = (_state.counter + steps) % 2**64
    return drawn


def _captured(steps: int) -> tuple[Any, Any]:
    """Move the stream on at each call of a compiled function; return where it stands in each."""
    drawn = [0, 0]

    def do() -> Callable[[], None]:
        drawn[:] = _moved_on(steps)

        def undo() -> None:
            with _lock:
                _state.counter = (_state.counter - steps) % 2**64

        return undo

    effect(do)
    return number(lambda: drawn[0]), number(lambda: drawn[1])


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)


def _draw(name: str, shape: Any, dtype: dtypes.DType, device: str, /, *args: Any, **kwargs: Any) -> Array:
    sizes = _shape(shape)
    k, c = _take(words_for(name, math.prod(sizes), dtype))
    moved = {n: as_node(v, device) for n, v in kwargs.items()}
    return wrap(getattr(F, name)(sizes, k, c, *[as_node(a, device) for a in args], **moved), device)  # type: ignore[no-any-return]


def uniform(shape: Any = (), low: Any = 0.0, high: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return numbers uniform in [low, high).

    >>> import polygrad as pg
    >>> pg.random.seed(0)
    >>> x = pg.random.uniform((3, 2), -1.0, 1.0, dtype=pg.float32)
    >>> x.shape, bool(pg.all((x >= -1.0) & (x < 1.0)))
    ((3, 2), True)
    """
    name = resolve(device)
    wanted = default_float(name) if dtype is None else dtypes.as_dtype(dtype)
    return _draw("uniform", shape, wanted, name, dtype=wanted, low=low, high=high)


def normal(shape: Any = (), mean: Any = 0.0, std: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return normal numbers of a mean and a standard deviation.

    >>> import polygrad as pg
    >>> pg.random.seed(0)
    >>> x = pg.random.normal((1000,), mean=5.0, std=0.1)
    >>> round(float(pg.mean(x)))
    5
    """
    name = resolve(device)
    wanted = default_float(name) if dtype is None else dtypes.as_dtype(dtype)
    return _draw("normal", shape, wanted, name, dtype=wanted, mean=mean, std=std)


def exponential(shape: Any = (), scale: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return exponential numbers of mean *scale*.

    >>> import polygrad as pg
    >>> bool(pg.all(pg.random.exponential((100,), scale=2.0) >= 0.0))
    True
    """
    name = resolve(device)
    wanted = default_float(name) if dtype is None else dtypes.as_dtype(dtype)
    return _draw("exponential", shape, wanted, name, dtype=wanted, scale=scale)


def randint(low: int, high: int, shape: Any = (), *, dtype: Any = None, device: Any = None) -> Array:
    """Return integers in [low, high); the device needs uint64, in which they are made whatever their own dtype.

    >>> import polygrad as pg
    >>> pg.random.seed(0)
    >>> sorted(set(pg.random.randint(0, 3, (100,)).tolist()))
    [0, 1, 2]
    """
    name = resolve(device)
    if "uint64" not in held(name):
        raise DTypeError(
            f"cannot draw integers on {name}: it has no uint64, in which they are made; draw them on another device "
            f"and move them with .to_device({name!r})"
        )
    wanted = default_int(name) if dtype is None else dtypes.as_dtype(dtype)
    return _draw("randint", shape, wanted, name, low, high, dtype=wanted)


def bernoulli(p: Any = 0.5, shape: Any = (), *, device: Any = None) -> Array:
    """Return bools that are true with probability *p*.

    >>> import polygrad as pg
    >>> pg.random.bernoulli(1.0, (2,)).tolist()
    [True, True]
    """
    name = resolve(device)
    return _draw("bernoulli", shape, dtypes.float32, name, p)


def bits(shape: Any = (), *, device: Any = None) -> Array:
    """Return uniform uint32 words.

    >>> import polygrad as pg
    >>> pg.random.bits((4,)).dtype.name
    'uint32'
    """
    return _draw("random_bits", shape, dtypes.uint32, resolve(device))


def permutation(n: int, *, device: Any = None) -> Array:
    """Return 0 .. n - 1 in random order, in the device's default integer dtype.

    The order is that of the process's stream, computed on the host: a shuffled list of indices is small and is asked
    for rarely.

    >>> import polygrad as pg
    >>> sorted(pg.random.permutation(5).tolist())
    [0, 1, 2, 3, 4]
    """
    from polygrad.array.creation import asarray  # noqa: PLC0415  built on the same modules

    words: Sequence[int] = bits((2 * n,), device=device).tolist() if n else []
    keys = [(words[2 * k] << 32 | words[2 * k + 1], k) for k in range(n)]
    return asarray([k for _, k in sorted(keys)], dtype=default_int(resolve(device)), device=device)
