"""Arrays: what users call.

Here: `Array`, the functions of the table on arrays, creation, gradients, transforms. Start at `object.py`.
Not here: how anything is computed.
"""

from polygrad.array import mutation, operators  # give Array its operators, keys and views
from polygrad.array.object import Array

__all__ = ["Array", "mutation", "operators"]
