"""Discrete Fourier transforms: ``pg.fft``, the standard's extension.

Here: the names, made from the op table. Not here: any function; see `ops/fourier.py`.
"""

from polygrad.array.functions import NAMESPACES

globals().update(NAMESPACES["fft"])

__all__ = sorted(NAMESPACES["fft"])  # noqa: PLE0605  the names are those of the table
