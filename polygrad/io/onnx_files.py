"""ONNX models as files.

Here: a graph as the messages of the package `onnx`, its check, and writing it in one step: also where the constants
are too large for one message and get a file of their own.
Not here: what is in the graph.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from polygrad.array.files import replacing
from polygrad.io.onnx_graph import CODES, Constant, Operator

LARGEST = 2**31 - 1 - 2**24  # bytes of constants: a message holds 2 GiB, of which the graph itself needs a part
INLINE = 1024  # bytes: smaller constants stay in the model if the others get a file
ALIGNED = 4096  # bytes: where constants begin in that file, so that it can be mapped into memory


class End(NamedTuple):
    """An input or an output: a size is a number, or a text where it is open."""

    name: str
    dtype: str
    shape: list[int | str]


class Model(NamedTuple):
    """What is in a file."""

    title: str
    opset: int
    constants: Mapping[str, Constant]
    operators: list[Operator]
    inputs: list[End]
    outputs: list[End]
    metadata: dict[str, str]


def save(onnx: Any, path: str | os.PathLike[str], model: Model) -> None:
    """Check a model and write it; a file that was there is replaced once the new one is complete and on the disk."""
    target = Path(path)
    large = sum(len(c.data) for c in model.constants.values()) > LARGEST
    apart = {name: c for name, c in model.constants.items() if large and len(c.data) >= INLINE}
    beside = target.with_name(f"{target.name}.{_digest(apart)}.data") if apart else None
    # Where constants lie in a file of their own, what is checked has inputs in their place: it needs no data.
    onnx.checker.check_model(_message(onnx, model, apart, None), full_check=True)
    made = _message(onnx, model, apart, beside).SerializeToString()
    with _beside(beside, apart), replacing(target) as file:
        file.write(made)
    for old in _data_files(target):
        if old != beside:
            old.unlink(missing_ok=True)


def _digest(constants: Mapping[str, Constant]) -> str:
    """Return what the name of a file of constants has of them: files of other constants are other files."""
    found = hashlib.sha256()
    for name, c in constants.items():
        found.update(f"{name} {c.dtype} {c.shape} ".encode())
        found.update(c.data)
    return found.hexdigest()[:16]


def _data_files(target: Path) -> list[Path]:
    pattern = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    return [p for p in target.parent.iterdir() if pattern.fullmatch(p.name)]


def _places(constants: Mapping[str, Constant]) -> dict[str, int]:
    """Return where each constant begins in the file that holds them."""
    found, offset = {}, 0
    for name, c in constants.items():
        found[name] = offset
        offset += -(-len(c.data) // ALIGNED) * ALIGNED
    return found


@contextlib.contextmanager
def _beside(path: Path | None, constants: Mapping[str, Constant]) -> Iterator[None]:
    """Write the constants' file, if there is one; if the block fails and it is new, it goes again."""
    if path is None:
        yield
        return
    new = not path.exists()
    with replacing(path) as file:
        for name, offset in _places(constants).items():
            file.seek(offset)
            file.write(constants[name].data)
    try:
        yield
    except BaseException:
        if new:
            path.unlink(missing_ok=True)
        raise


def _message(onnx: Any, model: Model, apart: Mapping[str, Constant], beside: Path | None) -> Any:
    """Return a model as a message; constants that lie apart are in the file *beside*, or without one are inputs."""
    helper = onnx.helper
    places = _places(apart)
    stands = [End(name, c.dtype, list(c.shape)) for name, c in apart.items() if beside is None]
    tensors = [
        _tensor(onnx, name, c, places.get(name), "" if beside is None else beside.name)
        for name, c in model.constants.items()
        if name not in apart or beside is not None
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(e.name, CODES[e.dtype], e.shape) for e in ends]
        for ends in ([*model.inputs, *stands], model.outputs)
    )
    nodes = [helper.make_node(o.kind, o.inputs, o.outputs, o.outputs[0], **dict(o.attributes)) for o in model.operators]
    graph = helper.make_graph(nodes, model.title, inputs, outputs, initializer=tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", model.opset)], producer_name="polygrad")
    made.ir_version = helper.find_min_ir_version_for(made.opset_import, True)  # so that older runtimes read it too
    helper.set_model_props(made, model.metadata)
    return made


def _tensor(onnx: Any, name: str, constant: Constant, offset: int | None, location: str) -> Any:
    tensor = onnx.TensorProto(name=name, data_type=CODES[constant.dtype], dims=constant.shape)
    if offset is None:
        tensor.raw_data = constant.data
        return tensor
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(len(constant.data)))):
        tensor.external_data.add(key=key, value=value)
    return tensor
