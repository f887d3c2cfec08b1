"""Figures: the numbers that a loop shows and logs.

Here: one number made of what users pass, and short text made of numbers.
Not here: when a figure is read (`progress.py`, `fitting.py`), where it is written.
"""

import math
from collections.abc import Mapping
from typing import Any

from polygrad.array.object import Array
from polygrad.errors import TrainingError

_LEAST, _MOST = 1e-3, 1e5  # outside of these a number is shown with an exponent
_MINUTE, _HOUR = 60, 3600


def number(name: str, value: Any) -> int | float:
    """Return a figure as a Python number; an array is computed and read.

    >>> number("loss", 2), number("loss", 0.5)
    (2, 0.5)
    """
    if isinstance(value, Array):
        if value.size != 1:
            raise TrainingError(f"cannot log {name} of shape {list(value.shape)}: a figure is one number")
        value = value.item()
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TrainingError(f"cannot log {name}, which is {type(value).__name__}: a figure is one number")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TrainingError(f"cannot log {name}, which is {type(value).__name__}: {error}") from None


def numbers(figures: Mapping[str, Any]) -> dict[str, int | float]:
    """Return all figures as Python numbers."""
    return {name: number(name, value) for name, value in figures.items()}


def shown(value: float) -> str:
    """Return a number as a reader wants it.

    >>> [shown(v) for v in (3, 2.30258, 0.0003, 12345678.0, float("nan"))]
    ['3', '2.303', '3.00e-04', '1.23e+07', 'nan']
    """
    if isinstance(value, int):
        return str(value)
    if value == 0 or not math.isfinite(value) or _LEAST <= abs(value) < _MOST:
        return f"{value:.4g}"
    return f"{value:.2e}"


def counted(value: float) -> str:
    """Return a count or rate, shortened by thousands.

    >>> [counted(v) for v in (0.25, 12.34, 51234.0, 2.5e6)]
    ['0.250', '12.3', '51.2k', '2.50M']
    """
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5 or unit == "G":  # noqa: PLR2004  what three digits can show
            break
        value /= 1000.0
    return f"{value:#.3g}".rstrip(".") + unit


def duration(seconds: float) -> str:
    """Return a time in hours, minutes and seconds.

    >>> duration(5), duration(3725)
    ('0:05', '1:02:05')
    """
    whole = int(seconds + 0.5)
    hours, minutes, rest = whole // _HOUR, whole % _HOUR // _MINUTE, whole % _MINUTE
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
