"""Models for other programs: a module or a function of arrays as an ONNX file.

Here: `export_onnx`: arguments, names, which sizes stay open.
Not here: from a function to a graph (`onnx_model.py`), the rules (`onnx_ops.py`, `onnx_scalars.py`,
`onnx_patterns.py`), the file (`onnx_files.py`).

The package `onnx` (extra ``onnx``) is imported when a model is exported.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polygrad.array.creation import asarray
from polygrad.array.object import Array
from polygrad.array.tree import leaves_of
from polygrad.errors import DTypeError, ShapeError, StateError
from polygrad.io.onnx_files import save
from polygrad.io.onnx_graph import CODES
from polygrad.io.onnx_model import Request, build, checked_names
from polygrad.io.onnx_ops import REFUSED
from polygrad.io.onnx_sizes import MOST_SIZES
from polygrad.io.onnx_tracing import evaluating
from polygrad.nn.module import Module

OLDEST = 18  # the operator set from which on reductions take axes as operands
_DYNAMIC = Mapping[str, Mapping[int, str]]


def _package() -> Any:
    try:
        import onnx  # noqa: PLC0415  an optional package
    except ImportError:
        raise StateError("exporting a model needs the package onnx: pip install 'polygrad-array[onnx]'") from None
    return onnx


def export_onnx(
    model: Callable[..., Any],
    path: str | os.PathLike[str],
    /,
    *inputs: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_batch: bool = False,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = OLDEST,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a module, or a function of arrays, as an ONNX model, which appears whole or not at all.

    The function is read, never run: it is called with arrays that have shapes and dtypes and no values. A module is
    read in evaluation mode; its parameters and buffers keep their dotted names in the file. Arrays that a function
    finds elsewhere become constants. The model is checked by ``onnx.checker`` before it is written.

    Parameters
    ----------
    model : Module or callable
        What to export; it takes the inputs and returns an array or a tree of arrays.
    path : path
        The file. If the constants take 2 GiB or more, they go into a file beside it, called ``NAME.<digest>.data``.
    *inputs : arrays, or trees of them
        Examples: their shapes and dtypes count, their values do not. What is no array (None, True, ...) is passed on.
    input_names, output_names : sequence of str, optional
        One for each array; the names of the function's parameters, and ``output``, unless given.
    dynamic_batch : bool
        Whether axis 0 of each input may have any size, called ``batch``.
    dynamic_axes : mapping of input names to mappings of axes to size names, optional
        Which other axes may have any size, as in ``{"tokens": {0: "batch", 1: "time"}}``; axes of one name have one
        size. At most three names.
    opset : int
        The version of ONNX's operators, from 18 on.
    metadata : mapping of str to str, optional
        Kept in the file.

    Raises
    ------
    StateError
        If the package is missing, names do not fit the arrays, or the module's state would change.
    UnsupportedOp
        If an op has no meaning in ONNX: random numbers, some decompositions, the bits of floats.
    CaptureError
        If the function looks at a value.
    ShapeError
        If a size is to stay open that changes what is computed, or a number in it that is no sum of products of sizes.
    DTypeError
        If an input or a result is complex.
    OSError
        If the file cannot be written; one that was there before is unharmed.

    Notes
    -----
    With open sizes the function is read once for each corner of a cube of sizes, and once more for a proof.
    8- and 16-bit numbers are computed in wider dtypes with casts around them, as in polygrad's own kernels.
    Runtimes differ from polygrad where ONNX leaves them free: a NaN may get lost in a maximum over an axis.

    Examples
    --------
    >>> import os, tempfile
    >>> import polygrad as pg
    >>> model = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.ReLU(), pg.nn.Linear(8, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.onnx")
    ...     pg.io.export_onnx(model, path, pg.zeros((2, 4), dtype=pg.float32), dynamic_batch=True)
    ...     os.listdir(folder)
    ['model.onnx']
    """
    onnx = _package()
    _check_arguments(onnx, opset, metadata)
    args = [_as_arrays(x) for x in inputs]
    arrays = leaves_of(args)
    names = _input_names(model, args, input_names)
    _refuse_complex(names, arrays)
    given = _open_axes(names, arrays, dynamic_batch, dynamic_axes)
    owner = _owner(model)
    with evaluating(owner) as unchanged:
        request = Request(model, args, names, output_names, given, _titles(owner), unchanged)
        save(onnx, path, build(request, opset, _title(model), dict(metadata or {})))


def _check_arguments(onnx: Any, opset: int, metadata: Mapping[str, str] | None) -> None:
    newest = onnx.defs.onnx_opset_version()
    if not isinstance(opset, int) or not OLDEST <= opset <= newest:
        raise StateError(
            f"cannot export with opset {opset!r}: this version of polygrad and of onnx write {OLDEST} to {newest}"
        )
    if not all(isinstance(text, str) for pair in (metadata or {}).items() for text in pair):
        raise StateError("cannot export: names and values of metadata are text")


def _as_arrays(value: Any) -> Any:
    """Return an input with foreign arrays as ours; what is neither an array nor a tree of them is passed on."""
    if isinstance(value, Array) or not hasattr(value, "__array__"):
        return value
    return asarray(value)


def _owner(model: Any) -> Module | None:
    """Return the module whose state the model is: itself, or the one whose method it is; also where it is wrapped."""
    for found in (model, getattr(model, "__wrapped__", None)):
        for candidate in (found, getattr(found, "__self__", None)):
            if isinstance(candidate, Module):
                return candidate
    return None


def _title(model: Any) -> str:
    return type(model).__name__ if isinstance(model, Module) else str(getattr(model, "__name__", "function"))


def _titles(owner: Module | None) -> dict[Any, str]:
    """Return the names of the nodes of a module's state."""
    if owner is None:
        return {}
    named = [*owner.named_buffers(), *owner.named_parameters()]
    return {a._node: name for name, a in reversed(named)}


def _refuse_complex(names: Sequence[str], arrays: Sequence[Array]) -> None:
    for name, a in zip(names, arrays, strict=True):
        if a.dtype.name not in CODES:
            raise DTypeError(f"cannot export input {name!r} of {a.dtype.name}: {REFUSED['pair_']}")


# ---- names ----------------------------------------------------------------------------------------------------------


def _input_names(model: Any, args: Sequence[Any], wanted: Sequence[str] | None) -> list[str]:
    parameters = _parameter_names(model, len(args))
    found = [
        name if isinstance(arg, Array) else f"{name}_{k}"
        for name, arg in zip(parameters, args, strict=True)
        for k in range(len(leaves_of(arg)))
    ]
    if not found:
        raise StateError("cannot export: give an example of each input, as in export_onnx(model, path, x)")
    return checked_names("input", found if wanted is None else list(wanted), len(found))


def _parameter_names(model: Any, count: int) -> list[str]:
    """Return names for positional arguments: those of the function's parameters as far as they have any."""
    try:
        parameters = list(inspect.signature(model.forward if isinstance(model, Module) else model).parameters.values())
    except (TypeError, ValueError):  # a builtin
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return [*plain, *[f"input_{k}" for k in range(len(plain), count)]]


# ---- sizes ----------------------------------------------------------------------------------------------------------


def _open_axes(
    names: Sequence[str], arrays: Sequence[Array], batch: bool, axes: _DYNAMIC | None
) -> list[dict[int, str]]:
    """Return for each input the names of its open sizes by axis."""
    found: list[dict[int, str]] = [{0: "batch"} if batch and a.ndim else {} for a in arrays]
    for name, wanted in (axes or {}).items():
        if name not in names:
            raise StateError(f"cannot leave axes of {name!r} open: the inputs are {', '.join(names)}")
        if not isinstance(wanted, Mapping):
            raise StateError(f"cannot leave axes {wanted!r} of {name!r} open: give their names, as in {{0: 'batch'}}")
        k = names.index(name)
        for axis, size in wanted.items():
            rank = arrays[k].ndim
            if not isinstance(axis, int) or not -rank <= axis < rank:
                raise ShapeError(f"cannot leave axis {axis!r} of {name!r} open: it has {rank} axes")
            if not isinstance(size, str) or not size.isidentifier():
                raise StateError(f"cannot call an open size {size!r}: it takes a name like a variable's")
            found[k][axis % rank] = size
    examples: dict[str, int] = {}
    for a, own in zip(arrays, found, strict=True):
        for axis, name in own.items():
            if examples.setdefault(name, a.shape[axis]) != a.shape[axis]:
                raise ShapeError(
                    f"cannot leave {name} open: the examples have {examples[name]} and {a.shape[axis]} of it, and it "
                    "is one size"
                )
    if len(examples) > MOST_SIZES:
        raise StateError(f"cannot leave more than {MOST_SIZES} sizes open: each doubles the number of readings")
    return found
