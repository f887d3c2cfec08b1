"""Attention and its backward pass as kernels for GPUs: text that CUDA C++ and OpenCL C share.

Here: tiles, and a kernel's whole text for one of them. Not here: the text itself (`attention_steps.py`,
`attention_backward.py`), what a language spells in its own way, which a driver puts before it, launching.

A group of 16 x 16 work-items has a tile of queries and goes through the keys in tiles, with a running maximum and sum
of each row, so that weights exist only in its own memory. A work-item has rows y, y + 16, ... and columns x, x + 16,
... of a tile of scores, and four neighbouring features of its rows in a result, in its registers. The backward pass
makes the weights again from *lse*: one kernel goes through the keys for the gradient by queries, and another through
the queries for those by keys and values, so that nobody adds to memory that somebody else adds to, and results are
always the same; or the second keeps the slopes of scores, if there is memory, and the first is a product. With
causality tiles that nobody sees are left out, and groups with most to do begin first.

Rows in shared memory have an odd number of vectors of four, so that eight work-items which read eight rows meet no
memory bank twice.
"""

import functools
from typing import NamedTuple

from polygrad.driver.render import attention_backward, attention_steps

GROUP = 256  # work-items
# Rows and columns of a tile of scores for one work-item; backward passes have registers for the second and those after.
CANDIDATES = ((8, 4), (4, 4), (4, 2), (2, 2), (2, 1), (1, 1))
MOST = 4
FORWARD, QUERIES, KEYS, DELTA, GATHER = KERNELS = (
    "attention_forward", "attention_queries", "attention_keys", "attention_delta", "attention_gather",
)  # fmt: skip
_TEXTS = {
    FORWARD: attention_steps.FORWARD, QUERIES: attention_backward.QUERIES, KEYS: attention_backward.KEYS,
    DELTA: attention_backward.DELTA, GATHER: attention_backward.GATHER,
}  # fmt: skip


class Tiling(NamedTuple):
    """Sizes that a text is made for: features of queries and of values, rows and columns of a work-item."""

    features: int
    value_features: int
    rows: int
    columns: int

    @property
    def tile(self) -> int:
        """How many queries (or in `attention_keys` keys) a group has."""
        return 16 * self.rows

    def vectors(self, kernel: str, *, room: bool) -> int:
        """Return how many vectors of four values a group of *kernel* keeps in shared memory.

        >>> Tiling(64, 64, 4, 4).vectors("attention_forward", room=False) * 16
        69888
        """
        ours, theirs = 16 * self.rows, 16 * self.columns
        if kernel == DELTA:
            return -(-ours * 17 // 4) if room else 1
        if kernel == GATHER:
            return theirs * (4 * self.rows + _stride(self.features)) + 32
        q, v = _stride(self.features), _stride(self.value_features)
        operands = (ours + theirs) * q + theirs * v + (0 if kernel == FORWARD else ours * v)
        spare = 16 * -(-max(self.features, self.value_features) // 64)
        reduced = -(-ours * 17 // 4) if room and kernel != KEYS else 0
        return operands + ours * (4 * self.columns + 1) + spare + reduced


def _stride(features: int) -> int:
    return -(-features // 4) | 1


def tiling_for(
    kernel: str, features: int, value_features: int, size: int, shared_bytes: int, *, room: bool, groups: int = 1
) -> Tiling:
    """Return the largest tiles of *kernel* of which so many *groups* fit *shared_bytes*; a value has *size* bytes.

    Parameters
    ----------
    room : bool
        Whether rows are reduced through shared memory, which takes some.

    >>> tiling_for("attention_forward", 64, 64, 4, 49152, room=True)[2:]
    (4, 2)
    """
    for rows, columns in CANDIDATES:
        found = Tiling(features, value_features, rows, columns)
        spills = kernel != FORWARD and rows > MOST
        if not spills and groups * found.vectors(kernel, room=room) * 4 * size <= shared_bytes:
            return found
    return found


@functools.lru_cache(maxsize=256)
def attention_text(kernel: str, tiling: Tiling, *, causal: bool, wide: bool, kept: bool = False) -> str:
    """Return the text of one of KERNELS, to stand behind a driver's words.

    Parameters
    ----------
    kernel : str
    tiling : Tiling
    causal : bool
    kept : bool
        Whether `attention_keys` keeps the slopes of scores for `attention_gather`.
    wide : bool
        Whether operands may be read four elements at once: every row begins at a multiple of them, and ends at one.
    """
    numbers = {
        "D": tiling.features, "DV": tiling.value_features, "R": tiling.rows, "C": tiling.columns,
        "CAUSAL": int(causal), "WIDE": int(wide), "KEPT": int(kept),
    }  # fmt: skip
    return (
        "".join(f"#define {name} {number}\n" for name, number in numbers.items())
        + attention_steps.STEPS
        + _TEXTS[kernel]
    )
