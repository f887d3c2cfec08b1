"""Numbers in the results of a captured call: each is computed again at every call.

Here: `Slot`, which stands in a tree for such a number, and putting slots in and numbers back.
Not here: how the numbers are computed (`polygrad.symbols`).
"""

from collections.abc import Callable
from typing import Any

from polygrad.symbols import Symbol


class Slot:
    """Stands in a result for a number that is computed at each call."""

    def __init__(self, symbol: Symbol) -> None:
        self.index, self.now = symbol.index, symbol.now


def with_slots(tree: Any) -> Any:
    """Return a result with slots for its Symbols."""
    return _replaced(tree, Symbol, Slot)


def without_slots(tree: Any, number: Callable[[Slot], Any]) -> Any:
    """Return a result with numbers for its slots."""
    return _replaced(tree, Slot, number)


def has_slots(tree: Any) -> bool:
    """Whether a result has slots."""
    found: list[Slot] = []
    _replaced(tree, Slot, found.append)
    return bool(found)


def _replaced(tree: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    if type(tree) is kind:
        return by(tree)
    if type(tree) is dict:
        return {k: _replaced(v, kind, by) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        made = [_replaced(v, kind, by) for v in tree]
        return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
    return tree
