"""Kernels as text, for reports, replays and caches that outlive a process.

Here: `to_json` and `from_json`.
Not here: launch arguments, data; whether a kernel is well formed (`verify.py`).
"""

import json
import math
from typing import Any

from polygrad.driver.ir import VERSION, Instr, Kernel, Store, View
from polygrad.driver.verify import VerifyError, verify


def to_json(kernel: Kernel) -> str:
    """Return *kernel* as one line of JSON that carries the version of the IR.

    Examples
    --------
    >>> ones = Kernel(1, 0, ("float32",), (View(0, "float32", (1,)),), (), (Instr("const", "float32", (), 1.0),),
    ...               (Store(0, 0),))
    >>> from_json(to_json(ones)) == ones
    True
    """
    return json.dumps(
        {
            "polygrad_ir": VERSION,
            "parallel": kernel.parallel,
            "reduced": kernel.reduced,
            "buffers": kernel.buffers,
            "views": [view._replace(fill=_encoded(view.fill)) for view in kernel.views],
            "scalars": kernel.scalars,
            "body": [instr._replace(attr=_encoded(instr.attr)) for instr in kernel.body],
            "stores": kernel.stores,
            "status": kernel.status,
        },
        allow_nan=False,
        separators=(",", ":"),
    )


def from_json(text: str) -> Kernel:
    """Return the kernel that *text* holds, verified.

    Raises
    ------
    VerifyError
        If *text* is no kernel, is of another major version of the IR, or its kernel is not well formed.
    """
    try:
        data = json.loads(text)
        version = tuple(data["polygrad_ir"])
    except (ValueError, KeyError, TypeError) as error:
        raise VerifyError("the text is no kernel: it has no polygrad_ir version; write it with to_json") from error
    if version[:1] != VERSION[:1]:
        mine = ".".join(map(str, VERSION))
        raise VerifyError(
            f"the kernel is of IR {'.'.join(map(str, version))} and this is IR {mine}: another major version means "
            "another language; write the text with a polygrad of this major"
        )
    try:
        kernel = Kernel(
            data["parallel"],
            data["reduced"],
            tuple(data["buffers"]),
            tuple(_view(*row) for row in data["views"]),
            tuple(data["scalars"]),
            tuple(_instr(*row) for row in data["body"]),
            tuple(Store(*row) for row in data["stores"]),
            data["status"],
        )
        verify(kernel)
    except VerifyError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise VerifyError(f"the text is no kernel: {error}; write it with to_json") from error
    return kernel


def _view(buffer: int, dtype: str, strides: list[int | None], window: list[int], *rest: Any) -> View:
    gathers, fill, partial = rest
    return View(buffer, dtype, tuple(strides), tuple(window), gathers, _decoded(fill), partial)


def _instr(op: str, dtype: str, args: list[int], attr: Any, guard: int) -> Instr:
    return Instr(op, dtype, tuple(args), _decoded(attr), guard)


def _encoded(value: Any) -> Any:
    """Return *value* as JSON can hold it: it has no NaN and no infinity, which become ``{"float": "nan"}``."""
    return {"float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    number = float(value["float"])
    return math.nan if math.isnan(number) else number  # math.nan: the one NaN that equals itself in a cache key
