"""The strategy for kernels without reduced axes whose stores run along one axis and some loads along another.

Here: one function's body.
Not here: values (`gpu_values.py`), whether this strategy fits (`gpu_choice.py`). A group takes a square tile of the two
axes. The loads that run along the other axis are made along it into shared memory and read from there across, so that
neighbouring work-items touch neighbouring memory both times.
"""

from polygrad.driver.render.addressing import Addressing
from polygrad.driver.render.expressions import Expressions
from polygrad.driver.render.gpu_choice import TILE, Variant
from polygrad.driver.render.gpu_values import Lines, Names, Point, Values, decompose

PITCH = TILE + 1  # of a row in shared memory: a column then lies in different banks


def tiles_body(at: Addressing, write: Expressions, variant: Variant) -> tuple[Values, list[str]]:
    """Write the body of the function; return its values, with the lines in `out`, and the shared arrays it declares."""
    kernel, dialect, out = at.kernel, at.dialect, Lines()
    along, across = kernel.parallel - 1, variant.across
    values = Values(at, write, out, along, 1, variant.vectors)
    _declare_tile(at, out, along, across)
    shared = []
    for n in variant.tiled:
        instr = kernel.body[n]
        shared.append(dialect.shared(instr.dtype, f"s{n}", TILE * PITCH))
        for u in range(variant.chunks):
            indices, inside = _place(
                kernel.parallel, along, across, f"y + {u * variant.lanes}", "x", exact=variant.exact
            )
            text = at.element(instr.attr, at.address(instr.attr, indices))
            text = f"{inside} ? {text} : {at.fill(instr.attr)}" if inside else text
            out.add(f"s{n}[(y + {u * variant.lanes}) * {PITCH} + x] = {at.to_memory(f'({text})', instr.dtype)};")
    out.add(dialect.barrier)
    for n in variant.tiled:
        dtype, names = kernel.body[n].dtype, list[Names]()
        for u in range(variant.chunks):
            place = f"s{n}[x * {PITCH} + y + {u * variant.lanes}]"
            out.add(f"const {dialect.register(dtype)} x{n}_{u} = {at.from_memory(place, dtype)};")
            names.append((f"x{n}_{u}",))
        values.scope[n] = names
    for u in range(variant.chunks):
        indices, inside = _place(kernel.parallel, along, across, "x", f"y + {u * variant.lanes}", exact=variant.exact)
        values.points.append(Point(indices, inside, f"_{u}"))
    stores = [kernel.stores[k] for k in variant.stores]
    values.compute(store.value for store in stores)
    for store in stores:
        values.store(store.value, store.view)
    return values, shared


def _declare_tile(at: Addressing, out: Lines, along: int, across: int) -> None:
    """Declare the work-item's place in the tile, the tile's first indices, and the indices along all other axes."""
    index, dialect = at.index_type, at.dialect
    out.add(f"const {index} x = ({index}){dialect.local_id[0]}, y = ({index}){dialect.local_id[1]};")
    out.add(f"const {index} tiles = (n{along} + {TILE - 1}) / {TILE}, rises = (n{across} + {TILE - 1}) / {TILE};")
    out.add(f"const {index} group = ({index}){dialect.group_id[0]}, rest = group / tiles;")
    out.add(f"const {index} left = group % tiles * {TILE}, top = rest % rises * {TILE};")
    others = [k for k in range(at.kernel.parallel) if k not in (along, across)]
    if others:
        out.add(f"const {index} outer = rest / rises;")
        decompose(out, index, "outer", [f"i{k}" for k in others], [f"n{k}" for k in others])


def _place(
    rank: int, along: int, across: int, step_along: str, step_across: str, *, exact: bool
) -> tuple[list[str], str]:
    """Return the indices at a place in the tile, and the condition under which it exists."""
    indices = [f"i{k}" for k in range(rank)]
    indices[along], indices[across] = f"(left + {step_along})", f"(top + {step_across})"
    inside = "" if exact else f"({indices[along]} < n{along} && {indices[across]} < n{across})"
    return indices, inside
