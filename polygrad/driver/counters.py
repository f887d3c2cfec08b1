"""Counts of what drivers build, for `pg.launch_counter` and the tests that assert "no builds in warm steps".

Here: one process-wide counter that drivers announce to.
Not here: launches and allocations, which the runtime counts itself.
"""

import itertools

_builds = itertools.count()
_latest = 0


def count_build() -> None:
    """Announce that a program was compiled (not merely loaded from a cache of this process)."""
    global _latest  # noqa: PLW0603  one counter for the process; next() on itertools.count is atomic
    _latest = next(_builds) + 1


def builds() -> int:
    """Return how many programs drivers have compiled in this process."""
    return _latest
