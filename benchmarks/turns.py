"""Two functions that take turns, so that what else the machine does meets both.

Here: `turns`. Not here: what is measured.
"""

import time
from collections.abc import Callable


def turns(first: Callable[[], object], second: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return the shortest times of two functions that take turns."""
    first(), second()
    best = [float("inf"), float("inf")]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for k, function in enumerate((first, second)):
            began = time.perf_counter()
            function()
            best[k] = min(best[k], time.perf_counter() - began)
    return best[0], best[1]
