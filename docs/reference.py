"""Write the pages of reference for authors of drivers, each from the code that it describes.

Here: hooks from their specifications, instructions from the table of the IR and the oracle, accuracy from the suite's
table of ceilings. Not here: any page that a person writes. `python docs/reference.py` writes all; a test compares.
"""

import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from polygrad.driver import (
    ACCELERATED_OPS,
    CompileError,
    DeviceError,
    DeviceLost,
    DriverError,
    DriverUnavailable,
    LaunchError,
    OutOfMemory,
    UnsupportedOp,
    collectives,
    hookspecs,
    ir,
    oracle,
    types,
)
from polygrad.driver.base import Plugin
from polygrad.driver.examination import KNOWN_HOOKS, MANDATORY_HOOKS
from polygrad_conformance import error_model, ulp

ERRORS = (
    DriverUnavailable,
    OutOfMemory,
    UnsupportedOp,
    CompileError,
    LaunchError,
    DeviceLost,
    DeviceError,
    DriverError,
)
HERE = Path(__file__).resolve().parent
FOLDER = HERE / "reference"
WIDTH = 100  # of a line in a block
NOTE = "*Written by `docs/reference.py` from `{source}`; a test keeps it current.*\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def prose(text: str) -> str:
    """Return a docstring as Markdown: single backticks, and literal blocks fenced."""
    text = inspect.cleandoc(text).split("\n\nExamples\n", 1)[0].replace("``", "`")
    parts = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("Here: "):
            continue  # of use in a module, not on a page
        if paragraph.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            parts.append(" ".join(paragraph.split()))
    return "\n\n".join(parts)


def fields(cls: type) -> list[list[str]]:
    """Return name, type, default and comment of each field of a dataclass or named tuple, in order."""
    rows, above = [], []
    names = [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else list(cls._fields)  # type: ignore[attr-defined]
    for line in inspect.getsource(cls).splitlines():
        found = re.match(r"    (\w+): ([^=#]+?)(?: = ([^#]+?))?(?:  # (.*))?$", line)
        if found and found[1] in names:
            default = re.sub(r"field\(default_factory=(\w+)\)", r"\1()", found[3] or "")
            comment = "" if (found[4] or "").startswith("type: ignore") else found[4] or ""
            said = " ".join([*above, comment]).strip()
            rows.append([f"`{found[1]}`", f"`{found[2]}`", f"`{default}`" if default else "", said])
            above = []
        elif line.startswith("    # "):
            above.append(line[6:])
        else:
            above = []
    return rows


# ---- hooks -----------------------------------------------------------------------------------------------------


def hooks_page() -> str:
    """Return the reference of hooks and of the types that pass through them."""
    parts = ["# Hooks", NOTE.format(source="polygrad/driver/hookspecs.py"), prose(hookspecs.__doc__ or "")]
    order = sorted(KNOWN_HOOKS, key=lambda name: inspect.getsourcelines(getattr(hookspecs, name))[1])
    parts.append(
        f"{len(MANDATORY_HOOKS)} hooks are mandatory. A subclass of `DriverBase` writes methods instead; the last "
        "column says which method a hook comes to."
    )
    rows = []
    for name in order:
        must = "mandatory" if name in MANDATORY_HOOKS else "optional"
        rows.append([f"[`{name}`](#{name})", must, method_of(name)])
    parts.append(table(["hook", "", "method of DriverBase"], rows))
    for name in order:
        hook = getattr(hookspecs, name)
        parts.append(f"## {name}\n\n```text\n{signature(name, hook)}\n```\n\n{prose(hook.__doc__)}\n")
    parts.append("## Types\n\nAll are immutable, and importable from `polygrad.driver`.\n")
    for cls in (types.DriverInfo, types.DeviceInfo, types.Limits, types.Features, types.Ref, types.MemoryInfo):
        parts.append(f"### {cls.__name__}\n\n{prose(cls.__doc__ or '')}\n")
        parts.append(table(["field", "type", "default", "meaning"], fields(cls)))
    for protocol in (types.PreparedMany, collectives.Collectives):
        parts.append(f"### {protocol.__name__}\n\n{prose(protocol.__doc__ or '')}\n")
        methods = [m for n, m in vars(protocol).items() if not n.startswith("_") and inspect.isfunction(m)]
        parts.append(table(["method", "meaning"], ([f"`{m.__name__}`", first(m)] for m in methods)))
    parts.append("## Ops of launch_op\n\nA device declares those that it has in `DeviceInfo.ops`.\n")
    parts.append(table(["op", "operands"], ([f"`{op}`", text] for op, text in ACCELERATED_OPS.items())))
    parts.append(
        "## Errors\n\nWhat a driver may raise. Anything else reaches the user as an error that names the driver.\n"
    )
    parts.append(table(["error", "meaning"], ([f"`{e.__name__}`", first(e)] for e in ERRORS)))
    return "\n\n".join(part.strip() for part in parts)


def first(thing: Any) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return prose(thing.__doc__ or "").split("\n\n")[0]


def method_of(hook: str) -> str:
    """Return the method of DriverBase that a hook of its plugin calls."""
    if hook == "polygrad_drivers":
        return "`info`"
    if hook == "polygrad_launch_op":
        return "`op_<name>`"
    called = re.findall(r"(?:instance|self\.driver)\.(\w+)\(", inspect.getsource(getattr(Plugin, hook)))
    return f"`{called[0]}`" if called else ""


def signature(name: str, function: Callable[..., Any]) -> str:
    """Return how a hook is declared, one parameter a line if it is long."""
    whole = inspect.signature(function)
    arguments = [f"{p.name}: {inspect.formatannotation(p.annotation)}" for p in whole.parameters.values()]
    result = inspect.formatannotation(whole.return_annotation)
    text = f"{name}({', '.join(arguments)}) -> {result}"
    if len(text) > WIDTH:
        text = f"{name}(\n    " + ",\n    ".join(arguments) + f",\n) -> {result}"
    return re.sub(r"\b(?:polygrad\.driver\.\w+|collections\.abc|typing)\.", "", text)


# ---- the IR ------------------------------------------------------------------------------------------------------

KINDS = {
    "bool": ("bool",),
    "int": tuple(d for d in ir.ARITHMETIC if ir.kind(d) == "int"),
    "float": tuple(d for d in ir.ARITHMETIC if ir.kind(d) == "float"),
}


def ir_page() -> str:
    """Return the reference of the fused IR."""
    types_of = []
    for cls in (ir.View, ir.Store, ir.Kernel):
        members = "\n".join(f"{n}: {hint(t)}" for n, t in cls.__annotations__.items())
        types_of.append(f"## {cls.__name__}\n\n{prose(cls.__doc__ or '')}\n\n```text\n{members}\n```")
    return fill(
        "kernels",
        note=NOTE.format(source="polygrad/driver/ir.py` and `oracle.py"),
        about=prose((ir.__doc__ or "").partition("\n\n")[2]),
        version=".".join(map(str, ir.VERSION)),
        arithmetic=", ".join(f"`{d}`" for d in ir.ARITHMETIC),
        storage=", ".join(f"`{d}`" for d in ir.STORAGE),
        structural=structural_table(),
        guards=prose((ir.Instr.__doc__ or "").rpartition("\n\n")[2]),
        scalar=scalar_table(),
        helpers=helpers(),
        reductions=reductions(),
        types="\n\n".join(types_of),
        ints=prose(ir.Kernel.int_names.fget.__doc__.partition(">>>")[0]),  # type: ignore[union-attr]
    )


def fill(page: str, **values: str) -> str:
    """Return the template of a page with a value for each of its slots, such as ``<<note>>``."""
    text = (HERE / f"{page}.template").read_text()
    for name, value in values.items():
        text = text.replace(f"<<{name}>>", value)
    return text


def hint(annotation: Any) -> str:
    """Return an annotation as it is written."""
    return getattr(annotation, "__name__", str(annotation)) if isinstance(annotation, type) else str(annotation)


def structural_table() -> str:
    """Return the table of the docstring of `Instr`, whose columns are told by where their heads begin."""
    lines = inspect.cleandoc(ir.Instr.__doc__ or "").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("op "))
    columns = [lines[start].index(word) for word in ("op", "args", "attr", "value")]
    rows: list[list[str]] = []
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        cells = [line[a:b].strip() for a, b in zip(columns, [*columns[1:], None], strict=True)]
        if cells[0] and not line.startswith("a name of"):
            rows.append(cells)
        elif not cells[0]:
            rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells, strict=True)]
    shown = [[f"`{op}`", f"`{args}`", attr, DTYPES_OF[op], value] for op, args, attr, value in rows]
    return table(["op", "args", "attr", "dtypes", "value"], shown)


DTYPES_OF = {
    "load": "the view's", "scalar": "the slot's", "const": "any", "iota": "int32, int64", "cast": "any to any",
    "bitcast": "any to any of its width", "where": "bool, and any two alike",
    "reduce": "int, float; max and min bool too",
}  # fmt: skip


def scalar_table() -> str:
    """Return the table of scalar ops."""
    rows = []
    for op in ir.SCALAR_OPS.values():
        result = "bool" if op.compares else ""
        must = "mandatory" if op.mandatory else ""
        arguments = ("a", "a, b")[op.arity - 1]
        rows.append([f"`{op.name}`", arguments, op.kinds.replace(" ", ", "), result, must, op.doc, computed(op.name)])
    return table(["op", "args", "dtypes", "result", "", "meaning", "oracle"], rows)


def computed(name: str) -> str:
    """Return what the oracle computes an op with."""
    function = oracle.FUNCTIONS[name]
    wide = " wider" if name in oracle.ROUNDED_ONCE else ""
    if isinstance(function, np.ufunc):
        return f"`np.{function.__name__}`{wide}"
    if isinstance(function, np.vectorize):
        return f"`math.{function.pyfunc.__name__}`{wide}"
    if function.__name__ == "<lambda>":
        written = inspect.getsource(function).partition(f'"{name}": lambda a: ')[2].partition(",")[0]
        return f"`{written}`{wide}"
    return f"`{function.__name__}` below"


def helpers() -> str:
    """Return the source of the oracle's own functions."""
    own = {f for f in oracle.FUNCTIONS.values() if getattr(f, "__name__", "").startswith("_")}
    texts = [inspect.getsource(f).rstrip() for f in sorted(own, key=lambda f: f.__code__.co_firstlineno)]
    return "```text\n" + "\n\n".join(texts) + "\n```"


def reductions() -> str:
    """Return what the comment above `REDUCTIONS` says."""
    source = inspect.getsource(ir)
    comment = re.search(r"((?:^# .*\n)+)REDUCTIONS = ", source, re.MULTILINE)
    said = " ".join(line.removeprefix("# ") for line in comment[1].splitlines()) if comment else ""
    return f"{', '.join(f'`{r}`' for r in ir.REDUCTIONS)}. {said}"


# ---- accuracy ----------------------------------------------------------------------------------------------------

# The bounds of the OpenCL C Specification for float32, full profile (table "ULP values for single precision").
OPENCL = {
    "divide": 2.5, "sqrt": 3, "rsqrt": 2, "exp": 3, "exp2": 3, "expm1": 3, "log": 3, "log2": 3, "log10": 3, "log1p": 2,
    "sin": 4, "cos": 4, "tan": 5, "asin": 4, "acos": 4, "atan": 5, "atan2": 6, "sinh": 4, "cosh": 4, "tanh": 5,
    "asinh": 4, "acosh": 4, "atanh": 5, "pow": 16, "erf": 16,
}  # fmt: skip


def semantics_page() -> str:
    """Return the page of accuracy and of what is left free."""
    measured = json.loads((HERE / "measured_ulp.json").read_text())
    head = ["op", "float32", "float64", "near zeros", "OpenCL"]
    head += [f"{label}, both" for label in measured]
    rows = []
    for op in error_model.CEILING:
        absolute = error_model.ABSOLUTE.get(op)
        figures = [" / ".join(f"{m[f'{op}.{d}']:.2f}" for d in ("float32", "float64")) for m in measured.values()]
        limits = [f"{ulp.ceiling(op, d):g}" for d in ("float32", "float64")]
        rows.append([f"`{op}`", *limits, f"{absolute} eps" if absolute else "", f"{OPENCL[op]:g}", *figures])
    exact = [op for op in ir.SCALAR_OPS if op not in error_model.CEILING and "float" in ir.SCALAR_OPS[op].kinds]
    return fill(
        "semantics",
        note=NOTE.format(source="conformance/polygrad_conformance/error_model.py"),
        ceilings=table(head, rows),
        exact=", ".join(f"`{op}`" for op in exact),
        signed=", ".join(f"`{op}`" for op in sorted(ulp.SIGNED)),
    )


PAGES: dict[str, Callable[[], str]] = {"hooks.md": hooks_page, "kernels.md": ir_page, "semantics.md": semantics_page}


def write() -> list[str]:
    """Write every page; return the names of those that were not current."""
    FOLDER.mkdir(exist_ok=True)
    changed = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page().rstrip() + "\n"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(name)
    return changed


if __name__ == "__main__":
    print("written:", ", ".join(write()) or "nothing; all pages are current")
    sys.exit(0)
