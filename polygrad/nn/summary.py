"""A table of a model's layers.

Here: `summary`, for a call with examples of the inputs or without.
Not here: the hooks that see outputs (`module.py`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from polygrad import dtypes
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.errors import StateError
from polygrad.nn.module import Module

_SEEN = 3  # columns of text


class Row(NamedTuple):
    """One module of a summary."""

    name: str
    kind: str
    output: str
    parameters: int
    shared: bool = False  # whether it has parameters that were counted further up


class Summary:
    """What `summary` returns: print it, or read `rows`, `total`, `trainable` and `bytes`."""

    def __init__(self, rows: list[Row], total: int, trainable: int, size: int) -> None:
        self.rows = rows
        self.total = total
        self.trainable = trainable
        self.bytes = size

    def __str__(self) -> str:
        head = ("layer", "kind", "output", "parameters")
        lines = [(r.name or "(model)", r.kind, r.output, _count(r)) for r in self.rows]
        widths = [max(len(line[k]) for line in [head, *lines]) for k in range(4)]

        def shown(line: tuple[str, ...]) -> str:
            left = [cell.ljust(width) for cell, width in zip(line[:_SEEN], widths, strict=False)]
            return "  ".join([*left, line[_SEEN].rjust(widths[_SEEN])]).rstrip()

        rule = "-" * (sum(widths) + 6)
        frozen = self.total - self.trainable
        closing = f"{self.total:,} parameters ({self.trainable:,} trainable, {frozen:,} frozen), {_size(self.bytes)}"
        return "\n".join([shown(head), rule, *map(shown, lines), rule, closing])

    __repr__ = __str__


def _count(row: Row) -> str:
    """Return a module's own parameters; a tied weight counts where it is met first.

    >>> _count(Row("head", "Linear", "", 0, shared=True)), _count(Row("0", "Linear", "", 1024))
    ('shared', '1,024')
    """
    parts = [f"{row.parameters:,}"] if row.parameters else []
    return " + ".join([*parts, "shared"] if row.shared else parts)


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:  # noqa: PLR2004  bytes of the next unit
            return f"{count:.1f} {unit}" if unit != "B" else f"{count} B"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.1f} GiB"


def _shapes(out: Any) -> str:
    if isinstance(out, Array):
        return str(list(out.shape))
    if isinstance(out, (list, tuple)):
        return ", ".join(_shapes(o) for o in out if o is not None)
    if isinstance(out, Mapping):
        return ", ".join(f"{name}: {_shapes(o)}" for name, o in out.items() if o is not None)
    return type(out).__name__


def summary(model: Module, *inputs: Any, **keywords: Any) -> Summary:
    """Return a table of a model's modules: names, kinds, shapes of outputs, numbers of parameters of their own.

    Parameters
    ----------
    model : Module
        The model; its mode, its random stream and its running statistics stay as they are.
    *inputs : Array or tuple of int
        What to call it with; a tuple is the shape of an array of zeros, of the parameters' dtype and on their device
        (a model of tokens takes ``pg.zeros(shape, dtype=pg.int32)``). Without inputs the table has no shapes of
        outputs.
    **keywords
        Passed on to the model.

    Raises
    ------
    StateError
        If it is given something that is no module. What the model raises for the inputs comes through.

    Examples
    --------
    >>> import polygrad as pg
    >>> print(pg.nn.summary(pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.ReLU(), pg.nn.Linear(8, 2)), (3, 4)))
    layer    kind        output  parameters
    ---------------------------------------
    (model)  Sequential  [3, 2]
    0        Linear      [3, 8]          40
    1        ReLU        [3, 8]
    2        Linear      [3, 2]          18
    ---------------------------------------
    58 parameters (58 trainable, 0 frozen), 232 B
    """
    if not isinstance(model, Module):
        raise StateError(f"cannot make a table of {type(model).__name__}: it is no pg.nn.Module")
    outputs = _outputs(model, inputs, keywords) if inputs or keywords else {}
    seen: set[int] = set()
    rows = []
    for name, module in model.named_modules():
        named = [p for _, p in module.named_parameters(recurse=False)]
        own = [p for p in named if id(p) not in seen]
        seen.update(id(p) for p in own)
        count, shared = sum(p.size for p in own), len(own) < len(named)
        rows.append(Row(name, type(module).__name__, outputs.get(id(module), ""), count, shared))
    arrays = [*model.parameters(), *model.buffers()]
    size = sum(a.size * a.dtype.itemsize for a in arrays)
    return Summary(rows, model.num_parameters(), model.num_parameters(only_trainable=True), size)


def _outputs(model: Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> dict[int, str]:
    """Return the shapes of all modules' outputs, by identity, from one call in evaluation mode."""
    first = next((p for p in model.parameters() if dtypes.KINDS[p.dtype] == "float"), None)
    dtype, device = (dtypes.float32, None) if first is None else (first.dtype, first.device)
    given = [
        FUNCTIONS["zeros"](x, dtype=dtype, device=device)
        if isinstance(x, (tuple, list)) and all(isinstance(n, int) for n in x)
        else x
        for x in inputs
    ]
    outputs: dict[int, str] = {}
    modes = [(module, module.training) for module in model.modules()]
    handles = [
        module.register_forward_hook(lambda m, _args, out: outputs.setdefault(id(m), _shapes(out)) and None)
        for module, _ in modes
    ]
    try:
        with no_grad():
            model.eval()(*given, **keywords)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    return outputs
