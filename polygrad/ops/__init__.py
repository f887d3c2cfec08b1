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
    ordering,
    placing,
    products,
    randomness,
    reduction,
    scans,
    searching,
    selection,
    sets,
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
    "ordering",
    "placing",
    "products",
    "randomness",
    "reduction",
    "scans",
    "searching",
    "selection",
    "sets",
    "softmath",
    "statistics",
]
