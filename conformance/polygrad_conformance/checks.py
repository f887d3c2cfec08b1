"""The register of checks: every test of the suite, by a stable id.

Here: `Check`, the decorator `check`, and `all_checks`, which reads the level modules in order.
Not here: what the checks do (a module a level), how they are run (`running.py`).
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polygrad_conformance.bench import Bench

LEVELS = {
    0: "contract", 1: "memory", 2: "launch", 3: "views", 4: "numerics", 5: "fusion", 6: "training", 7: "order",
    8: "errors", 9: "threads",
}  # fmt: skip
TIERS = {"core": 3, "numeric": 6, "complete": 9}  # each with the last level that it needs


@dataclass(frozen=True)
class Check:
    """One test.

    Attributes
    ----------
    id : str
        Such as ``"L2.scalar.add.float32"``; it never changes its meaning.
    function : str
        The test function, which a family of ids shares.
    run : callable
        Takes a Bench; raises AssertionError if the device is wrong.
    needs : tuple of str
        Capabilities without which the check does not apply: see `gating.capabilities`.
    random : bool
        Whether it draws kernels: such a test cannot be expected to fail.
    """

    id: str
    level: int
    function: str
    run: "Callable[[Bench], None]"
    needs: tuple[str, ...]
    random: bool
    doc: str


_checks: dict[str, Check] = {}


def check(
    pattern: str,
    each: Iterable[Sequence[Any]] = ((),),
    needs: "tuple[str, ...] | Callable[..., tuple[str, ...]]" = (),
    *,
    random: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function of (bench, *parameters) as one check for each of the parameter lists *each*.

    *pattern* is the id with ``{0}``, ``{1}``, ... for the parameters; *needs* may be a function of them.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        for parameters in each:
            name = pattern.format(*parameters)
            wanted = needs(*parameters) if callable(needs) else needs
            if name in _checks:
                raise TypeError(f"two checks have the id {name}; an id belongs to one")
            bound = _Bound(function, tuple(parameters))
            level = int(name[1 : name.index(".")])
            place = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
            _checks[name] = Check(name, level, place, bound, wanted, random, (function.__doc__ or "").strip())
        return function

    return register


@dataclass(frozen=True)
class _Bound:
    """A check's function with its parameters."""

    function: Callable[..., None]
    parameters: tuple[Any, ...]

    def __call__(self, bench: "Bench") -> None:
        self.function(bench, *self.parameters)


def all_checks() -> dict[str, Check]:
    """Return every check by its id, in order of levels.

    >>> next(iter(all_checks())).startswith("L0.")
    True
    """
    for level, name in LEVELS.items():
        importlib.import_module(f"polygrad_conformance.level{level}_{name}")
    return dict(sorted(_checks.items(), key=lambda item: item[1].level))
