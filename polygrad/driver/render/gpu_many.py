"""One function for many launches of a kernel: its groups find out which launch they belong to.

Here: which launches can share a function, the layout of their arguments, the text around a body.
Not here: bodies (`gpu_style.py` and what it calls), launching.

The function takes one struct by value, so that nothing has to be brought to the device beside it: for each launch its
buffers, scalars and ints, and the number of its first group. A group looks its launch up, reads the launch's arguments
into variables of the names that a body uses, and goes on as if it was alone. So the body is that of a single launch,
operation by operation, and results are the same bits. In CUDA alone: structs of OpenCL C cannot hold pointers.

How a driver uses it::

    simple = [simplified(kernel, one) for one in ints]
    for group in choose_many(simple, limits):
        layout = Layout.of(group.kernel, group.choice, capacity)
        source = render_many(group.kernel, group.choice, layout)
        # as `gpu_style` says, with one argument: `layout.nbytes` bytes as `Layout` describes them, and as many groups
        # as all launches take together
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from polygrad.driver.ir import ITEMSIZE, Kernel
from polygrad.driver.render.addressing import Argument
from polygrad.driver.render.collapse import collapse
from polygrad.driver.render.dialect import CUDA, Dialect, argument_dtype
from polygrad.driver.render.gpu_choice import VECTORS_PAY, Choice, Facts, GpuLimits, choose_gpu

GROUP = CUDA.group_id[0]
POINTER = 8  # bytes
NOBODY = 0x7FFFFFFF  # the first group of a launch that is not there
_FORMATS = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip


def simplified(kernel: Kernel, ints: tuple[int, ...]) -> tuple[Kernel, tuple[int, ...]]:
    """Return what `collapse` returns, but keep an axis of extent 1 where others are likely to have more.

    >>> from polygrad.driver.ir import View
    >>> kernel = Kernel(1, 0, ("float32",), (View(0, "float32", (1,)),), (), (), ())
    >>> simplified(kernel, (1, 7))[0].parallel, collapse(kernel, (1, 7))[0].parallel
    (1, 0)
    """
    plain = kernel.parallel == 1 and not kernel.reduced
    if plain and not any(v.window or v.gathers or v.partial or None in v.strides for v in kernel.views):
        return kernel, ints
    return collapse(kernel, ints)


class Shared(NamedTuple):
    """Launches, by position, that share a function: the kernel and the form that they have in common."""

    kernel: Kernel
    choice: Choice
    members: tuple[int, ...]


def choose_many(launches: Sequence[tuple[Kernel, tuple[int, ...]]], limits: GpuLimits) -> list[Shared]:
    """Return which launches, of kernels after `simplified`, share a function.

    Small elementwise launches take the form of large ones where they fit it.

    Examples
    --------
    >>> from polygrad.driver.ir import Instr, Store, View
    >>> view = View(0, "float32", (1,))
    >>> double = Kernel(1, 0, ("float32", "float32"), (view, view._replace(buffer=1)), (),
    ...                 (Instr("load", "float32", (), 0), Instr("add", "float32", (0, 0))), (Store(1, 1),))
    >>> shared = choose_many([(double, (n, 0, 0)) for n in (1 << 20, 96, 5, 1 << 17)], GpuLimits())
    >>> [(group.members, group.choice.variants[0].width) for group in shared]
    [((0, 1, 3), 4), ((2,), 1)]
    """
    found: dict[tuple[Kernel, Choice], list[int]] = {}
    vectors: dict[tuple[Kernel, bool, int, tuple[bool, ...]], Choice] = {}
    by_size = sorted(range(len(launches)), key=lambda k: -_elements(*launches[k]))
    for k in by_size:
        kernel, ints = launches[k]
        choice = choose_gpu(kernel, ints, limits)
        first = choice.variants[0]
        if len(choice.variants) == 1 and first.strategy == "elementwise":
            width, fits = 1, (False,) * len(kernel.views)
            if kernel.parallel:
                width, fits = Facts(kernel, ints, limits).vectors(kernel.parallel - 1, first.stores)
            key = (kernel, choice.wide, width, fits)
            if _elements(kernel, ints) >= VECTORS_PAY:
                exactly = dataclasses.replace(choice, variants=(dataclasses.replace(first, exact=False),))
                choice = vectors.setdefault(key, exactly)
            else:
                choice = vectors.get(key, choice)
        found.setdefault((kernel, choice), []).append(k)
    return [Shared(kernel, choice, tuple(sorted(members))) for (kernel, choice), members in found.items()]


def _elements(kernel: Kernel, ints: Sequence[int]) -> int:
    total = 1
    for n in ints[: kernel.rank]:
        total *= n
    return total


class Layout(NamedTuple):
    """How the arguments of up to `capacity` launches lie in memory.

    There are four arrays of one entry a launch, each from an offset: `buffers`, `buffer_count` addresses a launch, the
    last one that of scratch memory if the kernel takes any (`scratch`); `scalars`, packed by the struct format
    `scalar_format` in the order `scalar_order`; `ints`, by `int_format`, and after them the extra ones of a stage, if
    any; `first`, int32: the number of the launch's first group, `NOBODY` if the launch is not there. Formats are
    without alignment.
    """

    capacity: int
    scratch: bool
    buffer_count: int
    scalar_order: tuple[int, ...]
    scalar_format: str
    int_format: str
    buffers: int
    scalars: int
    ints: int
    first: int
    nbytes: int

    @staticmethod
    def of(kernel: Kernel, choice: Choice, capacity: int) -> "Layout":
        """Return the layout for a kernel in some form.

        >>> from polygrad.driver.ir import View
        >>> kernel = Kernel(1, 0, ("float32",), (View(0, "float32", (1,)),), ("float32", "float64"), (), ())
        >>> Layout.of(kernel, Choice(wide=False, variants=()), 3)[3:]
        ((1, 0), 'df4x', '2i', 0, 24, 72, 96, 112)
        """
        sizes = [ITEMSIZE[argument_dtype(dtype)] for dtype in kernel.scalars]
        order = tuple(sorted(range(len(sizes)), key=lambda k: -sizes[k]))
        unit = max(sizes, default=1)
        padding = -sum(sizes) % unit
        text = "".join(_FORMATS[argument_dtype(kernel.scalars[k])] for k in order) + (f"{padding}x" if padding else "")
        width, letter = (8, "q") if choice.wide else (4, "i")
        split = any(variant.splits for variant in choice.variants)
        count = len(kernel.int_names) + 2 * split
        buffers = len(kernel.buffers) + split
        scalars = capacity * POINTER * buffers
        ints = _aligned(scalars + capacity * (sum(sizes) + padding), width)
        first = ints + capacity * width * count
        return Layout(
            capacity, split, buffers, order, text, f"{count}{letter}", 0, scalars, ints, first,
            _aligned(first + 4 * capacity, POINTER),
        )  # fmt: skip

    @staticmethod
    def most(kernel: Kernel, choice: Choice, nbytes: int) -> int:
        """Return for how many launches there is room in a struct of so many bytes."""
        each = Layout.of(kernel, choice, 1024).nbytes / 1024
        most = int(nbytes / each)
        while most and Layout.of(kernel, choice, most).nbytes > nbytes:
            most -= 1
        return most


def _aligned(offset: int, unit: int) -> int:
    return -(-offset // unit) * unit


# In which a body counts the groups of its own launch.
WITHIN: Dialect = dataclasses.replace(CUDA, group_id=("pg_group", "0", "0"))


def many_head(
    title: str, arguments: Sequence[Argument], parameters: Sequence[str], block: tuple[int, int], layout: Layout
) -> tuple[str, str]:
    """Return the declarations and the head of a function for many launches, and the statements before its body.

    *arguments* and *parameters* are those of the function for one launch.
    """
    bare = [parameter.replace(f"{WITHIN.restrict} ", "") for parameter in parameters]
    kinds = {"buffers": ("buffer", "scratch"), "scalars": ("scalar",), "ints": ("int", "extra")}
    structs, members, reads = [], [], []
    for region, wanted in kinds.items():
        numbers = [k for k, argument in enumerate(arguments) if argument.kind in wanted]
        if region == "scalars":
            numbers = [numbers[k] for k in layout.scalar_order]
        if numbers:
            fields = [bare[k] if region == "buffers" else bare[k].removeprefix("const ") for k in numbers]
            structs.append(f"struct {title}_{region} {{ {' '.join(f'{field};' for field in fields)} }};\n")
            members.append(f"{title}_{region} {region}[{layout.capacity}];")
            reads += [f"    {parameters[k]} = pg_all.{region}[pg_one].{bare[k].split()[-1]};\n" for k in numbers]
    members.append(f"int first[{layout.capacity}];")
    declared = f"struct alignas({POINTER}) {title}_all {{ {' '.join(members)} }};\n"
    head = WITHIN.signature(title, [f"const __grid_constant__ {title}_all pg_all"], block)
    step = 1 << max(0, (layout.capacity - 1).bit_length() - 1)
    search = (
        "    int pg_one = 0;\n"
        f"    for (int step = {step}; step; step >>= 1)\n"
        f"        if (pg_one + step < {layout.capacity} && pg_all.first[pg_one + step] <= (int){GROUP})"
        " pg_one += step;\n"
        f"    const int pg_group = (int){GROUP} - pg_all.first[pg_one];\n"
    )
    return "".join(structs) + declared + head, search + "".join(reads)
