"""The greatest value and what is summed around it in one pass: two levels of a softmax or a cross-entropy read once.

Here: which passes can be merged, and the text of running sums that change with their greatest value.
Not here: passes that keep their row in registers, which read it once anyway.

For values x with the maximum m, the sum of exp(x - m) is kept as (g, s): the greatest so far, and the sum of
exp(x - g). When values arrive, s is scaled by exp(old g - new g), which is exactly 1 as long as g stays. An infinite g
would give NaN where the factor should be 0, so until a number comes 0 stands for a g of -inf; a NaN or +inf makes NaN
of the sum, as it does in two passes, and a row of nothing but -inf gets its NaN at the end. How many values equal the
maximum, which its gradient asks for, starts again when g changes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from polygrad.driver.ir import Kernel, kind
from polygrad.driver.render.expressions import Expressions
from polygrad.driver.render.gpu_schedule import Pass
from polygrad.driver.render.gpu_tree import pairwise


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
    """Return the reduction m, a maximum of x, if *n* sums exp(x - m) or counts the x that equal m, else -1."""
    body = kernel.body
    if body[n].attr != "sum" or kind(body[n].dtype) != "float":
        return -1
    term = body[body[n].args[0]]
    pair = body[term.args[0]] if term.op in ("exp", "cast") else term
    if (term.op, pair.op) not in (("exp", "subtract"), ("cast", "equal")):
        return -1
    x, m = pair.args
    greatest = body[m]
    found = (greatest.op, greatest.attr, greatest.args, greatest.dtype) == ("reduce", "max", (x,), body[n].dtype)
    return m if found else -1


def counts(kernel: Kernel, n: int) -> bool:
    """Whether running sum *n* is the number of values that equal the maximum."""
    return kernel.body[kernel.body[n].args[0]].op == "cast"


def meet(
    write: Expressions,
    kernel: Kernel,
    greatest: tuple[int, str],
    totals: Iterable[tuple[int, str]],
    values: Sequence[str],
) -> list[str]:
    """Return the statements by which values meet a running maximum and its sums, all given as (reduction, variable)."""
    m, old = greatest
    dtype = kernel.body[m].dtype
    register, (zero, one) = write.dialect.register(dtype), (write.dialect.literal(k, dtype) for k in (0, 1))
    top = write.reduce_step("max", dtype, old, pairwise(write.reduce_step, "max", dtype, values))
    lines = [
        f"{{ const {register} top = {top};",
        f"const {register} level = top == {write.identity('max', dtype)} ? {zero} : top;",
    ]
    for n, total in totals:
        if counts(kernel, n):
            kept, terms = f"({old} == top ? {total} : {zero})", [f"({v} == top ? {one} : {zero})" for v in values]
        else:
            kept = f"{total} * {write.scalar('exp', dtype, (f'({old} - level)',))}"
            terms = [write.scalar("exp", dtype, (f"({v} - level)",)) for v in values]
        lines.append(f"{total} = {kept} + {pairwise(write.reduce_step, 'sum', dtype, terms)};")
    return [*lines, f"{old} = top; }}"]


def rescaled(write: Expressions, kernel: Kernel, n: int, total: str, greatest: str, final: str) -> str:
    """Return a sum that belongs to one maximum as it counts under the final one."""
    dtype = kernel.body[n].dtype
    if counts(kernel, n):
        return f"({greatest} == {final} ? {total} : {write.dialect.literal(0, dtype)})"
    power = write.scalar("exp", dtype, (f"{greatest} - {final}",))
    return f"({greatest} == {final} ? {total} : {total} * {power})"


def finished(write: Expressions, kernel: Kernel, n: int, total: str, final: str) -> str:
    """Return the sum as the two passes would have given it: NaN if the maximum is not finite."""
    if counts(kernel, n):
        return total
    return f"{total} * {write.scalar('exp', kernel.body[n].dtype, (f'{final} - {final}',))}"
