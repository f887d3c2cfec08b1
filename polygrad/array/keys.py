"""Keys: what may stand in the brackets of ``x[...]``, as ops take it.

Here: the step from whatever a user writes to a `Place`: lists and NumPy arrays become integer arrays, boolean masks the
positions at which they are true.
Not here: reading and writing there.

A mask of rank d stands for d axes and must have their sizes; it counts as d integer arrays, mixed with other entries as
NumPy mixes them. A bool, or a mask without axes, is a new axis of one element or none. How many elements a mask takes
is a value: a mask on a device is looked at.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.array import interchange
from polygrad.array.operators import as_key
from polygrad.errors import AxisError, OutOfBounds
from polygrad.graph.functions import F
from polygrad.graph.node import Node
from polygrad.ops.indexing import Place, place_of

_places: dict[Any, Place] = {}
PLACES_LIMIT = 100_000


def basic_place(key: Any, shape: shapes.Shape) -> Place | None:
    """Return where a key of Python ints, slices of them, Ellipsis and None points; None for any other key."""
    word: list[Any] = []
    for part in key if type(key) is tuple else (key,):
        if type(part) is slice:
            edges = (part.start, part.stop, part.step)
            for edge in edges:
                if edge is not None and type(edge) is not int:
                    return None
            word.append(edges)
        elif type(part) is int or part is None or part is Ellipsis:
            word.append(part)
        else:
            return None
    known = (shape, *word)
    found = _places.get(known)
    if found is None:
        if len(_places) > PLACES_LIMIT:
            _places.clear()
        found = _places[known] = place_of(key, shape)
    return found


def entries_of_key(key: Any, device: str) -> list[Any]:
    """Return a key's entries, arrays as nodes and masks that the host knows as NumPy arrays."""
    parts = key if isinstance(key, tuple) else (key,)
    return [as_key(part, device) for part in parts]


def is_mask(entry: Any) -> bool:
    """Whether an entry is a boolean mask, or a bool."""
    return isinstance(entry, bool) or getattr(entry, "dtype", None) is dtypes.bool_


def single_mask(entries: list[Any]) -> Any:
    """Return the mask on the device that is the whole key; None if the key is anything else."""
    one = [e for e in entries if e is not Ellipsis]
    found = len(one) == 1 and isinstance(one[0], Node) and is_mask(one[0]) and one[0].ndim > 0
    return one[0] if found and (len(entries) == 1 or entries[0] is one[0]) else None


def place_in(entries: list[Any], array: Node, device: str) -> tuple[Node, Place]:
    """Return where entries point, and the array with a new axis for each bool."""
    if any(is_mask(e) for e in entries):
        array, entries = _without_masks(entries, array, device)
    return array, place_of(tuple(entries), array.aval.shape)


def _without_masks(entries: list[Any], array: Node, device: str) -> tuple[Node, list[Any]]:
    shape = array.aval.shape
    used = sum(_rank(e) for e in entries)
    if used > len(shape):
        raise AxisError(f"cannot index shape {list(shape)} with {used} keys: it has {len(shape)} axes")
    out: list[Any] = []
    axis, new = 0, list(shape)
    for e in entries:
        if not is_mask(e):
            out.append(e)
            axis += len(shape) - used if e is Ellipsis else _rank(e)
            continue
        at = axis + len(new) - len(shape)
        rank = _rank(e)
        if rank == 0:
            new.insert(at, 1)
            out.append(_positions(e, device)[0])
            continue
        sizes = shape[axis : axis + rank]
        if 0 in e.shape and all(m in (n, 0) for m, n in zip(e.shape, sizes, strict=True)):
            out += [interchange.from_numpy([], device, dtypes.int64)] * rank  # nothing to say of anything: NumPy's rule
            axis += rank
            continue
        if tuple(e.shape) != sizes:
            raise OutOfBounds(
                f"cannot index axes {axis} to {axis + rank - 1} of shape {list(shape)} with a mask of shape "
                f"{list(e.shape)}: a mask has the sizes of the axes that it stands for"
            )
        out += _positions(e, device)
        axis += rank
    return (F.reshape_(array, tuple(new)) if len(new) != len(shape) else array), out


def _rank(entry: Any) -> int:
    """Return how many axes an entry stands for."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    return len(entry.shape) if is_mask(entry) else 1


def _positions(mask: Any, device: str) -> list[Node]:
    """Return the positions at which a mask is true, in C order: one integer array for each of its axes."""
    if isinstance(mask, Node):
        return [F.astype(at, dtypes.int64) for at in F.nonzero(mask if mask.ndim else F.reshape_(mask, (1,)))]
    return [interchange.from_numpy(at, device, dtypes.int64) for at in interchange.true_positions(mask)]
