"""Symbol: a Python number that may be another one at the next call of a compiled function.

Here: numbers that remember how they came about, and `HostProgram`, which computes them again.
Not here: where the first of them come from (arguments, learning rates, counts of steps), arrays.

Arithmetic on a Symbol gives a Symbol. Whatever needs to know the number itself (a comparison, `int()`, a key of a dict)
gets it, and what it saw becomes a condition: where it does not hold, the function is captured anew. So no number is
frozen without anybody noticing.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

from polygrad.errors import CaptureError

Number = bool | int | float
Undo = Callable[[], None]


class HostProgram:
    """What a compiled function does on the host, in order: it reads numbers, computes others, has effects.

    Every step has a number; that of a Symbol is where its value stands. What was computed before is not computed again.

    >>> lr = [0.5]
    >>> program = HostProgram()
    >>> half = program.read(lambda: lr[0]) / 2
    >>> lr[0] = 3.0
    >>> values, undo = program.run()
    >>> values[half.index]
    1.5
    """

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.conditions: dict[int, Any] = {}  # steps that must give what they gave when they were captured
        self.effects: set[int] = set()  # steps whose result undoes them
        self._known: dict[Any, int] = {}  # pure steps by function and arguments
        self._reads: dict[Callable[[], Number], int] = {}  # sources that were read since the last effect
        self._run: Callable[[], Any] | None = None

    def read(self, source: Callable[[], Number]) -> Any:
        """Return the number that *source* gives now, as one that is read again at each call; a bool is a condition."""
        return self._number(self._step(source, ()), source())

    def read_once(self, source: Callable[[], Number]) -> Any:
        """Do as `read` does; what was read since the last effect is not read again."""
        index = self._reads.get(source)
        if index is None:
            index = self._reads[source] = self._step(source, ())
        return self._number(index, source())

    def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return *function* of numbers, at each call of the numbers that they are then."""
        now = function(*[known(a) for a in args])
        key = (function, *[(Symbol, a.index) if type(a) is Symbol else (type(a), a) for a in args])
        index = self._known.get(key)
        if index is None:
            index = self._known[key] = self._step(function, args)
        return self._number(index, now)

    def _number(self, index: int, now: Any) -> Any:
        if isinstance(now, (int, float)) and not isinstance(now, bool):
            return Symbol(self, index, now)
        self.require(index, now)
        return now

    def effect(self, do: Callable[[], Undo]) -> None:
        """Do something now and at each call; it returns what undoes it."""
        do()
        self._reads.clear()
        self.effects.add(self._step(do, ()))

    def require(self, index: int, value: Any) -> None:
        """Make it a condition that a step gives *value*."""
        self.conditions[index] = value

    def _step(self, function: Callable[..., Any], args: tuple[Any, ...]) -> int:
        self.steps.append((function, args))
        self._run = None
        return len(self.steps) - 1

    def within(self, other: "HostProgram", given: dict[int, Any]) -> list[Any] | None:
        """Return the values of all steps as numbers of another program; None if a condition does not hold.

        *given* are values of this program's steps, by index, that the other program knows otherwise.
        """
        values: list[Any] = []
        for k, (function, args) in enumerate(self.steps):
            if k in given:
                values.append(given[k])
            elif args:
                values.append(other.compute(function, *[values[a.index] if type(a) is Symbol else a for a in args]))
            else:
                values.append(other.read_once(function))
            if k in self.conditions and not _same(settled(values[k]), self.conditions[k]):
                return None
        return values

    def run(self) -> tuple[list[Any], list[Undo]] | None:
        """Return the values of all steps and what undoes the effects; None, with nothing done, if a condition fails."""
        if self._run is None:
            self._run = self._written()
        return self._run()  # type: ignore[no-any-return]

    def _written(self) -> Callable[[], Any]:
        """Return the steps as one function: calls of them, arithmetic as Python's own."""
        space: dict[str, Any] = {"_back": _back, "_same": _same}
        lines = ["def run():", "    undo = []"]
        for k, (function, args) in enumerate(self.steps):
            names = []
            for j, a in enumerate(args):
                if type(a) is Symbol:
                    names.append(f"v{a.index}")
                else:
                    names.append(f"c{k}_{j}")
                    space[names[-1]] = a
            sign = _SIGNS.get(function)
            if sign is None:
                space[f"f{k}"] = function
            lines.append(f"    v{k} = " + (f" {sign} ".join(names) if sign else f"f{k}({', '.join(names)})"))
            if k in self.effects:
                lines.append(f"    undo.append(v{k})")
            if k in self.conditions:
                space[f"w{k}"] = self.conditions[k]
                lines.append(f"    if v{k} is not w{k} and not _same(v{k}, w{k}): return _back(undo)")
        lines.append(f"    return [{', '.join(f'v{k}' for k in range(len(self.steps)))}], undo")
        exec("\n".join(lines), space)  # noqa: S102  written above, of names and numbers alone
        return space["run"]  # type: ignore[no-any-return]


_SIGNS: dict[Any, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.pow: "**",
    operator.mod: "%", operator.floordiv: "//", operator.gt: ">", operator.lt: "<", operator.ge: ">=",
    operator.le: "<=",
}  # fmt: skip


def _back(undo: list[Undo]) -> None:
    for one in reversed(undo):
        one()


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (bool(a == b) or (a != a and b != b))  # noqa: PLR0124  NaN differs from itself


class Symbol:
    """A number of a compiled function; see the module. It passes for the int or float that it stands for.

    Attributes
    ----------
    now : int or float
        Its value in the call that is being captured.
    """

    __slots__ = ("index", "now", "program")

    def __init__(self, program: HostProgram, index: int, now: int | float) -> None:
        self.program = program
        self.index = index
        self.now = now

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the number: `isinstance` takes a Symbol for one."""
        return type(self.now)

    def known(self) -> int | float:
        """Return the number, on which everything that follows then depends."""
        self.program.require(self.index, self.now)
        return self.now

    def __float__(self) -> float:
        return float(self.known())

    def __int__(self) -> int:
        return int(self.known())

    def __index__(self) -> int:
        return operator.index(self.known())  # type: ignore[arg-type]  # a float has none, and says so

    def __hash__(self) -> int:
        return hash(self.known())

    def __repr__(self) -> str:
        return repr(self.known())

    def __format__(self, spec: str) -> str:
        return format(self.known(), spec)

    def __bool__(self) -> bool:
        return bool(self.program.compute(bool, self))

    def __reduce__(self) -> Any:
        raise CaptureError("cannot keep a number of a compiled function beyond its call: convert it by float(...)")

    def __deepcopy__(self, _memo: Any) -> "Symbol":
        return self

    def __copy__(self) -> "Symbol":
        return self

    def is_integer(self) -> bool:
        """Whether it is a whole number."""
        return bool(self.program.compute(lambda x: float(x).is_integer(), self))


def _install() -> None:
    two = {
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
        "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow, "and": operator.and_,
        "or": operator.or_, "xor": operator.xor, "lshift": operator.lshift, "rshift": operator.rshift,
    }  # fmt: skip
    for name, function in two.items():
        setattr(Symbol, f"__{name}__", _binary(function))
        setattr(Symbol, f"__r{name}__", _binary(function, reflected=True))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Symbol, f"__{name}__", _binary(getattr(operator, name)))
    one: dict[str, Callable[[Any], Any]] = {
        "neg": operator.neg, "pos": operator.pos, "abs": operator.abs, "invert": operator.invert, "trunc": math.trunc,
        "floor": math.floor, "ceil": math.ceil,
    }  # fmt: skip
    for name, unary in one.items():
        setattr(Symbol, f"__{name}__", _unary(unary))
    setattr(Symbol, "__round__", lambda self, digits=None: self.program.compute(round, self, digits))  # noqa: B010


def _binary(function: Callable[[Any, Any], Any], *, reflected: bool = False) -> Callable[[Symbol, Any], Any]:
    def operation(self: Symbol, other: Any) -> Any:
        if not isinstance(other, (bool, int, float)):
            return NotImplemented
        return self.program.compute(function, *((other, self) if reflected else (self, other)))

    return operation


def _unary(function: Callable[[Any], Any]) -> Callable[[Symbol], Any]:
    return lambda self: self.program.compute(function, self)


_install()


def applied(function: Callable[..., Any], *args: Any) -> Any:
    """Return *function* of numbers; if one is a Symbol, as one that is computed again at each call.

    >>> applied(math.sqrt, 4.0)
    2.0
    """
    for a in args:
        if type(a) is Symbol:
            return a.program.compute(function, *args)
    return function(*args)


def is_symbol(value: Any) -> bool:
    """Whether a number may be another at the next call; `isinstance` does not tell."""
    return type(value) is Symbol


def known(value: Any) -> Any:
    """Return a number as it is now; of a Symbol this does not make a condition, so nothing may be decided by it."""
    return value.now if type(value) is Symbol else value


def settled(value: Any) -> Any:
    """Return a number, or a tuple with some in it, as plain numbers, on which everything that follows then depends."""
    if type(value) is Symbol:
        return value.known()
    if isinstance(value, tuple):
        found = [settled(v) for v in value]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    return value
