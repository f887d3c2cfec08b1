"""Giving a handle a new value: what optimisers, loaders and running statistics do.

Here: `rebind`, which keeps leaves leaves, and its short form for values that have been computed, `settle`.
Not here: writing to parts of an array (`mutation.py`), when it is allowed (the callers).
"""

import weakref

from polygrad.array.object import Array
from polygrad.array.views import write
from polygrad.errors import GradError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING
from polygrad.runtime.structure import ALWAYS


def rebind(target: Array, value: Array) -> Array:
    """Make *target* stand for *value*, cast to its dtype; return it. Graphs recorded before keep the old value.

    A leaf that needs gradients stays one; *value* becomes a constant. Views of *target* show it, and so does what
    *target* is a view of. *target* may so come to another device.

    Raises
    ------
    ShapeError
        If the shapes differ.
    GradError
        If *target* was computed from arrays that need gradients.

    Examples
    --------
    >>> import polygrad as pg
    >>> x = pg.asarray([1.0, 2.0]).requires_grad_()
    >>> rebind(x, pg.asarray([3.0, 4.0]))
    Array([3., 4.], dtype=float64, device='cpu:0', requires_grad=True)
    """
    if value.shape != target.shape:
        raise ShapeError(
            f"cannot assign a value of shape {list(value.shape)} to an array of shape {list(target.shape)}: the shapes "
            "must be equal"
        )
    node = value.detach()._node if value.dtype is target.dtype else F.astype(value.detach()._node, target.dtype)
    if not target.requires_grad:
        write(target, node)
    elif target.is_leaf:
        if target._link is None:
            target._become_leaf(node)
        else:
            write(target, node)
    else:
        raise GradError(
            "cannot assign to an array that was computed from others that need gradients: assign to a leaf, or "
            "detach() it"
        )
    return target


def settle(target: Array, value: Array) -> None:
    """Do as `rebind` does with a *value* that nobody else holds and that is in memory: what an optimiser computed."""
    old, new = target._node, value._node
    plain = (
        new.storage is not None
        and not new.parents
        and not new.mask
        and new.aval is old.aval
        and new.device == old.device
    )
    if not plain or target._link is not None or RECORDING.capture is not None:
        rebind(target, value)
    elif not old.mask:
        target._node = new
    elif old.mask == ALWAYS and isinstance(old.leaf, weakref.ref) and old.leaf() is target:
        new.mask, new.leaf = ALWAYS, old.leaf
        target._node = new
    else:
        rebind(target, value)
