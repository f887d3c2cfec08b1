"""What the Array API standard wants to know of a namespace.

Here: dtype inspection and ``__array_namespace_info__``.
Not here: functions on arrays.
"""

from typing import Any

from polygrad import dtypes
from polygrad.array.config import default_complex, default_float, default_int, get_device, held, resolve
from polygrad.driver.binding import list_devices
from polygrad.driver.loader import REGISTRY
from polygrad.errors import DTypeError
from polygrad.shapes import as_shape, broadcast

_KINDS = {
    "bool": (dtypes.bool_,),
    "signed integer": dtypes.SIGNED,
    "unsigned integer": dtypes.UNSIGNED,
    "integral": dtypes.INTEGERS,
    "real floating": dtypes.FLOATS,
    "complex floating": dtypes.COMPLEX,
    "numeric": (*dtypes.INTEGERS, *dtypes.FLOATS, *dtypes.COMPLEX),
}


class FloatInfo:
    """Limits of a float dtype, as Python floats; of a complex one, those of its parts."""

    def __init__(self, dtype: dtypes.DType) -> None:
        self.dtype = dtypes.part(dtype)
        dtype = self.dtype
        self.bits = dtype.itemsize * 8
        self.eps, self.max, self.min, self.smallest_normal = dtypes.float_limits(dtype)

    def __repr__(self) -> str:
        return f"finfo({self.dtype.name}: eps={self.eps}, max={self.max}, smallest_normal={self.smallest_normal})"


class IntegerInfo:
    """Limits of an integer dtype."""

    def __init__(self, dtype: dtypes.DType) -> None:
        self.dtype = dtype
        self.bits = dtype.itemsize * 8
        self.min, self.max = dtypes.integer_range(dtype)

    def __repr__(self) -> str:
        return f"iinfo({self.dtype.name}: [{self.min}, {self.max}])"


def finfo(type: Any, /) -> FloatInfo:  # noqa: A002  the Array API's name
    """Return the limits of a float dtype, given as one or by an array of it; of a complex one, those of its parts.

    >>> import polygrad as pg
    >>> pg.finfo(pg.float32).bits, pg.finfo(pg.complex64).dtype
    (32, dtype('float32'))
    """
    dtype = dtypes.as_dtype(getattr(type, "dtype", type))
    if dtypes.KINDS[dtype] not in ("float", "complex"):
        raise DTypeError(f"finfo takes a float or complex dtype, got {dtype.name}; use iinfo")
    return FloatInfo(dtype)


def iinfo(type: Any, /) -> IntegerInfo:  # noqa: A002  the Array API's name
    """Return the limits of an integer dtype, given as one or by an array of it."""
    dtype = dtypes.as_dtype(getattr(type, "dtype", type))
    if dtypes.KINDS[dtype] != "int":
        raise DTypeError(f"iinfo takes an integer dtype, got {dtype.name}; use finfo")
    return IntegerInfo(dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether *dtype* is of a kind: a name of the standard, a dtype, or a tuple of these.

    >>> import polygrad as pg
    >>> pg.isdtype(pg.int8, "integral"), pg.isdtype(pg.int8, ("bool", pg.float32))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise DTypeError(f"there is no dtype kind {kind!r}; kinds are {', '.join(_KINDS)}")
        return dtypes.as_dtype(dtype) in _KINDS[kind]
    return dtypes.as_dtype(dtype) is dtypes.as_dtype(kind)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to.

    Raises
    ------
    ShapeError
        If two sizes of an axis differ and neither is 1.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    return broadcast("broadcast", *[as_shape("broadcast", s) for s in shapes]) if shapes else ()


class NamespaceInfo:
    """The standard's inspection API."""

    def capabilities(self) -> dict[str, Any]:
        """Return what the namespace can do."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """Return the device that new arrays go to."""
        return get_device()

    def devices(self) -> tuple[str, ...]:
        """Return all devices."""
        return tuple(list_devices(REGISTRY))

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """Return the dtypes that Python numbers get on a device."""
        name = resolve(device)
        return {
            "real floating": default_float(name), "complex floating": default_complex(name),
            "integral": default_int(name), "indexing": default_int(name),
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """Return the standard's dtypes that a device has, by name, of a kind if one is given.

        The 16-bit floats are no dtypes of the standard: clients take what is listed here for all they need know.
        """
        have = held(resolve(device)) - {"float16", "bfloat16"}
        return {d.name: d for d in dtypes.ALL if d.name in have and (kind is None or isdtype(d, kind))}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807  the standard's name
    """Return the standard's inspection API."""
    return NamespaceInfo()
