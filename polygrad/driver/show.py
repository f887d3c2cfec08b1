"""Kernels as text for people.

Here: `show`, one line an instruction.
Not here: text that can be read back (`serial.py`), source code for a device.
"""

from collections.abc import Sequence

from polygrad.driver.ir import Instr, Kernel, Store, View, placements

WIDEST = 80  # comments start at this column at most; longer lines push theirs out


def show(kernel: Kernel, ints: Sequence[int] | None = None) -> str:
    """Return *kernel* as text: its space, then one line for each instruction and store.

    ``i0, i1, ..`` are the indices along the axes, ``b0, b1, ..`` the buffers, ``(%k of n)`` the value %k as an index of
    an axis of size n. A comment says whether a value is FULL (it varies along the reduced axes) or ROW, and how many
    reductions must be finished before it.

    Parameters
    ----------
    kernel : Kernel
    ints : sequence of int, optional
        Launch ints, shown in place of their names.

    Examples
    --------
    >>> row_sum = Kernel(1, 1, ("float32", "float32"), (View(0, "float32", (None, 1)), View(1, "float32", (1, 0))), (),
    ...                  (Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "sum")), (Store(1, 1),))
    >>> print(show(row_sum, (4, 7, 2, 9, 0)))
    kernel: i0 < 4; reduced i1 < 7; 1 pass over the reduced axes
      %0 = load b0[2 + 9*i0 + i1] : float32   # FULL
      %1 = reduce sum %0 : float32            # ROW, after 1 reduction
      store b1[i0] = %1
    """
    names = kernel.int_names
    text = dict(zip(names, map(str, ints), strict=True)) if ints is not None else {name: name for name in names}
    lines = []
    for position, (instr, place) in enumerate(zip(kernel.body, placements(kernel), strict=True)):
        after = f", after {place.level} reduction{'s' * (place.level > 1)}" if place.level else ""
        lines.append((f"  %{position} = {_expression(kernel, instr, text)}", ("FULL" if place.full else "ROW") + after))
    width = min(max((len(line) for line, _ in lines), default=0), WIDEST)
    body = [f"{line:{width}}   # {comment}" if kernel.reduced else line for line, comment in lines]
    stores = [_store(kernel, store, text) for store in kernel.stores]
    return "\n".join([_header(kernel, text), *body, *stores])


def _header(kernel: Kernel, text: dict[str, str]) -> str:
    axes = [f"i{k} < {text[f'n{k}']}" for k in range(kernel.rank)]
    header = "kernel: " + (", ".join(axes[: kernel.parallel]) or "one row")
    if kernel.reduced:
        header += f"; reduced {', '.join(axes[kernel.parallel :])}; {_passes(kernel)} over the reduced axes"
    return header


def _passes(kernel: Kernel) -> str:
    """Count the levels that have work along the reduced axes: reductions to make, or FULL values to store."""
    places = placements(kernel)
    levels = {places[i.args[0]].level for i in kernel.body if i.op == "reduce"}
    levels |= {places[s.value].level for s in kernel.stores if places[s.value].full}
    return f"{len(levels)} pass{'es' * (len(levels) != 1)}"


def _expression(kernel: Kernel, instr: Instr, text: dict[str, str]) -> str:
    operands = " ".join(f"%{a}" for a in instr.args)
    if instr.op == "load":
        view = kernel.views[instr.attr]
        words = ["load", _address(instr.attr, view, text, instr.args)]
        if view.window:
            inside = [f"{text[f'v{instr.attr}.lo{k}']} <= i{k} < {text[f'v{instr.attr}.hi{k}']}" for k in view.window]
            words.append(f"where {' and '.join(inside)} else {view.fill}")
        if instr.guard >= 0:
            words.append(f"if %{instr.guard}")
    elif instr.op == "iota":
        words = ["iota", f"i{instr.attr}"]
    elif instr.op == "scalar":
        words = ["scalar", f"s{instr.attr}"]
    else:
        words = [instr.op, *([] if instr.attr is None else [str(instr.attr)]), *([operands] if operands else [])]
    return f"{' '.join(words)} : {instr.dtype}"


def _address(number: int, view: View, text: dict[str, str], indices: Sequence[int] = ()) -> str:
    terms = [] if text[f"v{number}.o"] == "0" else [text[f"v{number}.o"]]
    for axis, stride in enumerate(view.strides):
        known = text[f"v{number}.s{axis}"] if stride is None else str(stride)
        if known != "0":
            terms.append(f"i{axis}" if known == "1" else f"{known}*i{axis}")
    for j, index in enumerate(indices):
        step, size = text[f"v{number}.gs{j}"], text[f"v{number}.gn{j}"]
        terms.append(f"(%{index} of {size})" if step == "1" else f"{step}*(%{index} of {size})")
    if view.partial:
        terms.append(f"{text[f'v{number}.ps']}*part")
    return f"b{view.buffer}[{' + '.join(terms) or '0'}]"


def _store(kernel: Kernel, store: Store, text: dict[str, str]) -> str:
    view = kernel.views[store.view]
    address = _address(store.view, view, text)
    if not view.partial:
        return f"  store {address} = %{store.value}"
    rows = ", ".join(f"i{k}" for k in range(kernel.parallel)) or "the one row"
    return f"  store {address} = %{store.value} summed over {rows} in {text[f'v{store.view}.parts']} parts"
