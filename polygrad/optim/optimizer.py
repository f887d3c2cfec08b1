"""Optimizer: from gradients to new values, in one realize.

Here: groups, gradients by name, the step, saving.
Not here: the update formulas (`algorithms.py`), schedules (`lr_scheduler.py`).

Hyper-parameters are Python numbers in `groups`, read at each step and passed to kernels as launch arguments: changing
them builds nothing. State is kept by the parameter's name; a parameter that appears twice (tied weights) is updated
once. A 16-bit parameter has its value in float32 in the state too, as ``"master"``, so that steps smaller than a digit
of the parameter add up; if somebody else changes the parameter, the master follows it at the next step.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from polygrad import dtypes
from polygrad.array.capturing import capturing, outside
from polygrad.array.creation import asarray
from polygrad.array.evaluation import realize
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.rebinding import rebind, settle
from polygrad.array.recording import no_grad
from polygrad.errors import CaptureError, DTypeError, GradError, ShapeError, StateError
from polygrad.nn import pending
from polygrad.optim.captured import Numbers, count_up
from polygrad.optim.recipes import Recipes, Step
from polygrad.optim.turns import Member, in_turns
from polygrad.runtime.devices import state as device_state

SHAPED = frozenset({"reshape", "permute"})

State = dict[str, Any]  # of one parameter: its count of steps, and arrays
Moved = tuple[str, Array, Array, State]  # a name, its parameter, the new value and the new state
MASTER = "master"  # the state array that holds a 16-bit parameter's value in float32
_NONFINITE = ("allow", "skip", "raise")


def named_arrays(tree: Any, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a tree with dotted names; a module's names are those of its parameters.

    >>> import polygrad as pg
    >>> [name for name, _ in named_arrays({"a": [pg.ones(1), pg.ones(1)], "b": None})]
    ['a.0', 'a.1']
    """
    if isinstance(tree, Array):
        yield prefix or "0", tree
    elif hasattr(tree, "named_parameters"):
        yield from tree.named_parameters(prefix)
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from named_arrays(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, (list, tuple)):
        for key, value in enumerate(tree):
            yield from named_arrays(value, f"{prefix}.{key}" if prefix else str(key))
    elif tree is not None:
        raise GradError(
            f"cannot take {type(tree).__name__} as a parameter or gradient: it is an array, or a tree of arrays"
        )


def _listed(params: Any) -> Any:
    """Return *params* with a generator, such as ``model.parameters()``, made a list."""
    tree = isinstance(params, (Array, Mapping, list, tuple)) or hasattr(params, "named_parameters")
    return params if tree or not isinstance(params, Iterable) else list(params)


def working(array: Array) -> Array:
    """Return *array* in the dtype that updates are computed in: float32 for the 16-bit floats."""
    return array.astype(dtypes.float32) if array.dtype.itemsize < dtypes.float32.itemsize else array


def global_norm(gradients: Iterable[Array], factor: float = 1.0) -> Array:
    """Return the root of the sum of the squares of all gradients times *factor*, in float32 at least, on the first's
    device.
    """
    total: Any = None
    for gradient in gradients:
        wide = working(gradient)
        square = FUNCTIONS["sum"](FUNCTIONS["square"](wide if factor == 1.0 else wide * factor))
        total = square if total is None else total + square.to_device(total.device).astype(total.dtype, copy=False)
    return FUNCTIONS["sqrt"](total)  # type: ignore[no-any-return]


class Optimizer:
    """The base of all optimisers: subclasses give `slots`, the names of their state arrays, and `update`.

    Parameters
    ----------
    params : Module, tree of arrays, iterable of arrays, or list of groups
        What to update. A group is a dict with ``"params"`` and hyper-parameters of its own.
    **defaults
        Hyper-parameters of groups that have none of their own.

    Raises
    ------
    GradError
        If there are no parameters.
    DTypeError
        If one is not of a float dtype.
    """

    slots: tuple[str, ...] = ()
    captures_itself = True  # a compiled step reads counts and hyper-parameters at each call

    def __init__(self, params: Any, **defaults: Any) -> None:
        given = _listed(params)
        self._grouped = (
            isinstance(given, list) and bool(given) and all(isinstance(g, dict) and "params" in g for g in given)
        )
        self.groups: list[dict[str, Any]] = []
        self.state: dict[str, State] = {}
        self.defaults = defaults
        self._norm: Array | None = None  # one array for all steps, which a compiled step gives new values
        self.share: frozenset[str] | None = None  # the parameters that this process moves, if it does not move all
        self._numbers: Numbers | None = None  # of a step that is captured
        self._recipes = Recipes()
        self.version = 0  # grows when the state or the groups are replaced: a compiled step is then captured anew
        self.skipped = 0  # steps that were not taken because a gradient was not finite
        self._initial: list[float] = []  # the learning rates before any schedule changed them
        self._canonical: dict[str, str] = {}  # from every name to the first name of the same array
        self._first: dict[int, str] = {}
        for group in given if self._grouped else [{"params": given}]:
            self._add(group)
        if not self._canonical:
            raise GradError("cannot optimise nothing: no parameters were given; a generator can be read only once")
        realize([p for _, p, _ in self._members()])

    def add_group(self, group: Mapping[str, Any]) -> None:
        """Add a group: a dict with ``"params"``, which have names of their own, and hyper-parameters.

        Raises
        ------
        GradError
            If a name or hyper-parameter is taken or unknown; nothing was added.
        DTypeError
            If a parameter is not of a float dtype; nothing was added.
        """
        names, first = dict(self._canonical), dict(self._first)
        try:
            self._add(group)
        except BaseException:
            self._canonical, self._first = names, first
            raise
        self.version += 1
        realize(list(self.groups[-1]["params"].values()))

    def _add(self, group: Mapping[str, Any]) -> None:
        unknown = [key for key in group if key not in self.defaults and key != "params"]
        if unknown:
            raise GradError(
                f"{type(self).__name__} has no hyper-parameter {unknown[0]!r}; it has {', '.join(self.defaults)}"
            )
        params = _listed(group["params"])
        own: dict[str, Array] = {}
        for name, array in named_arrays(params, self._prefix(len(self.groups), params)):
            if name in self._canonical:
                raise GradError(f"two parameters are called {name!r}: give the groups dicts with names of their own")
            if dtypes.KINDS[array.dtype] != "float":
                raise DTypeError(f"cannot optimise {name}, which is {array.dtype.name}: only float arrays can be")
            self._canonical[name] = self._first.setdefault(id(array), name)
            if self._canonical[name] == name:
                own[name] = array
        self.groups.append({**self.defaults, **group, "params": own})

    def _prefix(self, k: int, params: Any) -> str:
        return (
            str(k) if self._grouped and not (isinstance(params, Mapping) or hasattr(params, "named_parameters")) else ""
        )

    def _members(self) -> Iterator[tuple[str, Array, dict[str, Any]]]:
        for group in self.groups:
            for name, parameter in group["params"].items():
                yield name, parameter, group

    @property
    def lr(self) -> float:
        """The learning rate of the first group; setting it sets that of all groups."""
        return float(self.groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.groups:
            group["lr"] = value
        self._initial = []

    def initial_rates(self) -> list[float]:
        """Return the groups' learning rates as they were before the first schedule was bound, or since `lr` was set."""
        for group in self.groups[len(self._initial) :]:
            self._initial.append(float(group["lr"]))
        return list(self._initial)

    @property
    def norm(self) -> Array | None:
        """The norm of all gradients, before clipping, at the last step that had to know it."""
        return None if self._norm is None else self._norm.detach()

    def zero_grad(self) -> None:
        """Forget the gradients: each parameter's `.grad` becomes None."""
        for _, parameter, _ in self._members():
            parameter.grad = None

    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return a parameter's new value and new state arrays; subclasses write it.

        Parameters
        ----------
        parameter, gradient : Array
            In the working dtype.
        state : dict
            ``state["step"]`` counts this step as 1 if it is the first; then the arrays of `slots`.
        group : mapping
            The hyper-parameters.
        decay : float
            The weight decay of this parameter: 0 if it is marked ``no_decay``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

    def step(
        self,
        grads: Any = None,
        *,
        also: Any = (),
        max_norm: float | None = None,
        scale: float = 1.0,
        nonfinite: str = "allow",
    ) -> None:
        """Move every parameter that has a gradient, once.

        New values, new state, what buffers wait for (running statistics) and *also* are computed together; parameters
        change only when all of it worked. Large models (from 16 MiB on) get theirs in turns, once the gradients and all
        else are there, so that old and new values need not all fit: a device that fails between two turns, which their
        kernels give no reason for, leaves some parameters moved, and the error has a note that says so.

        Parameters
        ----------
        grads : tree of arrays, optional
            Gradients in the form of the parameters (a list for a list, names for names); without it each parameter's
            `.grad`. Of a parameter given twice the distinct gradients are added.
        also : tree of arrays
            What to compute with it, such as the loss, which then costs nothing more when it is read.
        max_norm : float, optional
            Scale the gradients so that the norm of all of them together is at most this, as part of the updates'
            kernels: nothing is read. The norm before is then in `norm`.
        scale : float
            What the loss was multiplied with; gradients are divided by it first.
        nonfinite : {"allow", "skip", "raise"}
            What to do if a gradient is infinite or no number, or so large that its square is: step all the same, leave
            everything as it was and count it in `skipped`, or raise GradError. The last two read one value.

        Raises
        ------
        GradError
            If no parameter has a gradient, or a gradient belongs to none; with ``nonfinite="raise"`` if one is not
            finite: nothing was changed.
        ShapeError
            If a gradient has another shape than its parameter.
        OutOfBounds
            If a launch of the step met a bad index, such as a label that is no class; nothing was changed.
        """
        self.attempt(grads, also=also, max_norm=max_norm, scale=scale, nonfinite=nonfinite)

    def attempt(
        self,
        grads: Any = None,
        *,
        also: Any = (),
        max_norm: float | None = None,
        scale: float = 1.0,
        nonfinite: str = "skip",
    ) -> bool:
        """Do as `step` does, with ``nonfinite="skip"`` unless told otherwise; return whether the step was taken."""
        _check_step(max_norm, scale, nonfinite)
        found = self._own_gradients() if grads is None else self._given_gradients(grads)
        if capturing() is not None and nonfinite != "allow":
            raise CaptureError(
                f"cannot compile a step with nonfinite={nonfinite!r}, which looks at a value: use 'allow', and look at "
                "the loss outside"
            )
        if not found:
            raise GradError("cannot step: no parameter has a gradient; call loss.backward() first, or step(grads)")
        members = [m for m in self._members() if m[0] in found and (self.share is None or m[0] in self.share)]
        turns = in_turns(members) if capturing() is None else [members]
        with no_grad():
            norm, factor = self._scaling(found, max_norm, scale, nonfinite)
            moved = self._all_moved(members, found, factor) if len(turns) == 1 else []
            first = _values(moved) if len(turns) == 1 else [found[name] for name, _, _ in members]
            staying = self._arranged(found) if grads is None else []
            realize(first, pending.take(), also, [] if norm is None else [norm], staying)
            for device in dict.fromkeys(p.device for _, p, _ in members):
                opened = device_state(device)
                with opened.lock:
                    opened.check()
            capture = capturing()
            if capture is not None:
                capture.checked = True
            self._take_norm(norm)
            if norm is not None and nonfinite != "allow" and not math.isfinite(float(norm)):
                self._refuse(found, nonfinite)
                return False
            for turn in turns:
                if len(turns) > 1:
                    moved = self._turn(turn, found, factor, turn is turns[0])
                for name, parameter, value, new in moved:
                    settle(parameter, value)
                    self._advance(name, new)
            if capturing() is not None:
                count_up(self.state, [name for name, _, _ in members])
        return True

    def _all_moved(self, members: list[Member], found: Mapping[str, Array], factor: Any) -> list[Moved]:
        self._numbers = None
        if capturing() is not None:
            with outside():  # a step that made first state would make it at each replay
                for name, p, _ in members:
                    if name not in self.state:
                        self.state[name] = self._fresh(p, working(p.detach()))
                realize([list(self.state[name].values())[1:] for name, _, _ in members])
            self._numbers = Numbers(self, [name for name, _, _ in members])
        step = self._recipes.for_step(self._asked, factor) if getattr(self.update, "formula", False) else None
        return [(name, p, *self._moved(name, p, found[name], group, factor, step)) for name, p, group in members]

    def _turn(self, turn: list[Member], found: Mapping[str, Array], factor: Any, first: bool) -> list[Moved]:
        """Compute the new values of some parameters, while those of earlier turns have theirs."""
        moved = self._all_moved(turn, found, factor)
        try:
            realize(_values(moved))
        except Exception as error:
            if not first:
                error.add_note("some parameters had been moved by then, and others not: load what was saved last")
            raise
        return moved

    def _take_norm(self, norm: Array | None) -> None:
        if norm is not None and self._norm is not None and self._norm.dtype is norm.dtype:
            rebind(self._norm, norm)
        elif norm is not None:
            self._norm = norm

    def _advance(self, name: str, new: State) -> None:
        """Take the new state of a parameter, under the handles of the old one: a compiled step finds them again."""
        state = self.state.get(name)
        if state is None or state.keys() != new.keys():
            if capturing() is not None:
                raise CaptureError(f"cannot compile a step that gives {name} state of another form: take one before")
            self.state[name] = new
            return
        for key, value in new.items():
            if key != "step":
                settle(state[key], value)
            elif capturing() is None:
                state[key] = value

    def _scaling(
        self, found: Mapping[str, Array], max_norm: float | None, scale: float, nonfinite: str
    ) -> tuple[Array | None, Any]:
        """Return the norm of all gradients, if it must be known, and what the gradients are multiplied with."""
        back = 1.0 / scale
        if max_norm is None and nonfinite == "allow":
            return None, back
        norm = global_norm([g.detach() for g in found.values()], back)
        if max_norm is None:
            return norm, back
        return norm, max_norm * back / FUNCTIONS["maximum"](norm, max_norm)

    def _refuse(self, found: Mapping[str, Array], nonfinite: str) -> None:
        self.skipped += 1
        if nonfinite == "raise":
            bad = [n for n, g in found.items() if not bool(FUNCTIONS["all"](FUNCTIONS["isfinite"](g.detach())))]
            which = f"the gradient of {bad[0]}" if len(bad) == 1 else f"the gradients of {', '.join(bad[:8])}"
            raise GradError(
                f"cannot step: {which if bad else 'the norm of the gradients'} is not finite; nothing was changed; a "
                "smaller learning rate, max_norm=... or pg.detect_anomaly() may help"
            )

    def _moved(
        self, name: str, parameter: Array, gradient: Array, group: dict[str, Any], factor: Any, step: Step | None
    ) -> tuple[Array, State]:
        if gradient._node.aval.shape != parameter._node.aval.shape:
            raise ShapeError(
                f"cannot step {name} of shape {list(parameter.shape)} by a gradient of shape {list(gradient.shape)}"
            )
        before = self.state.get(name) or self._fresh(parameter, working(parameter.detach()))
        count = (before["step"] if self._numbers is None else self._numbers.count(name)) + 1
        decays = not getattr(parameter, "no_decay", False)
        made = None if step is None else step.moved(parameter, gradient, before, group, count, decays)
        if made is not None:
            return made[0], {"step": count, **made[1]}
        device = parameter.device
        here = {k: a.to_device(device) for k, a in before.items() if k != "step"}
        if isinstance(factor, Array):
            factor = factor.to_device(device)
        if self._numbers is not None:
            group = self._numbers.group(group)
        decay = group.get("weight_decay", 0.0) if decays else 0.0
        slope = gradient.detach().to_device(device)
        new, arrays = self._asked(parameter.detach(), slope, here, group, factor, count, decay)
        return new, {"step": count, **arrays}

    def _asked(
        self,
        parameter: Array,
        gradient: Array,
        state: dict[str, Array],
        group: Mapping[str, Any],
        factor: Any,
        count: Any,
        decay: Any,
    ) -> tuple[Array, dict[str, Array]]:
        """Ask the update rule; return the new value in the parameter's dtype, and the new state arrays."""
        value = working(parameter)
        slope: Any = gradient.astype(value.dtype, copy=False)
        if isinstance(factor, Array):
            slope = slope * factor.astype(value.dtype, copy=False)
        elif factor != 1.0:
            slope = slope * factor
        here = dict(state)
        master = here.pop(MASTER, None)
        if master is not None:  # unless somebody has changed the parameter, it is the master's rounded value
            kept = FUNCTIONS["equal"](master.astype(parameter.dtype), parameter)
            value = FUNCTIONS["where"](kept, master, value)
        new, arrays = self.update(value, slope, {"step": count, **here}, group, decay)
        after = {k: arrays[k] for k in self.slots}
        if MASTER in self._slots(parameter):  # which a model that was moved to 16 bits since has not had yet
            after[MASTER] = new
        return new.astype(parameter.dtype, copy=False), after

    def _fresh(self, parameter: Array, value: Array) -> State:
        first = {k: self.first_state(k, value) for k in self.slots}
        return {"step": 0, **first, **({MASTER: value} if MASTER in self._slots(parameter) else {})}

    def first_state(self, slot: str, value: Array) -> Array:  # noqa: ARG002  for subclasses that tell slots apart
        """Return what a state array is before the first step: zeros, unless a subclass says otherwise."""
        return FUNCTIONS["zeros_like"](value)  # type: ignore[no-any-return]

    def _slots(self, parameter: Array) -> tuple[str, ...]:
        narrow = parameter.dtype.itemsize < dtypes.float32.itemsize
        return (*self.slots, MASTER) if narrow else self.slots

    def _own_gradients(self) -> dict[str, Array]:
        return {name: p.grad for name, p, _ in self._members() if p.grad is not None}

    @staticmethod
    def _arranged(found: Mapping[str, Array]) -> list[Array]:
        """Return the gradients that are sums in another shape, such as a bias's, which nothing else keeps.

        They stay with their parameters: to look at one later would compute the backward pass again.
        """
        return [g for g in found.values() if g._node.storage is None and g._node.spec.op.kind in SHAPED]

    def _given_gradients(self, grads: Any) -> dict[str, Array]:
        found: dict[str, dict[int, Array]] = {}
        for name, gradient in self._walk(_listed(grads)):
            canonical = self._canonical.get(name)
            if canonical is None:
                known = ", ".join(list(self._canonical)[:8])
                raise GradError(f"cannot step by a gradient called {name!r}: the parameters are {known}")
            found.setdefault(canonical, {})[id(gradient)] = gradient
        out = {}
        with no_grad():
            for name, several in found.items():
                total, *rest = several.values()
                for gradient in rest:
                    total = FUNCTIONS["add"](total, gradient)
                out[name] = total
        return out

    def _walk(self, grads: Any) -> Iterator[tuple[str, Array]]:
        if self._grouped and isinstance(grads, (list, tuple)):
            for k, tree in enumerate(grads):
                yield from named_arrays(tree, "" if isinstance(tree, Mapping) else str(k))
        else:
            yield from named_arrays(grads)

    def state_dict(self) -> dict[str, Any]:
        """Return hyper-parameters and state by name, as constants that later steps do not change."""
        groups = [{**{k: v for k, v in g.items() if k != "params"}, "params": list(g["params"])} for g in self.groups]
        return {"groups": groups, "state": {name: _constant(state) for name, state in self.state.items()}}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take hyper-parameters and state from what `state_dict` returned; all of it, or nothing if anything is wrong.

        Raises
        ------
        StateError
            If the groups, names, state arrays or shapes differ; the sentence says which.
        """
        faults = self._misfits(saved)
        if faults:
            raise StateError(f"cannot load this state into {type(self).__name__}: {'; '.join(faults)}")
        members = {name: p for name, p, _ in self._members()}
        loaded = {name: self._loaded(members[name], state) for name, state in saved["state"].items()}
        for group, other in zip(self.groups, saved["groups"], strict=True):
            group.update({k: _like(group[k], v) for k, v in other.items() if k != "params"})
        self.state = loaded
        self.version += 1

    def _loaded(self, parameter: Array, state: Mapping[str, Any]) -> State:
        wanted = dtypes.float32 if parameter.dtype.itemsize < dtypes.float32.itemsize else parameter.dtype
        arrays = {
            k: asarray(state[k]).detach().astype(wanted, copy=False).to_device(parameter.device)
            for k in self._slots(parameter)
        }
        return {"step": int(state["step"]), **arrays}

    def _misfits(self, saved: Mapping[str, Any]) -> list[str]:
        if not {"groups", "state"} <= set(saved):
            return ["it has no 'groups' and 'state'"]
        if [g.get("params") for g in saved["groups"]] != [list(g["params"]) for g in self.groups]:
            return ["its groups hold other parameters"]
        faults = []
        for group in saved["groups"]:
            own = self.groups[0]
            faults += [f"it has a hyper-parameter {k!r}, which is unknown here" for k in group if k not in own]
            faults += [
                f"its {k} is {v!r}" for k, v in group.items() if k in own and k != "params" and not _fits(own[k], v)
            ]
        members = {name: p for name, p, _ in self._members()}
        for name, state in saved["state"].items():
            if name not in members:
                faults.append(f"{name} is no parameter")
                continue
            faults += [f"{name} lacks {k!r}" for k in ("step", *self._slots(members[name])) if k not in state]
            shape = members[name].shape
            faults += [
                f"{name}'s {k!r} has shape {list(asarray(state[k]).shape)} and needs {list(shape)}"
                for k in self._slots(members[name])
                if k in state and asarray(state[k]).shape != shape
            ]
        return faults

    def __repr__(self) -> str:
        first = {k: v for k, v in self.groups[0].items() if k != "params"}
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in first.items())})"


def _values(moved: list[Moved]) -> list[Any]:
    return [[value, list(new.values())[1:]] for _, _, value, new in moved]


def _constant(state: State) -> State:
    return {key: value.detach() if isinstance(value, Array) else value for key, value in state.items()}


def _check_step(max_norm: float | None, scale: float, nonfinite: str) -> None:
    if max_norm is not None and not max_norm > 0:
        raise GradError(f"cannot clip gradients to the norm {max_norm}: it must be positive")
    if not (scale > 0 and math.isfinite(scale)):
        raise GradError(f"cannot divide gradients by the scale {scale}: it must be positive and finite")
    if nonfinite not in _NONFINITE:
        raise GradError(f"cannot step with nonfinite={nonfinite!r}: it is one of {', '.join(map(repr, _NONFINITE))}")


def _fits(own: Any, given: Any) -> bool:
    """Whether a saved hyper-parameter can stand for one's own: a flag for a flag, numbers for numbers."""
    if isinstance(own, tuple):
        return isinstance(given, (list, tuple)) and len(given) == len(own) and all(map(_fits, own, given))
    if isinstance(own, bool) or own is None:
        return isinstance(given, type(own))
    return isinstance(given, (int, float)) and not isinstance(given, bool)


def _like(own: Any, given: Any) -> Any:
    """Return a saved hyper-parameter in the form of one's own: JSON has no tuples."""
    return tuple(given) if isinstance(own, tuple) else given
