"""Parameter: an array that a model learns.

Here: the class.
Not here: how parameters are found (`module.py`), first given values (`init.py`) and changed (`polygrad.optim`).
"""

from typing import Any

from polygrad import dtypes
from polygrad.array.creation import asarray
from polygrad.array.object import Array
from polygrad.array.rebinding import rebind
from polygrad.array.recording import is_grad_enabled
from polygrad.errors import GradError


class Parameter(Array):
    """An array that needs gradients, and that optimisers give new values under the same handle.

    Parameters
    ----------
    x : Array or anything `asarray` takes
        The first value. Python numbers and integers become float32; float arrays keep their dtype.
    no_decay : bool
        Whether weight decay leaves it alone, as biases and gains usually want.
    dtype, device : optional
        As for `asarray`.

    Raises
    ------
    DTypeError
        If *dtype* is not a float dtype.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.nn.Parameter([1.0, 2.0])
    >>> (w * w).sum().backward()
    >>> w.grad
    Array([2., 4.], dtype=float32, device='cpu:0')
    """

    __slots__ = ("no_decay",)

    def __init__(self, x: Any, no_decay: bool = False, *, dtype: Any = None, device: Any = None) -> None:
        array = asarray(x, dtype=dtype, device=device)
        kept = dtype is not None or (hasattr(x, "dtype") and dtypes.KINDS[array.dtype] == "float")
        super().__init__((array if kept else array.astype(dtypes.float32, copy=False)).detach()._node)
        self.no_decay = no_decay
        self.requires_grad = True

    def assign_(self, value: Any) -> "Parameter":
        """Take the value of an array of the same shape, cast to this dtype; return self. Only in `no_grad`.

        Raises
        ------
        GradError
            Outside of `no_grad`: the assignment itself has no gradient.
        ShapeError
            If the shapes differ.
        """
        if is_grad_enabled():
            raise GradError("cannot assign to a parameter while gradients are recorded: do it in pg.no_grad()")
        rebind(self, asarray(value, device=self.device))
        return self

    def _may_leave(self, how: str) -> None:
        """A parameter is state to look at, and no recording is lost with its value: NumPy may have it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Parameter":
        copy = Parameter(self.detach(), self.no_decay)
        copy.requires_grad = self.requires_grad
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> Any:
        return _restored, (self.detach().numpy(), self.device, self.no_decay, self.requires_grad)

    def __repr__(self) -> str:
        return super().__repr__().replace("Array(", "Parameter(", 1)


def _restored(value: Any, device: str, no_decay: bool, requires_grad: bool) -> Parameter:
    parameter = Parameter(value, no_decay, dtype=value.dtype, device=device)
    parameter.requires_grad = requires_grad
    return parameter
