"""Special functions: ``pg.special``, under the names of ``scipy.special``, which takes them from here.

Here: the names, made from the op table. Not here: any function; see `ops/special_*.py`, and ``docs/special.md`` for how
accurate they are and for the conventions of derivatives.
"""

from polygrad.array.functions import NAMESPACES

globals().update(NAMESPACES["special"])

__all__ = sorted(NAMESPACES["special"])  # noqa: PLE0605  the names are those of the table
