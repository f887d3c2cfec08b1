"""How a step that `pg.compile` captures reads an optimiser's numbers: anew at each call.

Here: learning rates and other hyper-parameters, and counts of steps, as Symbols.
Not here: the step (`optimizer.py`), capturing.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from polygrad.array.capturing import afterwards, number

State = dict[str, Any]


class Stateful(Protocol):
    """What is asked of an optimiser: its groups, its state by parameter, and how often either was replaced."""

    groups: list[dict[str, Any]]
    state: dict[str, State]
    version: int


class Numbers:
    """The numbers of an optimiser in a captured step.

    Whether its state or its groups were replaced since (a state was loaded, a group added) is a condition of the step:
    it would go on with the old ones.

    Parameters
    ----------
    optimizer : Optimizer
        Whose they are.
    names : iterable of str
        The parameters that move. Those that have taken as many steps share one count, as long as they do.
    """

    def __init__(self, optimizer: Stateful, names: Iterable[str]) -> None:
        number(functools.partial(_unchanged, optimizer, optimizer.version))
        states = optimizer.state
        self._groups = {id(group): _anew(group) for group in optimizer.groups}
        self._counts: dict[str, Any] = {}
        alike: dict[int, list[str]] = {}
        for name in names:
            if name in states:
                alike.setdefault(states[name]["step"], []).append(name)
        for some in alike.values():
            number(functools.partial(_agree, states, tuple(some)))
            shared = number(functools.partial(_count, states, some[0]))
            self._counts.update(dict.fromkeys(some, shared))

    def group(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a group with hyper-parameters that are read at each call."""
        return self._groups[id(group)]

    def count(self, name: str) -> Any:
        """Return how many steps a parameter has taken, read at each call."""
        return self._counts.get(name, 0)


def count_up(states: Mapping[str, State], names: Sequence[str]) -> None:
    """Count a step of some parameters, at each call."""

    def move(by: int) -> None:
        for name in names:
            states[name]["step"] += by

    def do() -> Callable[[], None]:
        move(1)
        return functools.partial(move, -1)

    afterwards(do)


def _anew(group: dict[str, Any]) -> dict[str, Any]:
    def of(key: str) -> Any:
        value = group[key]
        if isinstance(value, tuple):
            return tuple([number(functools.partial(_item, group, key, k)) for k in range(len(value))])
        return number(functools.partial(group.__getitem__, key)) if isinstance(value, (bool, int, float)) else value

    return {key: value if key == "params" else of(key) for key, value in group.items()}


def _item(group: dict[str, Any], key: str, k: int) -> Any:
    return group[key][k]


def _unchanged(optimizer: Stateful, version: int) -> bool:
    return optimizer.version == version


def _agree(states: Mapping[str, State], names: tuple[str, ...]) -> bool:
    first = states[names[0]]["step"]
    return all(states[name]["step"] == first for name in names)


def _count(states: Mapping[str, State], name: str) -> int:
    return int(states[name]["step"])
