"""The functions that are measured, written once over a namespace of the Array API's names.

Here: what NumPy, CuPy, PyTorch, JAX and polygrad all write alike.
Not here: libraries' own functions, such as softmax or attention (`peers/`, `foreign/`); which shapes (`work.py`).
"""

from collections.abc import Callable
from typing import Any

EPSILON = 1e-5  # of norms
STEPS = 50  # of the chain

Function = Callable[..., Any]


def functions(xp: Any) -> dict[str, Function]:
    """Return the functions by their names in `work.MATHS`; *xp* is a namespace such as `polygrad` or `torch`.

    >>> import polygrad as pg
    >>> functions(pg)["add"](pg.asarray([1.0]), pg.asarray([2.0])).tolist()
    [3.0]
    """

    def chain100(x: Any, a: Any, b: Any) -> Any:
        for _ in range(STEPS):
            x = x * a + b
        return x

    def ew12(x: Any) -> Any:
        u = x * x * x * 0.044715 + x
        y = (xp.tanh(u * 0.79788456) + 1.0) * x * 0.5
        return y + xp.exp(y * -0.1)

    def meanvar(x: Any) -> Any:
        mean = xp.mean(x, axis=-1, keepdims=True)
        centred = x - mean
        return xp.squeeze(mean, axis=-1), xp.mean(centred * centred, axis=-1)

    def rmsnorm(x: Any, w: Any) -> Any:
        return x * (1.0 / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + EPSILON)) * w

    def layernorm(x: Any, w: Any, b: Any) -> Any:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        return centred * (1.0 / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + EPSILON)) * w + b

    return {
        "copy": lambda x: -x,
        "add": lambda a, b: a + b,
        "chain100": chain100,
        "ew12": ew12,
        "exp": lambda x: xp.exp(x),
        "tanh": lambda x: xp.tanh(x),
        "log": lambda x: xp.log(x),
        "sum": lambda x: xp.sum(x, axis=-1),
        "meanvar": meanvar,
        "rmsnorm": rmsnorm,
        "layernorm": layernorm,
        "swiglu": lambda a, b: a * (1.0 / (1.0 + xp.exp(-a))) * b,
        "matmul": lambda a, b: a @ b,
        "argmax": lambda x: xp.argmax(x),
    }


def results(value: Any) -> tuple[Any, ...]:
    """Return what a function gave as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
