"""What other libraries call things that have another name here, for errors that help.

Here: the names, and the errors of an attribute that is not there and of a call that does not fit.
Not here: aliases; a thing has one name.
"""

import inspect
from collections.abc import Callable
from typing import Any

OF_ARRAYS = {
    "bmm": "@", "bool": "astype('bool')", "chunk": "pg.split(...)", "clamp": "clip(...)",
    "clone": "pg.asarray(x, copy=True)", "copy": "pg.asarray(x, copy=True)", "cpu": "to('cpu:0')",
    "cuda": "to('cuda:0')", "data": "detach()", "dim": "ndim", "div": "/", "dot": "@", "double": "astype('float64')",
    "eq": "==", "expand": "broadcast_to(...)", "float": "astype('float32')", "gather": "take_along_axis(...)",
    "ge": ">=", "gt": ">", "half": "astype('float16')", "index_select": "take(...)", "int": "astype('int32')",
    "itemsize": "dtype.itemsize", "le": "<=", "long": "astype('int64')", "lt": "<",
    "masked_fill": "pg.where(mask, value, x)", "mm": "@", "mul": "*", "ne": "!=", "neg": "-x",
    "norm": "pg.linalg.vector_norm(x)", "numel": "size", "permute": "transpose(...)", "ravel": "flatten()",
    "sub": "-", "t": "T", "type": "dtype", "unsqueeze": "expand_dims(...)", "view": "reshape(...)",
    "view_as": "reshape(y.shape)",
}  # fmt: skip
OF_PACKAGE = {
    "Module": "pg.nn.Module", "Parameter": "pg.nn.Parameter", "Tensor": "pg.Array, which pg.asarray(...) makes",
    "absolute": "pg.abs", "amax": "pg.max", "amin": "pg.min", "arccos": "pg.acos", "arcsin": "pg.asin",
    "arctan": "pg.atan", "arctan2": "pg.atan2", "argwhere": "pg.nonzero", "as_tensor": "pg.asarray",
    "bmm": "pg.matmul", "cat": "pg.concat", "clamp": "pg.clip", "concatenate": "pg.concat",
    "cumprod": "pg.cumulative_prod", "cumsum": "pg.cumulative_sum", "dot": "pg.matmul or pg.vecdot",
    "dropout": "pg.nn.dropout", "from_numpy": "pg.asarray", "function": "pg.compile", "inference_mode": "pg.no_grad",
    "jit": "pg.compile", "load": "pg.io.load_safetensors or pg.io.load_checkpoint", "manual_seed": "pg.random.seed",
    "mm": "pg.matmul", "ndarray": "pg.Array, which pg.asarray(...) makes", "norm": "pg.linalg.vector_norm",
    "permute": "pg.permute_dims", "power": "pg.pow", "rand": "pg.random.uniform", "randint": "pg.random.randint",
    "randn": "pg.random.normal", "ravel": "pg.flatten",
    "save": "pg.io.save_safetensors or pg.io.save_checkpoint", "seed": "pg.random.seed", "tensor": "pg.asarray",
    "transpose": "pg.permute_dims or x.transpose(...)", "unsqueeze": "pg.expand_dims",
}  # fmt: skip


def lacking(name: str, of: str, owner: Any, words: dict[str, str]) -> AttributeError:
    """Return the error of an attribute that is not there.

    >>> str(lacking("cat", "module 'polygrad'", None, OF_PACKAGE))
    "module 'polygrad' has no attribute 'cat'; here it is pg.concat"
    """
    here = f"; here it is {words[name]}" if name in words else ""
    return AttributeError(f"{of} has no attribute {name!r}{here}", name=name, obj=owner)


def explain_call(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise a TypeError that shows how a function is called, if the arguments do not fit it.

    >>> import polygrad as pg
    >>> explain_call(pg.sum, (1,), {"dim": 0})
    Traceback (most recent call last):
    TypeError: sum(x, /, axis=None, *, dtype=None, keepdims=False): got an unexpected keyword argument 'dim'
    """
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        shown = signature.replace(parameters=bare, return_annotation=signature.empty)
        raise TypeError(f"{function.__name__}{shown}: {error}") from None
