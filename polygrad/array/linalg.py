"""Linear algebra: ``pg.linalg``, the standard's extension.

Here: the names, made from the op table. Not here: any function; see `ops/linalg_functions.py`, `ops/linalg_norms.py`
and `ops/products.py`, and ``docs/linalg.md`` for what runs where and for the conventions of derivatives.
"""

from polygrad.array.functions import NAMESPACES

globals().update(NAMESPACES["linalg"])

__all__ = sorted(NAMESPACES["linalg"])  # noqa: PLE0605  the names are those of the table
