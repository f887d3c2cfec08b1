"""Trees of arrays: dicts, lists, tuples, dataclasses and modules with arrays at their leaves.

Here: flattening, mapping, rebuilding.
Not here: what is done with the leaves.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from polygrad.array.object import Array


def flatten(tree: Any) -> tuple[list[Array], Callable[[list[Any]], Any]]:
    """Return the arrays of a tree and a function that rebuilds the tree with other leaves.

    Anything that is neither an array nor a container is kept as it is.

    >>> import polygrad as pg
    >>> leaves, rebuild = flatten({"a": pg.asarray(1.0), "b": [pg.asarray(2.0), "text"]})
    >>> len(leaves), rebuild([10, 20])
    (2, {'a': 10, 'b': [20, 'text']})
    """
    leaves: list[Array] = []
    spec = _collect(tree, leaves)
    return leaves, lambda values: _rebuild(spec, iter(values))


class _Leaf:
    """Stands for an array."""


_LEAF = _Leaf()


def children(tree: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a container by key, in the order of `flatten`; None for anything else.

    >>> children({"a": 1, "b": 2}), children([5]), children(3)
    ([('a', 1), ('b', 2)], [(0, 5)], None)
    """
    if isinstance(tree, Array):
        return None
    if isinstance(tree, dict):
        return list(tree.items())
    if isinstance(tree, (list, tuple)):
        return list(enumerate(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(f.name, getattr(tree, f.name)) for f in dataclasses.fields(tree)]
    if hasattr(tree, "named_parameters"):
        return list(dict(tree.named_parameters()).items())
    return None


def _collect(tree: Any, leaves: list[Array]) -> Any:
    if isinstance(tree, Array):
        leaves.append(tree)
        return _LEAF
    if isinstance(tree, dict):
        return (dict, type(tree), [(k, _collect(tree[k], leaves)) for k in tree])
    if isinstance(tree, (list, tuple)):
        return (list, type(tree), [_collect(v, leaves) for v in tree])
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [f.name for f in dataclasses.fields(tree)]
        return (dataclasses, tree, [(k, _collect(getattr(tree, k), leaves)) for k in fields])
    if hasattr(tree, "named_parameters"):
        return (dict, dict, [(k, _collect(v, leaves)) for k, v in dict(tree.named_parameters()).items()])
    return (None, tree, None)


def _rebuild(spec: Any, values: Any) -> Any:
    if spec is _LEAF:
        return next(values)
    kind, like, parts = spec
    if kind is None:
        return like
    if kind is dict:
        return dict((k, _rebuild(v, values)) for k, v in parts)  # noqa: C402  the subclass may not take pairs
    if kind is list:
        made = [_rebuild(v, values) for v in parts]
        return like(*made) if hasattr(like, "_fields") else like(made)
    return dataclasses.replace(like, **{k: _rebuild(v, values) for k, v in parts})


def leaves_of(tree: Any) -> list[Array]:
    """Return the arrays of a tree, in the order of `flatten`.

    >>> leaves_of([1, "text", {"a": None}])
    []
    """
    leaves: list[Array] = []
    _gather(tree, leaves)
    return leaves


def _gather(tree: Any, leaves: list[Array]) -> None:
    if isinstance(tree, Array):
        leaves.append(tree)
    elif type(tree) is tuple or type(tree) is list:
        for part in tree:
            if type(part) is Array:  # most are: a call less
                leaves.append(part)
            else:
                _gather(part, leaves)
    else:
        for _, part in children(tree) or ():
            _gather(part, leaves)


def map_tree(function: Callable[[Array], Any], tree: Any) -> Any:
    """Return the tree with *function* applied to each array."""
    leaves, rebuild = flatten(tree)
    return rebuild([function(x) for x in leaves])
