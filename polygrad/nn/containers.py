"""Modules that hold modules.

Here: Sequential, ModuleList, ModuleDict, ParameterList.
Not here: the search for what is in them (`module.py`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from polygrad.errors import StateError
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter


class _Numbered(Module):
    """Entries in attributes called 0, 1, ..., so that the names of what is in them are dotted numbers."""

    @property
    def _all(self) -> list[Any]:
        own = vars(self)
        return [own[str(k)] for k in range(sum(name.isdigit() for name in own))]

    def append(self, entry: Any) -> Self:
        """Add an entry at the end; return self."""
        setattr(self, str(len(self)), entry)
        return self

    def extend(self, entries: Iterable[Any]) -> Self:
        """Add entries at the end; return self."""
        for entry in entries:
            self.append(entry)
        return self

    def insert(self, index: int, entry: Any) -> None:
        """Add an entry before the one at *index*."""
        entries = self._all
        entries.insert(index, entry)
        self._refill(entries)

    def _refill(self, entries: list[Any]) -> None:
        for k in range(len(self)):
            delattr(self, str(k))
        self.extend(entries)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all)

    def __getitem__(self, key: Any) -> Any:
        return type(self)._of(self._all[key]) if isinstance(key, slice) else self._all[key]

    def __setitem__(self, key: int, entry: Any) -> None:
        setattr(self, str(range(len(self))[key]), entry)

    def __delitem__(self, key: Any) -> None:
        entries = self._all
        del entries[key]
        self._refill(entries)

    @classmethod
    def _of(cls, entries: list[Any]) -> Self:
        return cls().extend(entries)


class Sequential(_Numbered):
    """Modules, or any functions of an array, one after the other; a dict gives them names.

    Examples
    --------
    >>> import polygrad as pg
    >>> net = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.ReLU(), pg.nn.Linear(8, 2))
    >>> net(pg.ones((1, 4), dtype=pg.float32)).shape, len(net), net.num_parameters()
    ((1, 2), 3, 58)
    """

    def __init__(self, *steps: Any) -> None:
        self._names: tuple[str, ...] = ()
        if len(steps) == 1 and isinstance(steps[0], Mapping):
            for name, step in steps[0].items():
                setattr(self, name, step)
            self._names = tuple(steps[0])
        else:
            self.extend(steps)

    @property
    def _all(self) -> list[Any]:
        own = vars(self)
        return [own[name] for name in self._names] + super()._all

    @property
    def steps(self) -> list[Any]:
        """The steps, in order."""
        return self._all

    def append(self, step: Any) -> Self:
        """Add a step at the end; return self."""
        if not callable(step):
            raise TypeError(f"cannot chain {step!r}: a step is a module or a function of an array")
        setattr(self, str(len(self) - len(self._names)), step)  # its parameters are called 0.weight, 1.weight, ...
        return self

    def _refill(self, entries: list[Any]) -> None:
        if self._names:
            raise StateError("cannot insert into or delete from a Sequential with names: make a new one")
        super()._refill(entries)

    def forward(self, x: Any) -> Any:
        """Return the last step's output."""
        for step in self._all:
            x = step(x)
        return x


class ModuleList(_Numbered):
    """A list of modules; a plain list in an attribute does as well.

    Examples
    --------
    >>> import polygrad as pg
    >>> layers = pg.nn.ModuleList(pg.nn.Linear(2, 2) for _ in range(3))
    >>> len(layers), layers[1].weight.shape, [n for n, _ in layers.named_parameters()][:2]
    (3, (2, 2), ['0.weight', '0.bias'])
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self.extend(modules)


class ParameterList(_Numbered):
    """A list of parameters; arrays in it become parameters."""

    def __init__(self, parameters: Iterable[Any] = ()) -> None:
        self.extend(parameters)

    def append(self, entry: Any) -> Self:
        """Add a parameter at the end; return self."""
        return super().append(entry if isinstance(entry, Parameter) else Parameter(entry))


class ModuleDict(Module):
    """A dict of modules; a plain dict in an attribute does as well.

    Examples
    --------
    >>> import polygrad as pg
    >>> heads = pg.nn.ModuleDict({"a": pg.nn.Linear(2, 1), "b": pg.nn.Linear(2, 3)})
    >>> sorted(heads), [n for n, _ in heads.named_parameters()]
    (['a', 'b'], ['a.weight', 'a.bias', 'b.weight', 'b.bias'])
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self._keys: list[str] = []
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Set the modules of another dict."""
        for name, module in modules.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        if name not in self._keys:
            if "." in name or not name or hasattr(self, name):
                raise StateError(
                    f"cannot call a module {name!r}: names have no dots, and are no attributes of ModuleDict"
                )
            self._keys.append(name)
        setattr(self, name, module)

    def __getitem__(self, name: str) -> Any:
        if name not in self._keys:
            raise KeyError(name)
        return vars(self)[name]

    def __delitem__(self, name: str) -> None:
        if name not in self._keys:
            raise KeyError(name)
        self._keys.remove(name)
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> list[str]:
        """Return the names."""
        return list(self._keys)

    def values(self) -> list[Any]:
        """Return the modules."""
        return [self[name] for name in self._keys]

    def items(self) -> list[tuple[str, Any]]:
        """Return names and modules."""
        return [(name, self[name]) for name in self._keys]
