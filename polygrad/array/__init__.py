"""Arrays: what users call.

Here: `Array`, the functions of the table on arrays, creation, gradients, transforms. Start at `object.py`.
Not here: how anything is computed.
"""

import sys
import types
from typing import Any

from polygrad.array import mutation, operators  # give Array its operators, keys and views
from polygrad.array.object import Array

__all__ = ["Array", "mutation", "operators"]


class _Package(types.ModuleType):
    """The package, called by those who take ``pg.array`` for NumPy's function."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("pg.array is a package: pg.asarray(...) makes an array")


sys.modules[__name__].__class__ = _Package
