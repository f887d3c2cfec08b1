"""The arrays that a captured function finds itself: parameters, the state of optimisers, buffers.

Here: `finder`, which looks at all of them at each call, and says whether they are what they were like.
Not here: arguments (`shortcut.py`, `replaying.py`), what is known of one array (`captured.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from polygrad.array.captured import Input
from polygrad.runtime.memory import Storage
from polygrad.runtime.replay import Replay
from polygrad.runtime.structure import ALWAYS

Finder = Callable[[dict[int, Storage]], bool]


def finder(inputs: Sequence[Input], replay: Replay) -> Finder:
    """Return a function that adds the storages of all *inputs* to a dict, by block, and returns whether they fit.

    It is the loop over the inputs, unrolled, which takes three quarters of the time: a training step has as many as its
    optimiser has arrays. What is not one realized node is looked at more closely.
    """

    def closely(k: int, found: dict[int, Storage]) -> bool:
        those: dict[int, Storage] = {}
        if not inputs[k].fits(those):
            return False
        for block, storage in those.items():
            replay.bind(block, storage)
        found |= those
        return True

    space: dict[str, Any] = {"handles": replay.handles, "offsets": replay.offsets, "closely": closely}
    lines = ["def find(found):"]
    for k, one in enumerate(inputs):
        space |= {f"find{k}": one.find, f"aval{k}": one.aval, f"device{k}": one.device, f"strides{k}": one.strides}
        lines += [
            f"    array = find{k}()",
            "    if array is None: return False",
            "    node = array._node",
            "    storage = node.storage",  # None of a complex value, which has two
            f"    if (storage is not None and node.aval is aval{k} and node.mask & {ALWAYS} == {one.mask}",
            f"            and node.device == device{k} and storage.strides == strides{k}",
            "            and storage.buffer is not None):",
            f"        found[{one.block}] = storage",
            f"        handles[{one.block}] = storage.buffer.handle",
            f"        offsets[{one.block}] = storage.offset",
            f"    elif not closely({k}, found): return False",
        ]
    lines.append("    return True")
    exec("\n".join(lines), space)  # noqa: S102  written above, of names and numbers alone
    return space["find"]  # type: ignore[no-any-return]
