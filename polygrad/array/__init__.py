"""Arrays: what users call.

Here: `Array`, the functions of the table on arrays, creation, gradients, transforms. Start at `object.py`.
Not here: how anything is computed.
"""

from polygrad.array import operators  # gives Array its operators
from polygrad.array.object import Array

__all__ = ["Array", "operators"]
