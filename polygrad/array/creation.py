"""Arrays of foreign data.

Here: asarray, from_dlpack, astype, can_cast, result_type.
Not here: zeros and their like, which are ops of the table.
"""

from collections.abc import Iterator
from typing import Any

from polygrad import dtypes
from polygrad.array import interchange
from polygrad.array.config import default_complex, default_float, default_int, resolve
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array, scalar_array
from polygrad.errors import DTypeError


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """Return *obj* as an array.

    Parameters
    ----------
    obj : Python number, nested sequence of them, NumPy array, Array, or an object with DLPack or the buffer protocol
        Python ints become int64, floats float64, complex numbers complex128 (int32, float32 and complex64 on devices
        without those).
    dtype : dtype, optional
        The wanted dtype.
    device : str, optional
        The wanted device; an Array stays on its own.
    copy : bool, optional
        None copies foreign memory, so that later writes to it do not matter. False takes it as it is, and raises if the
        device cannot; writes into the array then take memory of their own, and never reach the foreign one.

    Raises
    ------
    DTypeError, ShapeError
        If *obj* cannot be an array.
    ValueError
        If *copy* is False and a copy is needed.
    OverflowError
        If a Python int does not fit *dtype*.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.asarray([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int64, device='cpu:0')
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(obj, Array):
        return _from_array(obj, wanted, device, copy)
    name = resolve(device)
    if isinstance(obj, (bool, int, float, complex)) and not interchange.is_numpy_scalar(obj):
        if copy is False:
            raise ValueError("cannot make an array of a Python number without a copy: leave copy=False out")
        return scalar_array(obj, wanted or _default(obj, name), name)
    if isinstance(obj, (list, tuple)) and _arrays_in(obj):
        return FUNCTIONS["stack"]([asarray(o, dtype=wanted, device=name) for o in obj])  # type: ignore[no-any-return]
    if copy is False:
        return _adopt(obj, wanted, name)
    if hasattr(obj, "__dlpack__") and not interchange.is_numpy(obj) and not hasattr(obj, "__array__"):
        return from_dlpack(obj, device=device)
    return Array(interchange.from_numpy(obj, name, wanted or _default_of_list(obj, name)))


def _default(value: Any, name: str) -> dtypes.DType:
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, complex):
        return default_complex(name)
    return default_int(name) if isinstance(value, int) else default_float(name)


def _default_of_list(obj: Any, name: str) -> dtypes.DType | None:
    """Return the dtype of nested lists of Python numbers; None lets NumPy find it."""
    if not isinstance(obj, (list, tuple)):
        return None
    values = list(_elements(obj))
    kinds = set(map(type, values))
    if not kinds <= {bool, int, float, complex}:
        return None
    if complex in kinds:
        return default_complex(name)
    if not kinds or float in kinds:
        return default_float(name)
    if int not in kinds:
        return dtypes.bool_
    for extreme in (min(values), max(values)):
        dtypes.convert(extreme, default_int(name))  # NumPy would take a wider dtype, or floats
    return default_int(name)


def _elements(obj: Any) -> Iterator[Any]:
    for value in obj:
        if isinstance(value, (list, tuple)):
            yield from _elements(value)
        else:
            yield value


def _arrays_in(obj: Any) -> bool:
    return any(isinstance(o, Array) or (isinstance(o, (list, tuple)) and _arrays_in(o)) for o in obj)


def _from_array(obj: Array, wanted: dtypes.DType | None, device: Any, copy: bool | None) -> Array:
    out = obj if device is None else obj.to_device(device)
    moved = out is not obj
    if wanted is not None and wanted is not out.dtype:
        out, moved = out.astype(wanted), True
    if copy is False and moved:
        raise ValueError(
            f"cannot make {wanted or obj.dtype.name} on {device or obj.device} of this array without a copy"
        )
    return out.astype(out.dtype) if copy and not moved else out


def _adopt(obj: Any, wanted: dtypes.DType | None, name: str) -> Array:
    if isinstance(obj, (list, tuple)):
        raise ValueError("cannot make an array of a list without a copy: leave copy=False out")
    array = interchange.as_numpy(obj)
    if array.dtype in dtypes.COMPLEX:
        raise ValueError(f"cannot make an array of {array.dtype} without a copy: its parts are kept apart in memory")
    if wanted is not None and array.dtype != wanted:
        raise ValueError(f"cannot make {wanted.name} of {array.dtype} without a copy")
    node = interchange.adopt_numpy(array, name)
    if node is None:
        raise ValueError(
            f"{name} cannot use this memory without a copy: it must be contiguous host memory on a host device"
        )
    return Array(node)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array from any object with ``__dlpack__``.

    Memory that the device can use stays shared unless *copy* is true: host memory on a host device, a GPU's memory on
    that GPU. Without *device*, an object on a GPU stays there if an open device is that GPU.

    Raises
    ------
    ValueError
        If *copy* is False and the memory is not the device's.

    Examples
    --------
    >>> import numpy as np
    >>> import polygrad as pg
    >>> pg.from_dlpack(np.asarray([1.0, 2.0]))
    Array([1., 2.], dtype=float64, device='cpu:0')
    """
    if isinstance(x, Array):
        return asarray(x, device=device, copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise DTypeError(f"cannot take {type(x).__name__} by DLPack: it has no __dlpack__; use pg.asarray(...)")
    node = interchange.imported(x, device)
    if node is not None:
        made = Array(interchange.copied(node) if copy else node)
        return made if device is None else made.to_device(device)
    array = interchange.numpy_from_dlpack(x)
    name = resolve(device)
    if not copy:
        node = interchange.adopt_numpy(array, name)
        if node is not None:
            return Array(node)
        if copy is False:
            raise ValueError(
                f"{name} cannot use this memory without a copy: it must be contiguous host memory on a host device"
            )
    return Array(interchange.from_numpy(array, name, None))


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """Return *x* with elements of another dtype; see `Array.astype`."""
    out = x.astype(dtype, copy=copy)
    return out if device is None else out.to_device(device)


def result_type(*arrays_and_dtypes: Any) -> dtypes.DType:
    """Return the dtype that arrays, dtypes and Python scalars promote to together.

    >>> import polygrad as pg
    >>> pg.result_type(pg.int32, pg.float32, 2.5)
    dtype('float32')
    """
    strong: dtypes.DType | None = None
    weak = []
    for a in arrays_and_dtypes:
        if isinstance(a, (bool, int, float, complex)):
            weak.append(a)
            continue
        dtype = a.dtype if isinstance(a, Array) else dtypes.as_dtype(a)
        strong = dtype if strong is None else dtypes.promote(strong, dtype)
    if strong is None:
        raise DTypeError("result_type needs at least one array or dtype beside Python scalars")
    for value in weak:
        strong = dtypes.weak(value, strong)
    return strong


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether promotion takes *from_*, a dtype or array, to *to*.

    >>> import polygrad as pg
    >>> pg.can_cast(pg.int8, pg.float32), pg.can_cast(pg.float64, pg.float32)
    (True, False)
    """
    source = from_.dtype if isinstance(from_, Array) else dtypes.as_dtype(from_)
    target = dtypes.as_dtype(to)
    try:
        return dtypes.promote(source, target) is target
    except DTypeError:
        return False
