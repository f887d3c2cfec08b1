"""The op table, filled: importing this package declares every op.

Here: the imports that fill the table.
Not here: anything else; start at `table.py`.
"""

from polygrad.ops import (
    activations,
    composite,
    constructors,
    convolution,
    creation,
    elementwise,
    indexing,
    internal,
    joining,
    layout,
    linalg,
    losses,
    manipulation,
    neural,
    products,
    randomness,
    reduction,
    searching,
    selection,
    softmath,
    statistics,
)
from polygrad.ops.table import TABLE, Op

__all__ = [
    "TABLE",
    "Op",
    "activations",
    "composite",
    "constructors",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "internal",
    "joining",
    "layout",
    "linalg",
    "losses",
    "manipulation",
    "neural",
    "products",
    "randomness",
    "reduction",
    "searching",
    "selection",
    "softmath",
    "statistics",
]
