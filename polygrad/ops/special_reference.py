"""References of special functions: mpmath at 40 digits, element by element, called by tests alone.

Here: `by_mpmath`. Not here: any function of ours.
"""

from collections.abc import Callable
from typing import Any

DIGITS = 40


def by_mpmath(function: Callable[..., Any], *operands: Any) -> Any:
    """Return function(mpmath, *numbers) for each element of broadcast operands, as float64."""
    import mpmath  # noqa: PLC0415  a reference, run in tests alone
    import numpy  # noqa: PLC0415, ICN001  as above

    def one(*numbers: Any) -> float:
        with mpmath.workdps(DIGITS):
            return float(function(mpmath, *[mpmath.mpf(float(v)) for v in numbers]))

    return numpy.vectorize(one, otypes=[numpy.float64])(*operands)
