"""Module: a part of a model, which finds the parameters, buffers and modules among its attributes.

Here: the search, names, training and evaluation mode, moving, state.
Not here: any layer.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from polygrad import dtypes
from polygrad.array.creation import asarray
from polygrad.array.object import Array
from polygrad.array.rebinding import rebind
from polygrad.array.recording import no_grad
from polygrad.errors import StateError
from polygrad.nn.parameter import Parameter

_BUFFERS = "_buffers"  # the attribute that holds the names of buffers, and what `register_buffer` was told of them
_HOOKS = "_forward_hooks"
_OWN = (_BUFFERS, _HOOKS)  # attributes that are not searched
Hook = Callable[["Module", tuple[Any, ...], Any], Any]


class LoadReport(NamedTuple):
    """Which names a state lacked, and which it had too many; both empty after a strict load."""

    missing: list[str]
    unexpected: list[str]


class _Buffer(NamedTuple):
    """Whether `state_dict` has a buffer, and whether it takes part in conversions to another dtype."""

    persistent: bool
    converts: bool


class HookHandle:
    """What `register_forward_hook` returns; `remove` ends the hook's work."""

    def __init__(self, hooks: dict[int, Hook], key: int) -> None:
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        """Call the hook no more."""
        self._hooks.pop(self._key, None)


class Module:
    """A part of a model: subclass it, put parameters and modules into attributes, and write `forward`.

    Attributes, and lists, tuples and dicts in attributes, are searched for parameters and modules, in the order in
    which they were set; names are dotted, such as ``layers.0.weight``. An object that is found twice counts once, under
    its first name.

    Examples
    --------
    >>> import polygrad as pg
    >>> class Net(pg.nn.Module):
    ...     def __init__(self):
    ...         self.layers = [pg.nn.Linear(4, 8), pg.nn.Linear(8, 2)]
    ...
    ...     def forward(self, x):
    ...         return self.layers[1](pg.nn.relu(self.layers[0](x)))
    >>> net = Net()
    >>> net(pg.zeros((3, 4), dtype=pg.float32)).shape
    (3, 2)
    >>> [name for name, _ in net.named_parameters()]
    ['layers.0.weight', 'layers.0.bias', 'layers.1.weight', 'layers.1.bias']
    """

    training: bool = True
    # A pattern of the names that a state of PyTorch's has and that are nothing here; loading passes over them.
    foreign_state: str = ""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward: write one, def forward(self, x)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return `forward` of the arguments."""
        out = self.forward(*args, **kwargs)
        hooks = self.__dict__.get(_HOOKS)
        if hooks:
            for hook in list(hooks.values()):
                changed = hook(self, args, out)
                out = out if changed is None else changed
        return out

    def register_forward_hook(self, hook: Hook) -> HookHandle:
        """Call ``hook(module, args, output)`` after each forward; what it returns, unless None, replaces the output."""
        hooks = vars(self).setdefault(_HOOKS, {})
        key = max(hooks, default=0) + 1
        hooks[key] = hook
        return HookHandle(hooks, key)

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """Yield the modules directly in this one, with their names."""
        return ((name, found) for name, found in _entries(vars(self), "") if isinstance(found, Module))

    def children(self) -> Iterator["Module"]:
        """Yield the modules directly in this one."""
        return (found for _, found in self.named_children())

    def apply(self, function: Callable[["Module"], Any]) -> Self:
        """Call *function* with each module in this one and with this one, the inner ones first; return self."""
        for module in [*self.modules()][::-1]:
            function(module)
        return self

    def get_submodule(self, name: str) -> "Module":
        """Return the module with a dotted name; "" is this one."""
        found: dict[str, Module] = dict(self.named_modules(remove_duplicate=False))
        if name not in found:
            raise StateError(f"{type(self).__name__} has no module {name!r}; it has {_listed([*found][1:]) or 'none'}")
        return found[name]

    def get_parameter(self, name: str) -> Parameter:
        """Return the parameter with a dotted name."""
        found = dict(self.named_parameters(remove_duplicate=False))
        if name not in found:
            raise StateError(f"{type(self).__name__} has no parameter {name!r}; it has {_listed([*found]) or 'none'}")
        return found[name]

    def add_module(self, name: str, module: "Module") -> None:
        """Set attribute *name* to a module."""
        setattr(self, name, module)

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Set attribute *name* to a parameter, or to None where there is none."""
        setattr(self, name, parameter)

    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, "Module"]]:
        """Yield this module and all modules in it, each object once, with dotted names; its own name is *prefix*.

        Without *remove_duplicate* a module is yielded at each of its places.
        """
        return _modules(self, prefix, set(), remove_duplicate)

    def modules(self) -> Iterator["Module"]:
        """Yield this module and all modules in it, each object once."""
        return (module for _, module in self.named_modules())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield parameters with dotted names, each object once: a tied weight goes by its first name.

        Without *recurse* those directly in this module; without *remove_duplicate* every name of a tied weight.
        """
        seen: set[int] = set()
        for place, module in self.named_modules(prefix, remove_duplicate) if recurse else [(prefix, self)]:
            for name, found in _entries(vars(module), place):
                if isinstance(found, Parameter) and not (remove_duplicate and id(found) in seen):
                    seen.add(id(found))
                    yield name, found

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters, each object once."""
        return (parameter for _, parameter in self.named_parameters())

    def num_parameters(self, only_trainable: bool = False) -> int:
        """Return the number of elements of all parameters, or of those that need gradients."""
        return sum(p.size for p in self.parameters() if p.requires_grad or not only_trainable)

    def register_buffer(self, name: str, value: Array, persistent: bool = True, converts: bool = True) -> None:
        """Set attribute *name* to an array that belongs to the state but is not learnt.

        Parameters
        ----------
        name : str
            The attribute.
        value : Array
            Its first value.
        persistent : bool
            Whether `state_dict` has it.
        converts : bool
            Whether ``to(dtype=...)`` converts it; a table of angles, say, has to stay float32.
        """
        if "." in name or not name:
            raise StateError(f"cannot register a buffer as {name!r}: the name is an attribute's, without dots")
        setattr(self, name, value)
        vars(self).setdefault(_BUFFERS, {})[name] = _Buffer(persistent, converts)

    def buffers(self) -> Iterator[Array]:
        """Yield the buffers."""
        return (buffer for _, buffer in self.named_buffers())

    def named_buffers(self, prefix: str = "", *, persistent_only: bool = False) -> Iterator[tuple[str, Array]]:
        """Yield buffers with dotted names."""
        for place, module in self.named_modules(prefix):
            for name, facts in vars(module).get(_BUFFERS, {}).items():
                if facts.persistent or not persistent_only:
                    yield _joined(place, name), getattr(module, name)

    def train(self, mode: bool = True) -> Self:
        """Put all modules into training mode, or with False into evaluation mode; return self."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Put all modules into evaluation mode: no dropout, running statistics used and kept; return self."""
        return self.train(False)

    def to(self, device: Any = None, dtype: Any = None) -> Self:
        """Move parameters and buffers, under the same handles; *dtype* converts those of float dtypes. Return self.

        An optimiser over the parameters goes on: its state follows at its next step. A dtype may be given alone, as in
        ``model.to(pg.bfloat16)``.
        """
        if dtype is None and hasattr(device, "itemsize"):
            device, dtype = None, device
        wanted = None if dtype is None else dtypes.as_dtype(dtype)
        with no_grad():
            for parameter in self.parameters():
                _move(parameter, device, wanted)
            for module in self.modules():
                for name, facts in vars(module).get(_BUFFERS, {}).items():
                    _move(getattr(module, name), device, wanted if facts.converts else None)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters: each `.grad` becomes None, or zeros without *set_to_none*."""
        for parameter in self.parameters():
            grad = parameter.grad
            parameter.grad = None if set_to_none or grad is None else grad.detach() * 0.0

    def requires_grad_(self, wanted: bool = True) -> Self:
        """Make all parameters need gradients, or freeze them; return self."""
        for parameter in self.parameters():
            parameter.requires_grad = wanted
        return self

    def state_dict(self) -> dict[str, Array]:
        """Return parameters and persistent buffers by name, as constants that later steps do not change."""
        return {name: array.detach() for name, array in self._state()}

    def _state(self) -> Iterator[tuple[str, Array]]:
        yield from self.named_parameters()
        yield from self.named_buffers(persistent_only=True)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> LoadReport:
        """Take values from *state*; all of them, or none if anything is wrong.

        Parameters
        ----------
        state : mapping of names to arrays
            Arrays, or what `asarray` takes; cast to each parameter's dtype, and moved to its device.
        strict : bool
            Whether missing and unexpected names are errors; wrong shapes always are. Any name of a tied weight will do,
            and PyTorch's ``num_batches_tracked``, which nothing here needs, is passed over.

        Returns
        -------
        LoadReport
            The names that were missing and unexpected.

        Raises
        ------
        StateError
            If *state* does not fit; the sentence names all that is wrong, and nothing was changed.
        """
        own = dict(self._state())
        source = self._sources(own, state)
        known = {*own, *self._other_names(own)}
        unexpected = [n for n in state if n not in known and not self._is_foreign(n)]
        report = LoadReport([n for n in own if n not in source], unexpected)
        given = {n: asarray(state[source[n]]).detach() for n in own if n in source}
        refuse_misfits(f"{type(self).__name__}", report if strict else LoadReport([], []), given, own)
        moved = {n: a.to_device(own[n].device) for n, a in given.items()}
        with no_grad():
            for name, array in moved.items():
                rebind(own[name], array)
        return report

    def _other_names(self, own: Mapping[str, Array]) -> dict[str, str]:
        """Return the further names of tied parameters, and for each the first name."""
        first = {id(array): name for name, array in own.items()}
        every = self.named_parameters(remove_duplicate=False)
        return {name: first[id(p)] for name, p in every if name not in own and id(p) in first}

    def _sources(self, own: Mapping[str, Array], state: Mapping[str, Any]) -> dict[str, str]:
        """Return for each own name the name in *state* whose value it takes."""
        found = {first: name for name, first in self._other_names(own).items() if name in state}
        return {**found, **{name: name for name in own if name in state}}

    def _is_foreign(self, name: str) -> bool:
        return any(
            module.foreign_state
            and name.startswith(_joined(place, ""))
            and re.fullmatch(module.foreign_state, name[len(_joined(place, "")) :]) is not None
            for place, module in self.named_modules()
        )

    def __repr__(self) -> str:
        parts = [f"({name}): {text}" for name, text in self._described()]
        if not parts:
            return f"{type(self).__name__}({self.extra_repr()})"
        body = "\n".join(parts).replace("\n", "\n  ")
        return f"{type(self).__name__}(\n  {body}\n)"

    def extra_repr(self) -> str:
        """Return what `repr` says in the brackets of a module without modules in it; subclasses write it."""
        return ""

    def _described(self) -> Iterator[tuple[str, str]]:
        for name, found in _entries(vars(self), ""):
            if isinstance(found, Module):
                yield name, repr(found)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _entries(container: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield parameters and modules in attributes and in containers in them, with dotted names; do not enter modules."""
    pairs: Any = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in pairs:
        name = _joined(prefix, str(key))
        if isinstance(value, (Parameter, Module)):
            yield name, value
        elif isinstance(value, (dict, list, tuple)) and key not in _OWN:
            yield from _entries(value, name)


def _modules(module: Module, prefix: str, seen: set[int], once: bool) -> Iterator[tuple[str, Module]]:
    """Yield modules; *seen* holds those met so far, or without *once* those that this one lies in."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield prefix, module
    for name, found in _entries(vars(module), prefix):
        if isinstance(found, Module):
            yield from _modules(found, name, seen, once)
    if not once:
        seen.discard(id(module))


def _move(array: Array, device: Any, dtype: dtypes.DType | None) -> None:
    value, grad = array.detach(), array.grad
    moved = value if device is None else value.to_device(device)
    if dtype is not None and dtypes.KINDS[array.dtype] == "float" and dtype is not array.dtype:
        _cast_handle(array, moved.astype(dtype))
    elif moved is not value:
        rebind(array, moved)
    if grad is not None:
        array.grad = (grad if device is None else grad.to_device(device)).astype(array.dtype, copy=False)


def _cast_handle(array: Array, value: Array) -> None:
    """Bind a handle to a value of another dtype, which `rebind` would cast back."""
    needs = array.requires_grad
    array._node = value._node
    if needs:
        array._become_leaf(value._node)


def refuse_misfits(what: str, report: LoadReport, given: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Raise StateError, in one sentence, if names are missing or unexpected or shapes or kinds of dtypes differ."""
    faults = []
    if report.missing:
        faults.append(f"it lacks {_listed(report.missing)}")
    if report.unexpected:
        faults.append(f"it has {_listed(report.unexpected)}, which the {what} has not")
    for name, array in given.items():
        wanted = own[name]
        if array.shape != wanted.shape:
            faults.append(f"{name} has shape {list(array.shape)} and needs {list(wanted.shape)}")
        elif dtypes.KINDS[array.dtype] != dtypes.KINDS[wanted.dtype]:
            faults.append(f"{name} is {array.dtype.name} and needs {wanted.dtype.name}")
    if faults:
        hint = "; strict=False allows missing and unexpected names" if report.missing or report.unexpected else ""
        raise StateError(f"cannot load this state into {what}: {'; '.join(faults)}{hint}")


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def functional_call(module: Module, parameters: Mapping[str, Array], *args: Any, **kwargs: Any) -> Any:
    """Return ``module(*args, **kwargs)`` computed with other arrays in place of some parameters.

    This is how `pg.grad` and its like see a model as a function of its parameters. While it runs the module belongs to
    this call: one thread at a time.

    Parameters
    ----------
    module : Module
        The model.
    parameters : mapping of names to arrays
        Values for some or all of its `named_parameters`.

    Raises
    ------
    StateError
        If a name or a shape does not fit.

    Examples
    --------
    >>> import polygrad as pg
    >>> net = pg.nn.Linear(2, 1)
    >>> x = pg.ones((4, 2), dtype=pg.float32)
    >>> grads = pg.grad(lambda p: pg.nn.functional_call(net, p, x).sum())(dict(net.named_parameters()))
    >>> grads["bias"]
    Array([4.], dtype=float32, device='cpu:0')
    """
    own = dict(module.named_parameters())
    report = LoadReport([], [n for n in parameters if n not in own])
    refuse_misfits(type(module).__name__, report, {n: a for n, a in parameters.items() if n in own}, own)
    kept = {name: own[name]._node for name in parameters}
    try:
        for name, array in parameters.items():
            own[name]._node = array._node
        return module(*args, **kwargs)
    finally:
        for name, node in kept.items():
            own[name]._node = node
