"""Array: what users hold. A thin handle on a node.

Here: attributes, operators, conversion to Python and NumPy, `requires_grad`, `grad` and `backward`.
Not here: functions (`functions.py` makes one for each op of the table, and a method with it), derivatives, memory.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from polygrad import dtypes
from polygrad.array import interchange
from polygrad.array.config import get_device, resolve
from polygrad.array.words import OF_ARRAYS, lacking
from polygrad.errors import DTypeError, GradError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import Node, parts, scalar, watches
from polygrad.runtime import transfer
from polygrad.runtime.lacking import leaves_device
from polygrad.runtime.realize import realize
from polygrad.runtime.structure import ALWAYS, active_mask

if TYPE_CHECKING:
    from polygrad.array.at import At


# What goes backward from an array; `recording.py`, which is built on the class, puts it here.
_backward: list[Callable[["Array", "Array | None", bool], None]] = []


class Array:
    """An n-dimensional array on a device, lazily computed and differentiable.

    Made by `asarray`, `zeros` and their like, never by this class. Arithmetic follows the Array API standard; Python
    scalars adapt to the array's dtype. Nothing is computed until a value is looked at (printing, `numpy()`, `float()`,
    `realize()`).

    Examples
    --------
    >>> import polygrad as pg
    >>> x = pg.asarray([1.0, 2.0, 3.0])
    >>> (x * x).sum()
    Array(14., dtype=float64, device='cpu:0')
    """

    __slots__ = ("__weakref__", "_grad", "_link", "_node")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._grad: Array | None = None
        self._link: Any = None  # to the views of this array, or to the array that it is a view of: `views.py`

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._node.aval.shape

    @property
    def dtype(self) -> dtypes.DType:
        """The dtype of the elements, a numpy.dtype."""
        return self._node.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._node.aval.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._node.aval.size

    @property
    def nbytes(self) -> int:
        """The bytes that the elements take."""
        return self._node.aval.size * self._node.aval.dtype.itemsize

    @property
    def device(self) -> str:
        """The device's name, such as ``cpu:0``."""
        return self._node.device or get_device()

    @property
    def at(self) -> "At":
        """The way to updates that return a new array: ``x.at[key].add(v)``, as in JAX."""
        from polygrad.array.at import At  # noqa: PLC0415  built on this class

        return At(self)

    @property
    def real(self) -> "Array":
        """The real part; of a real array, the array itself."""
        return Array(F.real(self._node)) if dtypes.KINDS[self.dtype] == "complex" else self

    @property
    def imag(self) -> "Array":
        """The imaginary part; of a real array, zeros."""
        node = F.imag(self._node)
        node.device = node.device or self.device
        return Array(node)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a 0-d array has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.shape:
            raise TypeError("cannot iterate over a 0-d array")
        return (self[k] for k in range(self.shape[0]))

    def __repr__(self) -> str:
        body = interchange.text(self._node, "Array(")
        tail = ", requires_grad=True" if self.requires_grad else ""
        return f"Array({body}, dtype={self.dtype.name}, device={self.device!r}{tail})"

    def realize(self) -> "Array":
        """Compute the value now; return self."""
        realize([self._node])
        return self

    def numpy(self) -> Any:
        """Return the value as a new NumPy array.

        Raises
        ------
        GradError
            If gradients are recorded for it: say ``.detach()`` first.
        """
        self._may_leave("numpy()")
        return interchange.to_numpy(self._node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self._may_leave("__array__")
        if copy is False:
            if not transfer.on_host(self._node):
                raise ValueError(f"cannot view an array of {self.device} without a copy: its memory is not the host's")
            value = interchange.view_numpy(self._node)
            if dtype is not None and value.dtype != dtype:
                raise ValueError(f"cannot view {self.dtype.name} as {dtype} without a copy")
            return value
        if not transfer.on_host(self._node):
            leaves_device(self.device)
        value = interchange.to_numpy(self._node)
        return value if dtype is None else value.astype(dtype, copy=False)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        self._may_leave("__dlpack__")
        return interchange.dlpack(self._node, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return interchange.dlpack_device(self._node)

    def __buffer__(self, flags: int) -> memoryview:
        self._may_leave("__buffer__")
        return interchange.buffer(self._node, flags)

    def _may_leave(self, how: str) -> None:
        if self.requires_grad:
            raise GradError(
                f"{how} of an array that needs gradients would leave the recording: use .detach() first, or .item() "
                "for a number"
            )

    def item(self) -> bool | int | float | complex:
        """Return the only element as a Python number."""
        if self.size != 1:
            raise ShapeError(
                f"item() takes an array of one element, this one has shape {list(self.shape)}; use .tolist()"
            )
        return interchange.to_numpy(self._node).reshape(()).item()  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return interchange.to_python(self._node)

    def _zero_d(self, what: str) -> Any:
        if self.ndim:
            raise TypeError(
                f"{what}() takes a 0-d array, this one has shape {list(self.shape)}; use .item() or .tolist()"
            )
        return self.item()

    def _real_number(self, what: str) -> Any:
        if dtypes.KINDS[self.dtype] == "complex":
            raise TypeError(f"{what}() takes a real array, this one has {self.dtype.name}; use complex() or pg.real")
        return self._zero_d(what)

    def __float__(self) -> float:
        return float(self._real_number("float"))

    def __int__(self) -> int:
        return int(self._real_number("int"))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"the truth of an array of shape {list(self.shape)} is ambiguous: use pg.any(x) or pg.all(x)"
            )
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self._zero_d("format"), spec) if spec else str(self)

    def __index__(self) -> int:
        if dtypes.KINDS[self.dtype] != "int":
            raise TypeError(f"only integer arrays are an index, this one is {self.dtype.name}")
        return int(self._zero_d("int"))

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded for this array; setting it makes the array a leaf, or a constant again."""
        node = self._node
        return bool(node.mask and watches(active_mask(), node))

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if not wanted:
            self._node = F.cut(self._node)
        elif not self.requires_grad:
            self._become_leaf(self._node)

    def requires_grad_(self, wanted: bool = True) -> "Array":
        """Set `requires_grad`; return self."""
        self.requires_grad = wanted
        return self

    def _become_leaf(self, value: Node) -> None:
        self._node = make_leaf(value, ALWAYS, self.dtype)
        self._node.leaf = weakref.ref(self)

    @property
    def is_leaf(self) -> bool:
        """Whether gradients end here: the array was not computed from others that need them."""
        operands = [p for part in parts(self._node) for p in part.parents]
        return not self.requires_grad or not any(watches(active_mask(), p) for p in operands)

    @property
    def grad(self) -> "Array | None":
        """The gradient that `backward` has accumulated, or None."""
        return self._grad

    @grad.setter
    def grad(self, value: "Array | None") -> None:
        if value is not None and value.shape != self.shape:
            raise ShapeError(
                f"cannot set a gradient of shape {list(value.shape)} on an array of shape {list(self.shape)}"
            )
        self._grad = value

    def backward(self, gradient: "Array | None" = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of this array to the `.grad` of the leaves it was computed from.

        Parameters
        ----------
        gradient : Array, optional
            The cotangent to start from, of this array's shape; a scalar starts from 1.
        retain_graph : bool
            Whether the graph may be gone backward through again; otherwise it is freed.

        Raises
        ------
        GradError
            If the array is not a scalar and no *gradient* is given, if it needs no gradients, or if its graph was
            freed.

        Examples
        --------
        >>> import polygrad as pg
        >>> x = pg.asarray(3.0).requires_grad_()
        >>> (x * x).backward()
        >>> x.grad
        Array(6., dtype=float64, device='cpu:0')
        """
        _backward[0](self, gradient, retain_graph)

    def detach(self) -> "Array":
        """Return the same value as a constant: no gradient flows through it."""
        return Array(F.cut(self._node))

    if TYPE_CHECKING:  # the operators are made from the table, in `operators.py`; keys and views in `mutation.py`

        def _other(self, other: Any, /) -> "Array": ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _other
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _other
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _other
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __lt__ = __le__ = __gt__ = __ge__ = _other

        def __neg__(self) -> "Array": ...

        def __pos__(self) -> "Array": ...

        def __abs__(self) -> "Array": ...

        def __invert__(self) -> "Array": ...

        def __getitem__(self, key: Any) -> "Array": ...

        def __setitem__(self, key: Any, value: Any) -> None: ...

        @property
        def T(self) -> "Array": ...  # noqa: N802  the Array API's name

        @property
        def mT(self) -> "Array": ...  # noqa: N802  the Array API's name

        def __getattr__(self, name: str) -> Any: ...  # a method for each function whose first operand is the array

    else:

        def __getattr__(self, name: str) -> Any:
            raise lacking(name, f"{type(self).__name__!r} object", self, OF_ARRAYS)

    def to_device(self, device: Any, /, *, stream: Any = None) -> "Array":
        """Return this array on *device*; gradients flow back. On its own device it is itself."""
        if stream is not None:
            raise ValueError("polygrad orders its own work: stream must be None")
        name = resolve(device)
        return self if name == self.device else Array(F.to_device_(self._node, name))

    def to(self, target: Any, /) -> "Array":
        """Return this array on a device, or with elements of a dtype, as `Module.to` does with its arrays.

        >>> import polygrad as pg
        >>> pg.asarray([1.5]).to("cpu:0").to(pg.float32).dtype.name
        'float32'
        """
        return self.astype(target) if hasattr(target, "itemsize") else self.to_device(target)

    def astype(self, dtype: Any, /, *, copy: bool = True) -> "Array":
        """Return this array with elements of another dtype; itself if it has that and *copy* is false."""
        wanted = dtypes.as_dtype(dtype)
        if wanted is self.dtype:
            return Array(F.alias(self._node)) if copy else self
        return Array(F.astype(self._node, wanted))

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        import polygrad  # noqa: PLC0415  the package imports this module

        if api_version is not None and api_version not in ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            raise ValueError(f"polygrad does not know revision {api_version!r} of the Array API standard")
        return polygrad

    __hash__ = object.__hash__  # by identity: == compares elements

    def __reduce__(self) -> Any:
        """Return the value, the device and whether it is a leaf that needs gradients; a copy has no graph behind it."""
        return restored, (interchange.to_numpy(self._node), self.device, self.requires_grad and self.is_leaf)

    def __complex__(self) -> complex:
        return complex(self._zero_d("complex"))


def restored(value: Any, device: str, leaf: bool) -> Array:
    """Return the array that `Array.__reduce__` took apart."""
    array = Array(interchange.from_numpy(value, resolve(device), None))
    return array.requires_grad_() if leaf else array


def make_leaf(value: Node, mask: int, dtype: dtypes.DType) -> Node:
    """Return a node of the same value that a recording watches."""
    if dtype not in dtypes.DIFFERENTIABLE:
        raise DTypeError(
            f"{dtype.name} arrays have no gradients: only float and complex dtypes do; convert with .astype('float32')"
        )
    leaf = F.cut(value)
    leaf.mask = mask
    return leaf  # type: ignore[no-any-return]


def scalar_array(value: bool | int | float | complex, dtype: dtypes.DType, device: str) -> Array:
    """Return a 0-d array of a Python number."""
    node = scalar(value, dtype)
    node.device = device
    return Array(node)
