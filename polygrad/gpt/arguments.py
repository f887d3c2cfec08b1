"""Values of arguments, checked while the command line is read: a wrong one ends the command with exit code 2.

Here: numbers with bounds.
Not here: what only the data or the device can refuse.
"""

import argparse
import math
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """Return what reads a whole number that is at least *least*.

    >>> whole(1)("12")
    12
    """

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return value

    return number


def real(
    least: float, most: float = math.inf, *, open_below: bool = False, open_above: bool = False
) -> Callable[[str], float]:
    """Return what reads a number between two bounds.

    >>> real(0.0)("1e-3")
    0.001
    """
    left = f"{'more than' if open_below else 'at least'} {least:g}"
    right = "" if math.isinf(most) else f" and {'less than' if open_above else 'at most'} {most:g}"

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        above = value > least if open_below else value >= least
        below = value < most if open_above else value <= most
        if not (above and below and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {left}{right}")
        return value

    return number


def share(text: str) -> float:
    """Read a number between 0 and 1, both excluded.

    >>> share("0.5")
    0.5
    """
    return real(0.0, 1.0, open_below=True, open_above=True)(text)
