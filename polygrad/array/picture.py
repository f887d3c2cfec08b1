"""Pictures of graphs: what was recorded, and the kernels that would compute it.

Here: `viz` and `Picture`, which draws itself in notebooks and into files.
Not here: the drawing (`drawing.py`). The package `graphviz` (extra ``viz``) and its program `dot` are used only when a
drawing is made an image.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polygrad.array.drawing import drawing
from polygrad.array.files import replacing
from polygrad.array.object import Array
from polygrad.array.tree import leaves_of
from polygrad.errors import StateError
from polygrad.graph.node import Node, parts
from polygrad.runtime.outlining import launches

TEXT = (".dot", ".gv")
IMAGES = (".svg", ".png", ".pdf")


class Picture:
    """A drawing of a graph.

    Attributes
    ----------
    source : str
        The drawing in Graphviz's language DOT.
    """

    def __init__(self, source: str, title: str) -> None:
        self.source = source
        self._title = title

    def __repr__(self) -> str:
        return f"Picture({self._title!r})"

    def svg(self) -> str:
        """Return the drawing as SVG.

        Raises
        ------
        StateError
            If the package graphviz or its program dot is missing.
        """
        return self._image("svg").decode()

    def _repr_svg_(self) -> str | None:
        """Return what a notebook shows; None, so that it shows the `repr`, where no images can be made."""
        try:
            return self.svg()
        except StateError:
            return None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that appears whole or not at all; its ending says what: .svg, .png, .pdf, .dot or .gv."""
        ending = Path(path).suffix.lower()
        check_ending(path)
        content = self.source.encode() if ending in TEXT else self._image(ending[1:])
        with replacing(path) as file:
            file.write(content)

    def _image(self, kind: str) -> bytes:
        try:
            import graphviz  # noqa: PLC0415  an optional package
        except ImportError:
            raise StateError(
                "drawing a graph needs the package graphviz: pip install 'polygrad-array[viz]'; .source has it as text"
            ) from None
        try:
            return bytes(graphviz.Source(self.source).pipe(format=kind))
        except graphviz.ExecutableNotFound:
            raise StateError(
                "drawing a graph needs Graphviz's program dot, which is not on the PATH: install Graphviz (apt install "
                "graphviz, brew install graphviz); .source has the drawing as text"
            ) from None


def check_ending(path: str | os.PathLike[str]) -> None:
    """Raise StateError if a file's ending names no kind of picture."""
    if Path(path).suffix.lower() not in (*TEXT, *IMAGES):
        raise StateError(
            f"cannot draw into {os.fspath(path)!r}: its ending says what is drawn: {', '.join((*IMAGES, *TEXT))}"
        )


def viz(
    tree: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    kernels: bool = True,
    names: Any = None,
    limit: int = 400,
) -> Picture:
    """Draw the graph of an array, or of a tree of arrays, and the launches that would compute it; nothing is run.

    Parameters
    ----------
    tree : array or tree of arrays
        A loss, say.
    path : path, optional
        Where to write the picture too: a file that ends in .svg, .png, .pdf, .dot or .gv.
    kernels : bool
        Whether launches are drawn: each kernel as a field of a colour, with what it reads and writes, calls of a
        device's own ops as fields with a thick frame. What several kernels compute stands in each of them.
    names : Module or mapping of names to arrays, optional
        What parameters, buffers and other arrays are called in the picture.
    limit : int
        Of graphs with more ops than this, which a picture could not show, the launches are drawn alone.

    Returns
    -------
    Picture
        It shows itself in notebooks; ``.source`` is DOT, ``.svg()`` an SVG.

    Raises
    ------
    StateError
        If the file's ending names no kind of picture, or an image is asked for and Graphviz is missing.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.asarray([1.0, 2.0])
    >>> picture = pg.viz(pg.sum(w * 2.0), names={"w": w})
    >>> picture
    Picture('3 ops in 1 launch on cpu:0')
    >>> print(picture.source.splitlines()[0])
    digraph polygrad {
    """
    if path is not None:
        check_ending(path)
    arrays = leaves_of(tree)
    if not arrays:
        raise StateError(f"cannot draw {type(tree).__name__}: it holds no arrays")
    found = launches([a._node for a in arrays])
    asked = [p for a in arrays for p in parts(a._node)]
    source = drawing(asked, found, _named(names), kernels, limit)
    picture = Picture(source, source.split('label="', 1)[1].split("\\n", 1)[0])
    if path is not None:
        picture.save(path)
    return picture


def _named(names: Any) -> dict[Node, str]:
    """Return the names of nodes that a module, or a mapping, gives."""
    if names is None:
        return {}
    if hasattr(names, "named_parameters"):
        pairs = [*names.named_buffers(), *names.named_parameters()]
    elif isinstance(names, Mapping):
        pairs = list(names.items())
    else:
        raise StateError(f"cannot take names from {type(names).__name__}: give a module, or a mapping to arrays")
    wrong = [name for name, a in pairs if not isinstance(a, Array)]
    if wrong:
        raise StateError(f"cannot name {wrong[0]!r}: what it stands for is no array")
    return {p: str(name) for name, a in pairs for p in parts(a._node)}
