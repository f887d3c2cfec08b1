"""Composites that were recorded before: the same call on arrays of the same form makes its nodes from a template.

Here: `repeating`, which wraps a function of nodes, and the forms of calls.
Not here: what the functions compute (`polygrad.ops`), what a template is (`polygrad.graph.templates`).

A composite sees shapes, dtypes, the device and the other arguments, and whether operands are watched; nothing else, or
its nodes are recorded by it each time: a count that it reads from the device, say.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.autocasting import autocast_dtype
from polygrad.graph.asking import answers, looks
from polygrad.graph.node import RECORDING, Node, doubtful, newest
from polygrad.graph.templates import Template, template

MOST = 64  # forms that are known of a function
PATIENCE = 4  # times that they may become too many: its arguments are others each time
_ATOMS = frozenset({bool, int, str, type(None), *[type(d) for d in dtypes.ALL]})

# The result: how many nodes in a tuple, 0 for a node alone; and the template. False: seen once; None: no template.
Known = tuple[int, Template] | bool | None


class _Forms:
    """What is known of the calls of one function."""

    __slots__ = ("patience", "seen")

    def __init__(self) -> None:
        self.seen: dict[Any, Known] = {}
        self.patience = PATIENCE

    def note(self, key: Any, known: Known) -> None:
        """Remember a form; other threads may do so at the same time, and at worst ask a rule once more."""
        if len(self.seen) >= MOST and key not in self.seen:
            self.seen = {}
            self.patience -= 1
        self.seen[key] = known


def repeating(function: Callable[..., Any]) -> Callable[[list[Any], Mapping[str, Any]], Any]:
    """Return *function*, which records nodes, as one of its arguments in a list and a dict."""
    forms = _Forms()

    def repeated(args: list[Any], named: Mapping[str, Any]) -> Any:
        quiet = RECORDING.observer is None and RECORDING.capture is None and not RECORDING.batches
        if not quiet or forms.patience <= 0:
            return function(*args, **named)
        operands: list[Node] = []
        key = _form(args, named, operands)
        if key is None:
            return function(*args, **named)
        known = forms.seen.get(key, True)
        if type(known) is tuple:
            made = known[1].make_watched(operands)
            return tuple(made) if known[0] else made[0]
        start, looked = newest(), looks[0]
        result = function(*args, **named)
        if known is True:
            forms.note(key, False)
        elif known is False:
            forms.note(key, _written(result, operands, start) if looks[0] == looked else None)
        return result

    return repeated


def _written(result: Any, operands: Sequence[Node], start: int) -> Known:
    several = type(result) is tuple
    nodes = result if several else (result,)
    if not nodes or not all(type(n) is Node for n in nodes):
        return None
    made = template(nodes, operands, start)
    return None if made is None else (len(nodes) if several else 0, made)


def _form(args: Sequence[Any], named: Mapping[str, Any], operands: list[Node]) -> Any:
    """Return what a call has that a composite may see, its nodes in *operands*; None if there is more to it."""
    words: list[Any] = []
    for a in (*args, *named.values()) if named else args:
        kind = type(a)
        if kind is Node:
            if a in operands:
                words.append(-1 - operands.index(a))  # no word that anything else has
                continue
            operands.append(a)
            words.append(a.aval)
            if a.mask:
                if doubtful(a.mask):
                    return None
                words.append(True)
        elif kind in _ATOMS:
            words += (kind, a)
        elif kind is float:
            words += (kind, a or str(a))  # zeros differ by their sign
        elif kind is tuple and all(type(n) is int for n in a):
            words.append(a)
        else:
            return None
    if not operands:
        return None
    device = operands[0].device
    for n in operands:
        if n.device != device or n.device is None or n.spec.op.kind == "scalar":
            return None
    words += (device, answers[0], autocast_dtype(), RECORDING.enabled, *named)
    return tuple(words)
