"""The shortest way from a call of a compiled function to its last capture.

Here: `Shortcut`, for arguments that are plain arrays and numbers: what they must be like is one function, written out.
Not here: other arguments and the choice among captures (`compiling.py`), the replay (`replaying.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from polygrad.array.object import Array
from polygrad.array.replaying import MISS, Capture
from polygrad.graph.node import Node
from polygrad.graph.spec import Aval
from polygrad.runtime.memory import Storage

Fits = Callable[[Sequence[Any]], tuple[list[Storage], Sequence[Array], Sequence[int | float]] | None]


class Wanted(NamedTuple):
    """What an argument must be like: its class and, of an array, its shape, dtype and device."""

    kind: type
    aval: Aval | None = None
    device: str | None = None


class Shortcut:
    """The last capture that fitted, and what arguments must be like to fit again; called with these.

    Parameters
    ----------
    capture : Capture
    wanted : sequence of Wanted
    configuration : callable
        Returns all else that the capture depends on, such as the device of new arrays.
    """

    def __init__(
        self, capture: Capture, wanted: Sequence[Wanted], configuration: Callable[[], tuple[Any, ...]]
    ) -> None:
        self._capture, self._changed = capture, capture.environment.changed
        self._now, self._configuration = configuration, configuration()
        self._fits = _written(wanted)

    @classmethod
    def of(
        cls, capture: Capture, args: Sequence[Any], configuration: Callable[[], tuple[Any, ...]]
    ) -> "Shortcut | None":
        """Return the shortcut to a capture that *args* fit; None if not all are numbers and plain arrays."""
        wanted: list[Wanted] = []
        for a in args:
            if type(a) is Array:
                node = a._node
                if node.mask or type(node) is not Node or not node.storage.contiguous:
                    return None
                wanted.append(Wanted(Array, node.aval, node.device))
            elif type(a) in (int, float):
                wanted.append(Wanted(type(a)))
            else:
                return None
        return cls(capture, wanted, configuration)

    def __call__(self, args: Sequence[Any]) -> Any:
        """Replay the capture with *args*, or return `MISS`."""
        found = self._fits(args)
        if found is None or self._configuration != self._now() or self._changed() is not None:
            return MISS
        storages, arrays, numbers = found
        return self._capture.call(arrays, numbers, storages=storages)


def _written(wanted: Sequence[Wanted]) -> Fits:
    """Return a function that gives the storages of arguments, the arrays and the numbers; None if they do not fit.

    It is the loop over *wanted*, unrolled, which takes a third of the time. A complex value has no storage of its own,
    so that it does not fit.
    """
    space: dict[str, Any] = {"Array": Array}
    lines = ["def fits(args):", f"    if len(args) != {len(wanted)}: return None"]
    arrays, numbers = [], []
    for k, (kind, aval, device) in enumerate(wanted):
        lines.append(f"    a{k} = args[{k}]")
        if aval is None:
            numbers.append(f"a{k}")
            lines.append(f"    if type(a{k}) is not {kind.__name__}: return None")
            continue
        arrays.append(k)
        space[f"aval{k}"], space[f"device{k}"] = aval, device
        lines += [
            f"    if type(a{k}) is not Array: return None",
            f"    n{k} = a{k}._node",
            f"    s{k} = n{k}.storage",
            f"    if s{k} is None or n{k}.aval is not aval{k} or n{k}.mask or not s{k}.contiguous: return None",
            f"    if n{k}.device != device{k}: return None",
        ]
    storages = ", ".join(f"s{k}" for k in arrays)
    every = "".join(f"a{k}, " for k in arrays)
    lines.append(f"    return [{storages}], ({every}), ({''.join(f'{n}, ' for n in numbers)})")
    exec("\n".join(lines), space)  # noqa: S102  written above, of names and numbers alone
    return space["fits"]  # type: ignore[no-any-return]
