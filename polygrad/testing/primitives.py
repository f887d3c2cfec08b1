"""Calls of the primitives that users do not see, for tests that are derived from the table.

Here: `CALLS`, operands and attributes of each primitive that is neither elementwise nor a library's op.
Not here: what is done with them; samples of public functions, which stand beside these.
"""

from typing import Any

from polygrad import dtypes
from polygrad.testing.draw import Draw

_INDICES = ((5,), -4, 3)
_ATTENDED = ((2, 3, 4, 5), (2, 6, 2, 5), (2, 6, 2, 3))  # queries, keys, values

# Operands, as a shape for floats or (shape, low, high) for indices, and attributes.
CALLS: dict[str, tuple[list[Any], tuple[Any, ...]]] = {
    "alias": ([(3, 4)], ()),
    "arg_extreme_": ([(3, 4)], ("max",)),
    "astype": ([(3, 4)], (dtypes.float32,)),
    "bitcast": ([(3, 4)], (dtypes.int64,)),
    "cofactors_": ([(2, 3, 3)], (False,)),
    "attention_": ([*_ATTENDED], (0.5, True)),
    "attention_backward_": ([*_ATTENDED, (2, 3, 4, 3), (2, 4, 3), (2, 3, 4, 3)], (0.5, False)),
    "check_": ([((3, 2), -4, 3)], (4, False)),
    "conv_": ([(2, 4, 5, 6), (6, 2, 2, 3)], ((2, 1), (1, 0), (0, 2), (1, 2), 2)),
    "conv_input_": ([(2, 6, 3, 4), (6, 2, 2, 3)], ((5, 6), (2, 1), (1, 0), (0, 2), (1, 2), 2)),
    "conv_weight_": ([(2, 4, 5, 6), (2, 6, 3, 4)], ((2, 3), (2, 1), (1, 0), (0, 2), (1, 2), 2)),
    "expand_": ([(3, 1)], ((2, 3, 4),)),
    "gather_": ([(4, 5), ((3, 1), -4, 3)], ((3, 5), (-1, 1))),
    "matmul_": ([(3, 4), (4, 2)], ()),
    "max_": ([(3, 4)], ((1,),)),
    "max_pool_": ([(2, 5, 6)], ((2, 3), (1, 2), (1, 0), (0, 1), (2, 1))),
    "max_pool_back_": ([(2, 4, 3), (2, 5, 6), (2, 4, 3)], ((2, 3), (1, 2), (1, 0), (0, 1), (2, 1))),
    "min_": ([(3, 4)], ((0, 1),)),
    "pad_": ([(3, 4)], ((1, 0), (0, 2), 7.0)),
    "permute_": ([(2, 3, 4)], ((2, 0, 1),)),
    "prod_": ([(3, 4)], ((0,),)),
    "put_": ([(5, 4), (2, 4)], ((1, 0), (2, 1), (2, 4))),
    "recurrence_": ([(3, 4), (3, 4)], ()),
    "reshape_": ([(3, 4)], ((2, 6),)),
    "scan_": ([(3, 4)], ("prod",)),
    "scatter_reduce_rows_": ([(5, 2), _INDICES], (4, "multiply")),
    "scatter_rows_": ([(5, 2), _INDICES], (4,)),
    "searchsorted_": ([(2, 1), (2, 3)], (False,)),  # what is searched is sorted: so is a row of one
    "slice_": ([(5, 4)], ((4, 1), (-2, 1), (2, 3))),
    "sort_": ([(3, 4)], ()),
    "sort_values_": ([(3, 4)], ()),
    "sum_": ([(2, 3, 4)], ((0, 2),)),
    "windows_": ([(2, 5, 6)], ((2, 3), (1, 2), (2, 1))),
}


def operands_of(name: str, draw: Draw) -> tuple[list[Any], tuple[Any, ...]]:
    """Return NumPy operands and the attributes of a call of the primitive *name*."""
    operands, attrs = CALLS[name]
    drawn = [draw.array(o, -2, 2) if all(isinstance(n, int) for n in o) else draw.ints(*o) for o in operands]
    return drawn, attrs
