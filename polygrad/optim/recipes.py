"""Updates that were recorded once: a step makes their graph again from a template, with the numbers of the day.

Here: `Recipes` of an optimiser, and the mark `formula` of the update rules that may be treated so.
Not here: the rules (`algorithms.py`), the step (`optimizer.py`), templates (`polygrad.graph.templates`).

An update rule is asked once for each form of parameter. Learning rates, betas and counts of steps are Symbols then, so
that it is known how each number of the graph comes about; where a rule branches by a number, that becomes a condition,
and the rule is asked anew where the condition does not hold. A number is one node for all parameters of a step that
share it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from polygrad.array.capturing import capturing, outside
from polygrad.array.object import Array
from polygrad.graph.node import RECORDING, Node, newest, scalar
from polygrad.graph.templates import Template, template
from polygrad.symbols import HostProgram, Symbol, known

AGAIN = 16  # times that rules are asked anew because a condition failed, before recipes are given up
Rule = TypeVar("Rule", bound=Callable[..., Any])
# (value, gradient, state arrays, group, factor, count, decay) -> the new value and the new state arrays
Ask = Callable[[Array, Array, dict[str, Array], Mapping[str, Any], Any, Any, Any], tuple[Array, dict[str, Array]]]


def formula(rule: Rule) -> Rule:
    """Mark an update rule that depends on its arguments alone, and on nothing in them but hyper-parameters by name."""
    rule.formula = True  # type: ignore[attr-defined]
    return rule


class _Symbols:
    """Stands in for what captures a call, while a rule is asked: it hears which nodes hold Symbols."""

    def __init__(self) -> None:
        self.symbols: dict[Node, Symbol] = {}


class _Track:
    """The numbers of parameters of one group: how they follow from its hyper-parameters and a count of steps."""

    def __init__(self, way: Any, group: Mapping[str, Any], decays: bool, count: int, factor: float) -> None:
        self.way = way  # what it is kept under
        self.source = group
        self.host = HostProgram()
        self.count = count
        self.factor = factor
        self.group = {k: v if k == "params" else self._anew(group, k, v) for k, v in group.items()}
        self.step = self.host.read(lambda: self.count)
        self.scale = self.host.read(lambda: self.factor)
        self.decay = self.group.get("weight_decay", 0.0) if decays else 0.0

    def _anew(self, group: Mapping[str, Any], key: str, value: Any) -> Any:
        if isinstance(value, tuple):
            self.host.read(lambda: len(group[key])).known()  # from now on a condition
            return tuple([self.host.read(functools.partial(_item, group, key, k)) for k in range(len(value))])
        return self.host.read(functools.partial(group.__getitem__, key))

    def values(self, count: Any, factor: float) -> list[Any] | None:
        """Return its numbers at a count; Symbols while a call is captured. None if a condition does not hold."""
        capture = capturing()
        if capture is not None:
            return self.host.within(capture.host, {self.step.index: count, self.scale.index: factor})
        self.count, self.factor = count, factor
        found = self.host.run()
        return None if found is None else found[0]


def _item(group: Mapping[str, Any], key: str, k: int) -> Any:
    return group[key][k]


class _Recipe:
    """The update of parameters of one form: a template over their arrays and some numbers of a track."""

    __slots__ = ("made", "numbers", "slots")

    def __init__(self, made: Template, numbers: list[tuple[int, Any]], slots: tuple[str, ...]) -> None:
        self.made = made
        self.numbers = numbers  # which value of the track's, in which dtype
        self.slots = slots


class Recipes:
    """The recipes of one optimiser; a copy of the optimiser, or one that was saved, starts with none."""

    def __init__(self) -> None:
        self.tracks: dict[Any, _Track] = {}
        self.known: dict[Any, _Recipe] = {}
        self.left = AGAIN

    def __reduce__(self) -> Any:
        return Recipes, ()

    def for_step(self, ask: Ask, factor: float | Array) -> "Step | None":
        """Return what a step records updates with; None if they are to be recorded by their rules."""
        quiet = RECORDING.observer is None and not RECORDING.batches
        return Step(self, ask, factor) if self.left and quiet else None

    def forget(self) -> None:
        """Forget all recipes, because numbers do not come about any more as they did."""
        self.tracks.clear()
        self.known.clear()
        self.left -= 1


class Step:
    """The updates of one step: numbers are computed once for each count of steps."""

    def __init__(self, recipes: Recipes, ask: Ask, factor: float | Array) -> None:
        self._recipes = recipes
        self._ask = ask
        self._array = factor if isinstance(factor, Array) else None
        self._factor = 1.0 if isinstance(factor, Array) else factor
        self._numbers: dict[Any, tuple[_Track, list[Any], dict[Any, Node]]] = {}

    def moved(
        self,
        parameter: Array,
        gradient: Array,
        state: Mapping[str, Any],
        group: Mapping[str, Any],
        count: Any,
        decays: bool,
    ) -> tuple[Array, dict[str, Array]] | None:
        """Return the new value and the new state arrays of a parameter whose step of that *count* this is.

        None if it has to be done by the rule.
        """
        arrays = list(state.values())[1:]  # after the count
        operands = [parameter._node, gradient._node, *[a._node for a in arrays]]
        if self._array is not None:
            operands.append(self._array._node)
        device = operands[0].device
        if device is None or next(iter(state)) != "step" or any([n.device != device for n in operands]):  # noqa: C419
            return None  # asked by a list: a generator takes twice as long
        now = known(count)
        numbers = self._numbers.get((id(group), decays, now)) or self._computed(group, count, decays)
        if numbers is None:
            return None
        track, values, nodes = numbers
        key = (track.way, *state, *[n.aval for n in operands])
        recipe = self._recipes.known.get(key)
        if recipe is None:
            recipe = self._recorded(track, operands, list(state)[1:])
            if recipe is None:
                return None
            self._recipes.known[key] = recipe
            found = track.values(count, self._factor)  # there may be more now
            if found is None:  # the rule has branched by numbers of an earlier step
                return None
            values[:] = found
        for number in recipe.numbers:
            node = nodes.get(number)
            if node is None:
                node = nodes[number] = scalar(values[number[0]], number[1])
            operands.append(node)
        new, *rest = recipe.made.make(operands, device)
        return Array(new), dict(zip(recipe.slots, map(Array, rest), strict=True))

    def _computed(
        self, group: Mapping[str, Any], count: Any, decays: bool
    ) -> tuple[_Track, list[Any], dict[Any, Node]] | None:
        """Return the track of some parameters, its values at a count, and a place for nodes of them."""
        now = known(count)
        way = (id(group), decays, now == 1, self._factor == 1.0, self._array is not None)
        for _ in range(2):
            track = self._recipes.tracks.get(way)
            if track is None or track.source is not group:
                track = self._recipes.tracks[way] = _Track(way, group, decays, now, self._factor)
            values = track.values(count, self._factor)
            if values is not None:
                made = self._numbers[id(group), decays, now] = (track, values, {})
                return made
            self._recipes.forget()  # the rules go another way now
            self._numbers.clear()
        return None

    def _recorded(self, track: _Track, operands: Sequence[Node], names: list[str]) -> _Recipe | None:
        """Ask the rule; None if what it records is no template."""
        start = newest()
        with outside():
            watch = RECORDING.capture = _Symbols()
            try:
                p, g, *rest = [Array(n) for n in operands]
                factor = track.scale if self._array is None else rest.pop()
                state = dict(zip(names, rest, strict=True))
                new, arrays = self._ask(p, g, state, track.group, factor, track.step, track.decay)
            finally:
                RECORDING.capture = None
        results = [new._node, *[a._node for a in arrays.values()]]
        numbers = [*watch.symbols.items()]
        made = template(results, [*operands, *[node for node, _ in numbers]], start)
        if made is None:
            return None
        return _Recipe(made, [(s.index, n.aval.dtype) for n, s in numbers], tuple(arrays))
