"""The greatest value and the sum of exponentials in one pass: two levels of a softmax or a cross-entropy read once.

Here: which passes can be merged, and the text of a running sum that is rescaled when its greatest value changes.
Not here: passes that keep their row in registers, which read it once anyway.

For values x the sum of exp(x - max(x)) is kept as (g, s), the greatest so far and the sum of exp(x - g). A value meets
it with one exponential of -|x - g|: either the sum is scaled down by it and the value counts 1, or the sum grows by it.
Where x equals g, infinities included, the value counts 1; the infinities' NaN comes at the end, with the factor exp(g -
g) that is 1 for a finite g. NaN spreads by itself.
"""

from collections.abc import Sequence
from dataclasses import replace

from polygrad.driver.ir import Kernel, kind
from polygrad.driver.render.expressions import Expressions
from polygrad.driver.render.gpu_schedule import Pass


def merge_online(kernel: Kernel, todo: Sequence[Pass]) -> tuple[list[Pass], dict[int, int]]:
    """Return the passes with such pairs merged, and for each running sum its maximum."""
    out: list[Pass] = []
    online: dict[int, int] = {}
    for work in todo:
        before = out[-1] if out else None
        pairs = {n: running_maximum(kernel, n) for n in work.reduces}
        found = before is not None and bool(pairs) and all(m in before.reduces for m in pairs.values())
        if before is not None and found and not work.targets:
            out[-1] = replace(before, reduces=(*before.reduces, *work.reduces))
            online |= pairs
        else:
            out.append(work)
    return out, online


def running_maximum(kernel: Kernel, n: int) -> int:
    """Return the reduction m if *n* is a sum of exp(x - m) and m the maximum of the same x, else -1."""
    body = kernel.body
    if body[n].attr != "sum" or kind(body[n].dtype) != "float":
        return -1
    power = body[body[n].args[0]]
    shifted = body[power.args[0]] if power.op == "exp" else power
    if power.op != "exp" or shifted.op != "subtract":
        return -1
    x, m = shifted.args
    greatest = body[m]
    return m if greatest.op == "reduce" and greatest.attr == "max" and greatest.args == (x,) else -1


def meet(write: Expressions, dtype: str, greatest: str, total: str, value: str) -> str:
    """Return the statements by which a value meets a running sum, before it meets the running maximum."""
    register, (zero, one) = write.dialect.register(dtype), (write.dialect.literal(k, dtype) for k in (0, 1))
    distance = f"{value} == {greatest} ? {zero} : grows ? {greatest} - {value} : {value} - {greatest}"
    power = write.scalar("exp", dtype, (distance,))
    return (
        f"{{ const bool grows = {value} > {greatest}; const {register} power = {power}; "
        f"{total} = grows ? {total} * power + {one} : {total} + power; }}"
    )


def rescaled(write: Expressions, dtype: str, total: str, greatest: str, final: str) -> str:
    """Return a sum that belongs to one maximum as it counts under the final one."""
    power = write.scalar("exp", dtype, (f"{greatest} - {final}",))
    return f"({greatest} == {final} ? {total} : {total} * {power})"


def finished(write: Expressions, dtype: str, total: str, final: str) -> str:
    """Return the sum as the two passes would have given it: NaN if the maximum is not finite."""
    return f"{total} * {write.scalar('exp', dtype, (f'{final} - {final}',))}"
