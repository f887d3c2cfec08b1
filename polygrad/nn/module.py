"""Module: a part of a model, which finds the parameters, buffers and modules among its attributes.

Here: the search, names, training and evaluation mode, moving, state.
Not here: any layer.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from polygrad import dtypes
from polygrad.array.creation import asarray
from polygrad.array.object import Array
from polygrad.array.rebinding import rebind
from polygrad.array.recording import no_grad
from polygrad.errors import StateError
from polygrad.nn.parameter import Parameter

_BUFFERS = "_buffers"  # the attribute that holds the names of buffers, and whether they are saved


class LoadReport(NamedTuple):
    """Which names a state lacked, and which it had too many; both empty after a strict load."""

    missing: list[str]
    unexpected: list[str]


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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward: write one, def forward(self, x)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return `forward` of the arguments."""
        return self.forward(*args, **kwargs)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        """Yield this module and all modules in it, each object once, with dotted names; its own name is *prefix*."""
        return _modules(self, prefix, set())

    def modules(self) -> Iterator["Module"]:
        """Yield this module and all modules in it, each object once."""
        return (module for _, module in self.named_modules())

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield parameters with dotted names, each object once: a tied weight goes by its first name."""
        seen: set[int] = set()
        for place, module in self.named_modules(prefix):
            for name, found in _entries(vars(module), place):
                if isinstance(found, Parameter) and id(found) not in seen:
                    seen.add(id(found))
                    yield name, found

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters, each object once."""
        return (parameter for _, parameter in self.named_parameters())

    def num_parameters(self) -> int:
        """Return the number of elements of all parameters."""
        return sum(p.size for p in self.parameters())

    def register_buffer(self, name: str, value: Array, persistent: bool = True) -> None:
        """Set attribute *name* to an array that belongs to the state but is not learnt.

        Parameters
        ----------
        name : str
            The attribute.
        value : Array
            Its first value.
        persistent : bool
            Whether `state_dict` has it.
        """
        if "." in name or not name:
            raise StateError(f"cannot register a buffer as {name!r}: the name is an attribute's, without dots")
        setattr(self, name, value)
        vars(self).setdefault(_BUFFERS, {})[name] = persistent

    def named_buffers(self, prefix: str = "", *, persistent_only: bool = False) -> Iterator[tuple[str, Array]]:
        """Yield buffers with dotted names."""
        for place, module in self.named_modules(prefix):
            for name, persistent in vars(module).get(_BUFFERS, {}).items():
                if persistent or not persistent_only:
                    yield _joined(place, name), getattr(module, name)

    def train(self, mode: bool = True) -> Self:
        """Put all modules into training mode, or with False into evaluation mode; return self."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Put all modules into evaluation mode: no dropout, running statistics used and kept; return self."""
        return self.train(False)

    def to(self, device: Any = None, *, dtype: Any = None) -> Self:
        """Move parameters and buffers, under the same handles; *dtype* converts those of float dtypes. Return self."""
        wanted = None if dtype is None else dtypes.as_dtype(dtype)
        with no_grad():
            for array in [*self.parameters(), *(b for _, b in self.named_buffers())]:
                _move(array, device, wanted)
        return self

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters: each `.grad` becomes None."""
        for parameter in self.parameters():
            parameter.grad = None

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
            Whether missing and unexpected names are errors; wrong shapes always are.

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
        report = LoadReport([n for n in own if n not in state], [n for n in state if n not in own])
        given = {n: asarray(state[n]).detach() for n in own if n in state}
        refuse_misfits(f"{type(self).__name__}", report if strict else LoadReport([], []), given, own)
        moved = {n: a.to_device(own[n].device) for n, a in given.items()}
        with no_grad():
            for name, array in moved.items():
                rebind(own[name], array)
        return report

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
        elif isinstance(value, (dict, list, tuple)) and key != _BUFFERS:
            yield from _entries(value, name)


def _modules(module: Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield prefix, module
    for name, found in _entries(vars(module), prefix):
        if isinstance(found, Module):
            yield from _modules(found, name, seen)


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
