"""Checks of derivatives against differences, and of forward mode against reverse mode.

Here: `gradcheck`, `gradgradcheck`.
Not here: the rules, which are in the op table.

Along a random direction v, with a random cotangent u, three numbers must agree:

    <u, (f(x + h v) - f(x - h v)) / 2h>        differences, in float64
    <u, jvp(f)(v)>                             forward mode
    <vjp(f)(u), v>                             reverse mode

The last two have no truncation error, so they must agree to rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polygrad import dtypes
from polygrad.array.creation import asarray
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.array.transforms import jvp, vjp
from polygrad.array.tree import flatten
from polygrad.errors import DTypeError, GradError

_EXACT = 1e-10  # jvp against vjp in float64: some hundred roundings of sums of products
_DIRECTIONS = 2


def gradcheck(
    f: Callable[..., Any], *inputs: Any, eps: float = 1e-5, tol: float = 1e-6, forward: bool = True, seed: int = 0
) -> None:
    """Raise AssertionError unless the derivatives of *f* at *inputs* are those that differences show.

    Parameters
    ----------
    f : callable
        Takes *inputs*, returns an array or a tree of arrays. It must be differentiable around *inputs*.
    *inputs : Array or anything
        float64 and complex128 arrays are differentiated, integer and bool arrays and everything else passed on.
    eps : float
        The step h; the differences are wrong by about h**2 (truncation) and 1e-16 / h (rounding), relative to f.
    tol : float
        The relative difference allowed between differences and derivatives.
    forward : bool
        Whether forward mode is compared too; functions with a written reverse rule alone have none.
    seed : int
        Of the random directions.

    Raises
    ------
    AssertionError
        Naming the numbers that differ.
    DTypeError
        If an input is a float or complex array of fewer than 64 bits a part, in which differences have too few digits.
    GradError
        If no input or no output can be differentiated.

    Examples
    --------
    >>> import polygrad as pg
    >>> gradcheck(lambda x, y: pg.sin(x) * y, pg.asarray([0.1, 0.2]), pg.asarray(3.0))
    """
    arrays, call = _split(f, inputs)
    rng = np.random.default_rng(seed)
    for _ in range(_DIRECTIONS):
        _check_direction(call, arrays, rng, eps, tol, forward)


def gradgradcheck(
    f: Callable[..., Any], *inputs: Any, eps: float = 1e-5, tol: float = 1e-6, forward: bool = True, seed: int = 0
) -> None:
    """Raise AssertionError unless the second derivatives of *f* are right: `gradcheck` of its vjp, cotangents included.

    See `gradcheck` for the parameters.

    Examples
    --------
    >>> import polygrad as pg
    >>> gradgradcheck(lambda x: pg.exp(x) * x, pg.asarray([0.1, 0.2]))
    """
    arrays, call = _split(f, inputs)
    with no_grad():
        outputs = _floats(call(*arrays))
    rng = np.random.default_rng(seed + 1)
    cotangents = [_like(o, _random(rng, o)) for o in outputs]

    def pulled(*given: Any) -> Any:
        xs, us = given[: len(arrays)], given[len(arrays) :]
        _, pull = vjp(lambda *values: _floats(call(*values)), *xs)
        return list(pull(list(us)))

    gradcheck(pulled, *arrays, *cotangents, eps=eps, tol=tol, forward=forward, seed=seed)


def _split(f: Callable[..., Any], inputs: Sequence[Any]) -> tuple[list[Array], Callable[..., Any]]:
    """Return the arrays to differentiate by, and *f* as a function of these alone."""
    for x in inputs:
        if isinstance(x, Array) and x.dtype in dtypes.DIFFERENTIABLE and dtypes.part(x.dtype) is not dtypes.float64:
            wide = "float64" if x.dtype in dtypes.FLOATS else "complex128"
            raise DTypeError(f"gradcheck needs {wide}, got {x.dtype.name}: convert with .astype({wide!r})")
    moving = [isinstance(x, Array) and x.dtype in dtypes.DIFFERENTIABLE for x in inputs]
    if not any(moving):
        raise GradError("gradcheck needs a float64 or complex128 array to differentiate by: none of the inputs is one")

    def call(*values: Any) -> Any:
        given = iter(values)
        return f(*[next(given) if m else x for m, x in zip(moving, inputs, strict=True)])

    return [x.detach() for x, m in zip(inputs, moving, strict=True) if m], call


def _floats(tree: Any) -> list[Array]:
    found = [a for a in flatten(tree)[0] if a.dtype in dtypes.DIFFERENTIABLE]
    if not found:
        raise GradError("gradcheck needs a float array among the outputs of the function: there is none")
    return found


def _check_direction(
    call: Callable[..., Any], arrays: list[Array], rng: Any, eps: float, tol: float, forward: bool
) -> None:
    values = [x.numpy() for x in arrays]
    directions = [_random(rng, x) for x in arrays]
    norm = np.sqrt(sum(float(np.sum(np.abs(d) ** 2)) for d in directions)) or 1.0
    directions = [d / norm for d in directions]
    outputs, pull = vjp(lambda *xs: _floats(call(*xs)), *arrays)
    cotangents = [_random(rng, o) for o in outputs]
    grads = pull([_like(o, u) for o, u in zip(outputs, cotangents, strict=True)])
    reverse, size = _inner(grads, directions)

    def moved(step: float) -> float:
        with no_grad():
            at = [_like(x, v + step * d) for x, v, d in zip(arrays, values, directions, strict=True)]
            return _inner(_floats(call(*at)), cotangents)[0]

    slope = (moved(eps) - moved(-eps)) / (2 * eps)
    _agree("reverse mode", reverse, "differences", slope, tol * max(abs(reverse), abs(slope), 1.0))
    if forward:
        tangents = [_like(x, d) for x, d in zip(arrays, directions, strict=True)]
        _, pushed = jvp(lambda *xs: _floats(call(*xs)), arrays, tangents)
        along, more = _inner(pushed, cotangents)
        _agree("forward mode", along, "reverse mode", reverse, _EXACT * max(size, more, 1.0))


def _inner(arrays: Sequence[Array], values: list[Any]) -> tuple[float, float]:
    """Return the inner product of *arrays* and *values*, and the sum of the sizes of its terms.

    Complex numbers count as two real ones.
    """
    products = [np.real(a.detach().numpy() * np.conj(v)) for a, v in zip(arrays, values, strict=True)]
    return sum(float(np.sum(p)) for p in products), sum(float(np.sum(np.abs(p))) for p in products)


def _random(rng: Any, like: Array) -> Any:
    """Return normal numbers of the shape of *like*, complex ones if it is."""
    value = np.asarray(rng.standard_normal(like.shape))
    return value + 1j * rng.standard_normal(like.shape) if like.dtype in dtypes.COMPLEX else value


def _like(array: Array, value: Any) -> Array:
    return asarray(np.asarray(value), dtype=array.dtype, device=array.device)


def _agree(first: str, a: float, second: str, b: float, limit: float) -> None:
    if not abs(a - b) <= limit:
        raise AssertionError(
            f"{first} gives {a!r} along a random direction, {second} {b!r}: they differ by {abs(a - b):.3g}, more "
            f"than {limit:.3g}"
        )
