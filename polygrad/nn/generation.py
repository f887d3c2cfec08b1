"""The next token of a language model: drawn from its scores, and computed again and again.

Here: check_sampling, sample; Following, the step of generation with a cache.
Not here: the loop and the model (`gpt.py`), caches (`kv_cache.py`).
"""

import math
from collections.abc import Callable

from polygrad.array import compiling, random
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError
from polygrad.nn.kv_cache import KVCache, KVPlace, room_for
from polygrad.nn.module import Module


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise ShapeError if a setting of `sample` makes no sense."""
    if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0.0 < top_p <= 1.0):
        raise ShapeError(
            f"cannot sample with temperature {temperature}, top_k {top_k} and top_p {top_p}: they are at least 0, at "
            "least 1, and in (0, 1]"
        )


def sample(scores: Array, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Array:
    """Return one token for each row of scores [N, vocab_size], as [N, 1]; see `GPT.generate`.

    Examples
    --------
    >>> import polygrad as pg
    >>> sample(pg.asarray([[0.0, 9.0, 1.0]]), temperature=0.0).tolist()
    [[1]]
    """
    check_sampling(temperature, top_k, top_p)
    if temperature == 0.0:
        return FUNCTIONS["argmax"](scores, axis=-1, keepdims=True)  # type: ignore[no-any-return]
    scores = scores / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        ranked = FUNCTIONS["sort"](scores, axis=-1, descending=True)
        scores = FUNCTIONS["where"](scores < ranked[:, top_k - 1 : top_k], -math.inf, scores)
    if top_p is not None and top_p < 1.0:
        shares = FUNCTIONS["softmax"](scores, -1)
        ranked = FUNCTIONS["sort"](shares, axis=-1, descending=True)
        before = FUNCTIONS["cumulative_sum"](ranked, axis=-1) - ranked
        least = FUNCTIONS["min"](FUNCTIONS["where"](before < top_p, ranked, math.inf), axis=-1, keepdims=True)
        scores = FUNCTIONS["where"](shares < least, -math.inf, scores)
    # The largest of scores plus Gumbel noise is a draw from their softmax.
    noise = random.exponential(scores.shape, dtype=scores.dtype, device=scores.device)
    drawn = scores - FUNCTIONS["log"](noise)
    return FUNCTIONS["argmax"](drawn, axis=-1, keepdims=True)  # type: ignore[no-any-return]


class Following:
    """The next token of sequences whose earlier positions are cached; from the second on, a compiled function."""

    def __init__(self, model: Module, caches: list[KVCache], settings: tuple[float, int | None, float | None]) -> None:
        self.model, self.caches, self.settings = model, caches, settings
        self.room = 0
        self.step: Callable[[Array, int], Array] | None = None

    def __call__(self, new: Array, length: int) -> Array:
        """Return the token behind *length* positions, of which those of *new* are not cached yet."""
        if new.shape[1] > 1 or length == 1:
            return sample(self.model(new, self.caches)[:, -1], *self.settings).realize()
        room = room_for(length, self.caches[0].capacity)
        if self.step is None or room > self.room:
            self.room, self.step = room, compiling.compile(self._next(room))
        return self.step(new, length - 1).realize()

    def _next(self, room: int) -> Callable[[Array, int], Array]:
        def step(new: Array, start: int) -> Array:
            places = [KVPlace(cache, start, room) for cache in self.caches]
            return sample(self.model(new, places)[:, -1], *self.settings)

        return step
