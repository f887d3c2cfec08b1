"""The strategy for kernels without reduced axes: every work-item takes a few vectors of the flat iteration space.

Here: one function's body.
Not here: values (`gpu_values.py`), whether this strategy fits (`gpu_choice.py`). Neighbouring work-items take
neighbouring vectors; the vectors of one work-item lie a group's width apart and are loaded before anything is computed,
so that their loads are under way together.
"""

from polygrad.driver.render.addressing import Addressing
from polygrad.driver.render.expressions import Expressions
from polygrad.driver.render.gpu_choice import Variant
from polygrad.driver.render.gpu_values import Lines, Point, Values, decompose


def elementwise_body(at: Addressing, write: Expressions, variant: Variant) -> Values:
    """Write the body of the function; the lines are in the result's `out`."""
    kernel, dialect, out = at.kernel, at.dialect, Lines()
    index, width, threads = at.index_type, variant.width, variant.slots
    values = Values(at, write, out, kernel.parallel - 1, width, variant.vectors)
    extents = [f"n{k}" for k in range(kernel.parallel)]
    out.add(f"const {index} total = {' * '.join(extents) or '1'};")
    first = f"({index}){dialect.group_id[0]} * {threads * variant.chunks} + ({index}){dialect.local_id[0]}"
    for u in range(variant.chunks):
        suffix = f"_{u}" if variant.chunks > 1 else ""
        place = f"{first} + {u * threads}" if u else first
        out.add(f"const {index} flat{suffix} = {f'({place}) * {width}' if width > 1 else place};")
        inside = "" if variant.exact else f"flat{suffix} < total"
        names = [f"i{k}{suffix}" for k in range(kernel.parallel)]
        decompose(out, index, f"flat{suffix}", names, extents)
        values.points.append(Point(names, inside, suffix))
    stores = [kernel.stores[k] for k in variant.stores]
    values.compute(store.value for store in stores)
    for store in stores:
        values.store(store.value, store.view)
    return values
