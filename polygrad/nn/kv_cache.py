"""Keys and values of the positions that a transformer has seen.

Here: KVCache, which counts its positions; KVPlace, one of them, whose number is the caller's.
Not here: attention to them (`attention.py`), the loop over tokens (`gpt.py`).
"""

from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.errors import ShapeError
from polygrad.nn import init
from polygrad.nn.positions import rows

_ROOM = 32  # positions: the least that attention to a cache looks at


def room_for(length: int, capacity: int) -> int:
    """Return how many positions are looked at of a cache that holds *length*: a power of two, or all."""
    return min(capacity, max(_ROOM, 1 << (length - 1).bit_length()))


def filled(start: int, length: int, room: int, device: str) -> Array:
    """Return the rows of a causal mask from *start* on, over *room* positions; *start* is no part of their graph."""
    seen = FUNCTIONS["expand_dims"](rows(start, length, device), -1)
    return seen >= FUNCTIONS["arange"](room, device=device)  # type: ignore[no-any-return]


class KVCache:
    """Keys and values of the positions seen so far, for one layer; room is made once.

    Parameters
    ----------
    batch, heads, capacity, head_dim : int
        [batch, heads, capacity, head_dim] are the shapes of keys and of values.
    dtype, device : optional
        float32 and the default device.

    Examples
    --------
    >>> import polygrad as pg
    >>> cache = pg.nn.KVCache(1, 2, 8, 4)
    >>> k = pg.ones((1, 2, 3, 4), dtype=pg.float32)
    >>> keys, values = cache.append(k, k)
    >>> keys.shape, cache.length
    ((1, 2, 3, 4), 3)
    """

    def __init__(
        self, batch: int, heads: int, capacity: int, head_dim: int, *, dtype: Any = None, device: Any = None
    ) -> None:
        shape = (batch, heads, capacity, head_dim)
        self.keys = init.zeros(shape, dtype=dtype, device=device)
        self.values = init.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        """For how many positions there is room."""
        return self.keys.shape[2]

    def append(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Put keys and values of the next positions in; return those of all positions. No gradient goes through it."""
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ShapeError(
                f"cannot put {keys.shape[2]} positions into a cache that holds {self.length} of {self.capacity}: make "
                "a larger one, or call reset()"
            )
        with no_grad():
            for store, new in ((self.keys, keys), (self.values, values)):
                store[:, :, self.length : end] = new.detach().astype(store.dtype, copy=False)
            self.length = end
            return self.up_to(end)

    @property
    def start(self) -> int:
        """The next position."""
        return self.length

    @property
    def room(self) -> int:
        """How many positions attention looks at, with a mask that shows what is filled."""
        return room_for(self.length, self.capacity)

    def up_to(self, end: int) -> tuple[Array, Array]:
        """Return keys and values of the first *end* positions, empty ones too."""
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reset(self) -> None:
        """Forget all positions."""
        self.length = 0


class KVPlace:
    """The place of one more position in a cache.

    Its number may differ between replays of a compiled function: keys and values are put there by a selection over the
    room, not at an offset, and the cache's own count stays as it is.

    Parameters
    ----------
    cache : KVCache
        Which cache.
    start : int
        How many positions are before the place.
    room : int
        How many positions are looked at; more than *start*.
    """

    def __init__(self, cache: KVCache, start: int, room: int) -> None:
        self.cache, self.start, self.room = cache, start, room

    def append(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Put keys and values [N, heads, 1, head_dim] in; return those of the room. No gradient goes through it."""
        with no_grad():
            at = FUNCTIONS["arange"](self.room, device=keys.device)
            here = FUNCTIONS["expand_dims"](at == self.start, -1)
            for store, new in ((self.cache.keys, keys), (self.cache.values, values)):
                value = new.detach().astype(store.dtype, copy=False)
                store[:, :, : self.room] = FUNCTIONS["where"](here, value, store[:, :, : self.room])
        return self.up_to(self.room)

    def up_to(self, end: int) -> tuple[Array, Array]:
        """Return keys and values of the first *end* positions, empty ones too."""
        return self.cache.up_to(end)
