"""GPT-2's weights under the names that PyTorch's files give them, in our GPT.

Here: which name is which, what lies transposed, the shape of the model that the arrays are of.
Not here: the model (`polygrad.nn.GPT`), the file (`safetensors_files.py`).

Files of others hold arrays under names such as ``transformer.h.0.attn.c_attn.weight``. Their linear layers keep weights
as [inputs, outputs], ours as [outputs, inputs].
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from polygrad.array.object import Array
from polygrad.errors import StateError
from polygrad.io.safetensors_files import load_safetensors

# From a pattern of their names to ours; whether it is transposed. {k} is the number of the block.
NAMES: tuple[tuple[str, str, bool], ...] = (
    (r"wte\.weight", "token_embedding.weight", False),
    (r"wpe\.weight", "position_embedding.weight", False),
    (r"h\.(\d+)\.ln_1\.(weight|bias)", "blocks.{k}.attention_norm.{part}", False),
    (r"h\.(\d+)\.attn\.c_attn\.(weight)", "blocks.{k}.attention.qkv.{part}", True),
    (r"h\.(\d+)\.attn\.c_attn\.(bias)", "blocks.{k}.attention.qkv.{part}", False),
    (r"h\.(\d+)\.attn\.c_proj\.(weight)", "blocks.{k}.attention.out.{part}", True),
    (r"h\.(\d+)\.attn\.c_proj\.(bias)", "blocks.{k}.attention.out.{part}", False),
    (r"h\.(\d+)\.ln_2\.(weight|bias)", "blocks.{k}.mlp_norm.{part}", False),
    (r"h\.(\d+)\.mlp\.c_fc\.(weight)", "blocks.{k}.mlp.up.{part}", True),
    (r"h\.(\d+)\.mlp\.c_fc\.(bias)", "blocks.{k}.mlp.up.{part}", False),
    (r"h\.(\d+)\.mlp\.c_proj\.(weight)", "blocks.{k}.mlp.down.{part}", True),
    (r"h\.(\d+)\.mlp\.c_proj\.(bias)", "blocks.{k}.mlp.down.{part}", False),
    (r"ln_f\.(weight|bias)", "norm.{part}", False),
)
# Masks that old files keep, and the output layer, which is the token embedding.
_LEFT_OUT = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight")
_HEAD = 64  # features of a head in every GPT-2
_MATRIX = 2  # axes


def gpt2_state(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return GPT-2's arrays under the names, and in the layout, of `pg.nn.GPT`.

    Parameters
    ----------
    arrays : mapping of names to arrays
        As PyTorch's files have them, with ``transformer.`` before each name or without.

    Raises
    ------
    StateError
        If a name is none of GPT-2's, or a weight to be transposed is no matrix.

    Examples
    --------
    >>> import polygrad as pg
    >>> state = gpt2_state({"transformer.h.0.mlp.c_fc.weight": pg.zeros((2, 8)), "h.0.attn.bias": pg.ones(1)})
    >>> {name: array.shape for name, array in state.items()}
    {'blocks.0.mlp.up.weight': (8, 2)}
    """
    out: dict[str, Array] = {}
    for name, array in arrays.items():
        plain = name.removeprefix("transformer.")
        if _LEFT_OUT.fullmatch(plain):
            continue
        ours, turned = _renamed(name, plain)
        if turned and array.ndim != _MATRIX:
            raise StateError(f"cannot read {name} of shape {list(array.shape)}: it is a matrix in every GPT-2")
        out[ours] = array.mT if turned else array
    return out


def _renamed(name: str, plain: str) -> tuple[str, bool]:
    for pattern, ours, turned in NAMES:
        found = re.fullmatch(pattern, plain)
        if found:
            parts = found.groups()
            return ours.format(k=parts[0] if len(parts) > 1 else "", part=parts[-1] if parts else ""), turned
    raise StateError(f"cannot read {name}: no GPT-2 has an array of that name")


def load_gpt2(path: str | os.PathLike[str], *, heads: int | None = None, device: Any = None) -> Any:
    """Return a `pg.nn.GPT` with the weights of a safetensors file of a GPT-2, whose sizes follow from its arrays.

    Parameters
    ----------
    path : path
        The file.
    heads : int, optional
        Heads of attention; features / 64 unless given, as in every GPT-2 that was published.
    device : str, optional
        Where the model goes.

    Raises
    ------
    StateError
        If the file is damaged, or its arrays are not those of a GPT-2; the sentence names them.
    """
    from polygrad.nn.gpt import GPT  # noqa: PLC0415  a model, needed only here

    state = gpt2_state(load_safetensors(path, device))
    needed = ("token_embedding.weight", "position_embedding.weight", "blocks.0.mlp.up.bias")
    lacking = [n for n in needed if n not in state]
    if lacking:
        raise StateError(f"cannot make a GPT of {os.fspath(path)}: it lacks what becomes {', '.join(lacking)}")
    vocab_size, dim = state["token_embedding.weight"].shape
    if heads is None and dim % _HEAD:
        raise StateError(f"cannot tell the heads of a GPT with {dim} features: pass heads=...")
    layers = 1 + max(int(n.split(".")[1]) for n in state if n.startswith("blocks."))
    model = GPT(
        vocab_size=vocab_size,
        context=state["position_embedding.weight"].shape[0],
        dim=dim,
        layers=layers,
        heads=heads or dim // _HEAD,
        hidden=state["blocks.0.mlp.up.bias"].shape[0],
        norm="layer",
        activation="gelu_tanh",
        positions="learned",
        bias=True,
        tied=True,
        device=device,
    )
    model.load_state_dict(state)
    return model
