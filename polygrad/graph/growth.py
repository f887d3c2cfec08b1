"""Pending graphs as they grow: who looks at them, and how often.

Here: the hook that recording calls.
Not here: when a graph is computed because it has grown, which the array layer knows.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polygrad.graph.node import Node

CHECKED_EVERY = 64  # operands deep: how often a growing graph is looked at
_watchers: "list[Callable[[Node], None]]" = []


def on_growth(function: "Callable[[Node], None]") -> None:
    """Install what looks at a pending graph as it grows, and may realize it; the array layer does."""
    _watchers[:] = [function]


def grown(node: "Node") -> None:
    """Have a growing graph looked at."""
    for watch in _watchers:
        watch(node)
