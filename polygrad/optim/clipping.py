"""Keeping gradients small.

Here: clipping by the norm of all gradients together.
Not here: the step.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.array.tree import flatten
from polygrad.errors import GradError
from polygrad.nn.parameter import Parameter
from polygrad.optim.optimizer import working


def clip_by_global_norm(grads: Any, max_norm: float) -> tuple[Any, Array]:
    """Scale gradients so that the root of the sum of all their squares is at most *max_norm*.

    Nothing is read: the norm is an array, and the scaling is part of the kernels that use the gradients.

    Parameters
    ----------
    grads : tree of arrays, or Parameters (a module, a tree or iterable of them)
        The gradients. Of Parameters their `.grad` is taken, and replaced by the scaled one.
    max_norm : float
        The largest norm that stays.

    Returns
    -------
    tree, Array
        The scaled gradients in the same form, and the norm before.

    Raises
    ------
    GradError
        If there are no gradients, or *max_norm* is not positive.

    Examples
    --------
    >>> import polygrad as pg
    >>> clipped, norm = pg.optim.clip_by_global_norm([pg.asarray([3.0]), pg.asarray([4.0])], 1.0)
    >>> float(norm), [round(float(g[0]), 6) for g in clipped]
    (5.0, [0.6, 0.8])
    """
    if not max_norm > 0:
        raise GradError(f"cannot clip gradients to the norm {max_norm}: it must be positive")
    tree = grads
    if (
        isinstance(grads, Iterable)
        and not isinstance(grads, (Mapping, list, tuple, Array))
        and not hasattr(grads, "named_parameters")
    ):
        tree = list(grads)
    leaves, rebuild = flatten(tree)
    owners = [x for x in leaves if isinstance(x, Parameter)]
    given = [x.grad if isinstance(x, Parameter) else x for x in leaves]
    present: list[Any] = [g for g in given if g is not None]
    if not present:
        raise GradError("cannot clip: there are no gradients; call loss.backward() first")
    with no_grad():
        squares = [FUNCTIONS["sum"](FUNCTIONS["square"](working(g))) for g in present]
        total = squares[0]
        for square in squares[1:]:
            total = total + square.to_device(total.device)
        norm = FUNCTIONS["sqrt"](total)
        factor = max_norm / FUNCTIONS["maximum"](norm, max_norm)
        scaled = iter([(working(g) * factor.to_device(g.device)).astype(g.dtype, copy=False) for g in present])
    out = [None if g is None else next(scaled) for g in given]
    if owners:
        for owner, gradient in zip(leaves, out, strict=True):
            owner.grad = gradient
    return rebuild(out), norm
