"""From a kernel's structure to Python functions: straight lines of ufunc calls that write into registers.

Here: the order of calls, which register holds what and for how long, the text. Not here: shapes, memory, blocks,
threads.

A function computes some of a kernel's instructions over one block. It has three kinds of parameters, in this order:
`positional` ones, which differ from block to block (parts of buffers); the launch scalars ``s0 s1 ..`` as 0-d arrays;
and `frame` ones, which depend on the block's shape alone (registers, reducers). Registers are slots of scratch memory
shared by liveness; an instruction may write over an operand that it is the last to use if it is a single ufunc, which
NumPy runs as if nothing overlapped.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import Kernel, count_build, placements
from polygrad.driver.ir import ITEMSIZE, Instr, kind
from polygrad_cpu import error_function, special

UFUNCS = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "negative": "negative", "divide": "divide",
    "less": "less", "less_equal": "less_equal", "equal": "equal", "not_equal": "not_equal",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "bitwise_invert": "invert",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "floor": "floor", "sqrt": "sqrt",
    "absolute": "absolute", "ceil": "ceil", "trunc": "trunc", "round": "rint", "copysign": "copysign",
    "nextafter": "nextafter", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin", "acos": "arccos",
    "atan": "arctan", "atan2": "arctan2", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "arcsinh",
    "acosh": "arccosh", "atanh": "arctanh", "pow": "power", "fmod": "fmod", "modulo": "fmod",
}  # fmt: skip
EXACT = ("int8", "uint8", "int16", "uint16")  # float32 holds all of them
# NumPy refuses a positional out of maximum and minimum.
KEYWORD_OUT = {"maximum": "maximum", "minimum": "minimum"}

NAMESPACE: dict[str, Any] = {
    **{name: getattr(np, name) for name in (*UFUNCS.values(), *KEYWORD_OUT.values(), "floor_divide")},
    "select": special.select, "select_or_zero": special.select_or_zero, "zero_or_select": special.zero_or_select,
    "window": special.window, "window_into": special.window_into, "to_bfloat16": special.to_bfloat16,
    "erf32": error_function.erf32, "erf64": error_function.erf64,
}  # fmt: skip


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype for a dtype of the IR."""
    return special.BFLOAT16 if name == "bfloat16" else np.dtype(name)


class Item(NamedTuple):
    """A parameter: what it is, and of which view, instruction or store.

    Positional: ``view`` of a view; ``window``, ``gather``, ``start`` (of an iota, None for 0), ``row`` (a ROW value
    kept outside) and ``pile`` (which takes a block's part of a reduction) of an instruction.
    Frame: ``register`` and ``temporary`` of an instruction, in `slot`; ``range`` of an iota; ``reduce`` of an
    instruction; ``partial`` of a store.
    """

    what: str
    number: int
    slot: int = -1
    dtype: str = ""


class Code(NamedTuple):
    """A function and its parameters; `slots` holds for each slot its bytes an element and whether it is FULL."""

    function: Callable[..., None]
    text: str
    positional: tuple[Item, ...]
    frame: tuple[Item, ...]
    slots: tuple[tuple[int, bool], ...]


class Step(NamedTuple):
    """``compute`` an instruction, ``store`` through a store, or ``pile`` a value up for the reduce `number`."""

    what: str
    number: int


def reads_memory_late(kernel: Kernel, position: int) -> bool:
    """Say whether the value is memory of a buffer, so that it is read whenever it is used."""
    instr = kernel.body[position]
    return instr.op == "load" and not instr.args


def is_register(kernel: Kernel, position: int) -> bool:
    """Say whether the value needs an array of its own."""
    instr = kernel.body[position]
    if instr.op == "load":
        return bool(instr.args or kernel.views[instr.attr].window)
    return instr.op not in ("const", "scalar", "bitcast")


def may_be_direct(kernel: Kernel, position: int) -> bool:
    """Say whether the value may be computed where it is stored, whose shape may be wider than its own."""
    instr = kernel.body[position]
    if instr.op == "load" and instr.args:  # a gather writes each element of whatever it is given
        return instr.dtype not in ("float16", "bfloat16")
    return is_register(kernel, position) and instr.op not in ("load", "iota", "reduce")


class _Writer:
    """Writes one function. `rows_outside` says that ROW values live in arrays which the caller keeps."""

    def __init__(self, kernel: Kernel, steps: Sequence[Step], *, rows_outside: bool) -> None:
        self.kernel = kernel
        self.full = [p.full for p in placements(kernel)]
        self.rows_outside = rows_outside
        self.steps = self._sink_stores(steps)
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.positional: dict[str, Item] = {}
        self.frame: dict[str, Item] = {}
        self.names: dict[int, str] = {}
        self.slots: list[tuple[int, bool]] = []
        self.free: dict[tuple[int, bool], list[int]] = {}
        self.slot_of: dict[int, int] = {}
        self.last = self._last_uses()
        self.direct = self._direct_stores()

    # ---- order and liveness -------------------------------------------------------------------------------

    def root(self, position: int) -> int:
        """Return the instruction whose memory a value is: a bitcast has its operand's."""
        while self.kernel.body[position].op == "bitcast":
            position = self.kernel.body[position].args[0]
        return position

    def operands(self, step: Step) -> tuple[int, ...]:
        if step.what == "compute":
            return self.kernel.body[step.number].args
        if step.what == "store":
            return (self.kernel.stores[step.number].value,)
        return self.kernel.body[step.number].args

    def _sink_stores(self, steps: Sequence[Step]) -> list[Step]:
        """Move each store behind the last read of the buffer that it writes."""
        order = list(steps)
        for store in [s for s in steps if s.what == "store"]:
            buffer = self.kernel.views[self.kernel.stores[store.number].view].buffer
            at = order.index(store)
            late = max((i for i in range(at, len(order)) if buffer in self._buffers_read(order[i])), default=at)
            order.insert(late, order.pop(at))
        return order

    def _buffers_read(self, step: Step) -> set[int]:
        body, views = self.kernel.body, self.kernel.views
        found = {
            views[body[r].attr].buffer for a in self.operands(step) if reads_memory_late(self.kernel, r := self.root(a))
        }
        if step.what == "compute" and body[step.number].op == "load":
            found.add(views[body[step.number].attr].buffer)
        return found

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for i, step in enumerate(self.steps):
            for a in self.operands(step):
                last[self.root(a)] = i
        return last

    def _direct_stores(self) -> dict[int, int]:
        """Return instruction -> view for values that are computed into the memory that they are stored in."""
        found: dict[int, int] = {}
        when = {step.number: i for i, step in enumerate(self.steps) if step.what == "compute"}
        for step in self.steps:
            if step.what != "store":
                continue
            store = self.kernel.stores[step.number]
            view, at = self.kernel.views[store.view], when.get(store.value)
            instr = self.kernel.body[store.value]
            if at is None or view.partial or store.value in found or not may_be_direct(self.kernel, store.value):
                continue
            if self.rows_outside and not self.full[store.value]:
                continue
            if instr.op == "negative" and self._is_strided(instr.args[0], found):
                continue
            read = [i for i in range(len(self.steps)) if view.buffer in self._buffers_read(self.steps[i])]
            if all(i < at or (i == at and self._single(instr)) for i in read):
                found[store.value] = store.view
        return found

    def _is_strided(self, position: int, direct: dict[int, int]) -> bool:
        """Say whether a value may lie in a buffer with any stride.

        NumPy 2.4.6 negates the wrong elements if the input's stride in bytes is the square of its itemsize and the
        output is strided too; so negative reads or writes a register, which is contiguous. Remove when that is mended.
        """
        root = self.root(position)
        return reads_memory_late(self.kernel, root) or root in direct

    @staticmethod
    def _single(instr: Instr) -> bool:
        return instr.op in UFUNCS or instr.op in KEYWORD_OUT or instr.op == "rsqrt"

    # ---- registers ----------------------------------------------------------------------------------------

    def _take(self, itemsize: int, *, full: bool) -> int:
        key = (itemsize, full)
        if self.free.get(key):
            return self.free[key].pop()
        self.slots.append(key)
        return len(self.slots) - 1

    def _release(self, roots: Sequence[int]) -> None:
        for r in roots:
            slot = self.slot_of.pop(r, -1)
            if slot >= 0:
                self.free.setdefault(self.slots[slot], []).append(slot)

    def _out(self, position: int) -> str:
        """Return the name of the array that instruction *position* writes, taking a slot for it if it has none."""
        if position in self.direct:
            return self.view(self.direct[position])
        name = f"r{position}"
        if self.rows_outside and not self.full[position]:
            self.positional[name] = Item("row", position)
            return name
        dtype = self.kernel.body[position].dtype
        slot = self._take(ITEMSIZE[dtype], full=self.full[position])
        self.slot_of[position] = slot
        self.frame[name] = Item("register", position, slot, dtype)
        return name

    def _temporaries(self, position: int, dtypes: Sequence[str]) -> list[str]:
        names = []
        taken = []
        for i, dtype in enumerate(dtypes):
            slot = self._take(ITEMSIZE[dtype], full=self.full[position])
            taken.append(slot)
            names.append(f"t{position}_{i}")
            self.frame[names[-1]] = Item("temporary", position, slot, dtype)
        for slot in taken:
            self.free.setdefault(self.slots[slot], []).append(slot)
        return names

    def view(self, number: int) -> str:
        self.positional[f"p{number}"] = Item("view", number)
        return f"p{number}"

    def name(self, position: int) -> str:
        """Return the name of an operand; ROW values that live outside become parameters when they are first named."""
        if position not in self.names:
            instr = self.kernel.body[position]
            if instr.op == "const":
                self.names[position] = f"k{position}"
                self.constants[f"k{position}"] = np.array(instr.attr, numpy_dtype(instr.dtype))
            elif instr.op == "scalar":
                self.names[position] = f"s{instr.attr}"
            elif instr.op == "bitcast":
                self.names[position] = f"b{position}"
                self.constants[f"d_{instr.dtype}"] = numpy_dtype(instr.dtype)
                self.lines.append(f"b{position} = {self.name(instr.args[0])}.view(d_{instr.dtype})")
            elif reads_memory_late(self.kernel, position) and not self.kernel.views[instr.attr].window:
                self.names[position] = self.view(instr.attr)
            else:
                self.names[position] = f"r{position}"
                self.positional[f"r{position}"] = Item("row", position)
        return self.names[position]

    # ---- text ---------------------------------------------------------------------------------------------

    def write(self) -> Code:
        for i, step in enumerate(self.steps):
            if step.what == "compute":
                self._compute(i, step.number)
            elif step.what == "store":
                self._store(step.number)
            else:
                instr = self.kernel.body[step.number]
                self.positional[f"h{step.number}"] = Item("pile", step.number)
                self.frame[f"d{step.number}"] = Item("reduce", step.number)
                self.lines.append(f"h{step.number}(d{step.number}, {self.name(instr.args[0])})")
            if step.what != "compute":
                self._release([r for r, at in self.last.items() if at == i])
        return self._finish()

    def _finish(self) -> Code:
        scalars = [f"s{k}" for k in range(len(self.kernel.scalars))]
        parameters = ", ".join([*self.positional, *scalars, *self.frame])
        body = "\n    ".join(self.lines) or "pass"
        text = f"def fused({parameters}):\n    {body}\n"
        namespace = {**NAMESPACE, **self.constants}
        exec(compile(text, "<fused>", "exec"), namespace)  # noqa: S102  the text is made of the tables above
        count_build()
        return Code(
            namespace["fused"], text, tuple(self.positional.values()), tuple(self.frame.values()), tuple(self.slots)
        )

    def _store(self, number: int) -> None:
        store = self.kernel.stores[number]
        if self.direct.get(store.value) == store.view:
            return
        value, target = self.name(store.value), self.view(store.view)
        if self.kernel.views[store.view].partial:
            self.frame[f"e{number}"] = Item("partial", number)
            self.lines.append(f"e{number}({value}, {target})")
        else:
            self.lines.append(f"{target}[...] = {value}")

    def _compute(self, i: int, position: int) -> None:
        instr = self.kernel.body[position]
        dying = [r for r, at in self.last.items() if at == i]
        if not is_register(self.kernel, position):
            self.name(position)
            return
        args = [self.name(a) for a in instr.args]
        if self._single(instr):
            self._release(dying)
            dying = []
        out = self._out(position)
        self.lines += self._call(position, instr, args, out)
        self.names[position] = out
        self._release(dying)
        if self.root(position) not in self.last:
            self._release([position])

    def _call(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        op = instr.op
        if op in KEYWORD_OUT:
            return [f"{KEYWORD_OUT[op]}({args[0]}, {args[1]}, out={out})"]
        if op in UFUNCS:
            return [f"{UFUNCS[op]}({', '.join(args)}, {out})"]
        special_case: Callable[..., list[str]] = getattr(self, f"_{op}")
        return special_case(position, instr, args, out)

    def _rsqrt(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        self.constants[f"one_{instr.dtype}"] = np.array(1, instr.dtype)
        return [f"sqrt({args[0]}, {out})", f"divide(one_{instr.dtype}, {out}, {out})"]

    def _quotient(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        """Divide a - a mod b, a multiple of b, so that nothing is rounded; by zero it is 0 over 0, NumPy's 0."""
        if instr.dtype[0] == "u":
            return [f"floor_divide({args[0]}, {args[1]}, {out})"]
        (rest,) = self._temporaries(position, [instr.dtype])
        return [
            f"fmod({args[0]}, {args[1]}, {rest})",
            f"subtract({args[0]}, {rest}, {rest})",
            f"floor_divide({rest}, {args[1]}, {out})",
        ]

    def _erf(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        if instr.dtype == "float64":
            return [f"erf64({args[0]}, {out})"]
        temporaries = self._temporaries(position, ["float32"] * 3)
        return [f"erf32({args[0]}, {out}, {', '.join(temporaries)})"]

    def _where(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        (mask,) = self._temporaries(position, [special.BITS[ITEMSIZE[instr.dtype]].name])
        zero = [self._is_zero(a) for a in instr.args]
        name = "select_or_zero" if zero[2] else "zero_or_select" if zero[1] else "select"
        return [f"{name}({', '.join(args)}, {out}, {mask})"]

    def _is_zero(self, position: int) -> bool:
        instr = self.kernel.body[position]
        return instr.op == "const" and instr.attr == 0

    def _cast(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        source = self.kernel.body[instr.args[0]].dtype
        if instr.dtype == "bfloat16" and (source == "float64" or (kind(source) == "int" and source not in EXACT)):
            return [f"to_bfloat16({args[0]}, {out})"]
        return [f"{out}[...] = {args[0]}"]

    def _iota(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        start, numbers = f"o{position}", f"i{position}"
        self.positional[start] = Item("start", position)
        self.frame[numbers] = Item("range", position)
        if self.rows_outside and not self.full[position]:
            return [f"if {start} is None: {out}[...] = {numbers}", f"else: add({numbers}, {start}, {out})"]
        return [f"{out} = {numbers} if {start} is None else add({numbers}, {start}, {out})"]

    def _reduce(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        self.frame[f"d{position}"] = Item("reduce", position)
        return [f"d{position}({args[0]}, {out})"]

    def _load(self, position: int, instr: Instr, args: list[str], out: str) -> list[str]:
        view = self.kernel.views[instr.attr]
        if instr.args:
            self.positional[f"g{position}"] = Item("gather", position)
            return [f"g{position}({', '.join([out, *args])})"]
        self.positional[f"w{position}"] = Item("window", position)
        self.constants[f"f{position}"] = np.array(view.fill, numpy_dtype(view.dtype))
        if self.rows_outside and not self.full[position]:
            return [f"window_into(w{position}, f{position}, {out})"]
        return [f"{out} = window(w{position}, f{position}, {out})"]


# ---- which instructions ------------------------------------------------------------------------------------


class Level(NamedTuple):
    """One pass of a kernel whose reduced axes are run in chunks: ROW work, then a loop of FULL work, or either."""

    row: Code | None
    chunk: Code | None
    reduces: tuple[int, ...]  # finished by the loop


def needed(kernel: Kernel) -> set[int]:
    """Return the instructions that a store depends on."""
    return _closure(kernel, [store.value for store in kernel.stores], lambda _: True)


def _closure(kernel: Kernel, wanted: Sequence[int], follow: Callable[[int], bool]) -> set[int]:
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        position = todo.pop()
        if position not in found and follow(position):
            found.add(position)
            todo += kernel.body[position].args
    return found


class Programs:
    """The functions of one kernel, each made when it is first needed and kept."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @functools.cached_property
    def whole(self) -> Code:
        """The function for blocks that hold all reduced axes."""
        return whole(self.kernel)

    @functools.cached_property
    def levels(self) -> tuple[Level, ...]:
        """The functions for chunks of the reduced axes."""
        return levels(self.kernel)


@functools.lru_cache(maxsize=1024)
def whole(kernel: Kernel) -> Code:
    """Return the function that computes the whole kernel over a block that holds all reduced axes."""
    live = needed(kernel)
    steps: list[Step] = []
    for position in range(len(kernel.body)):
        if position in live:
            steps.append(Step("compute", position))
            steps += [Step("store", n) for n, store in enumerate(kernel.stores) if store.value == position]
    return _Writer(kernel, steps, rows_outside=False).write()


@functools.lru_cache(maxsize=1024)
def levels(kernel: Kernel) -> tuple[Level, ...]:
    """Return the passes of *kernel* for chunks of the reduced axes; each computes the FULL values that it needs."""
    places, live = placements(kernel), needed(kernel)
    result = []
    for level in range(max(places[p].level for p in live) + 1):
        stores = [n for n, store in enumerate(kernel.stores) if places[store.value].level == level]
        rows = [
            p for p in sorted(live)
            if places[p] == (False, level) and is_register(kernel, p) and kernel.body[p].op != "reduce"
        ]  # fmt: skip
        row_steps = [Step("compute", p) for p in rows]
        row_steps += [Step("store", n) for n in stores if not places[kernel.stores[n].value].full]
        reduces = [p for p in sorted(live) if kernel.body[p].op == "reduce" and places[p].level == level + 1]
        full_stores = [n for n in stores if places[kernel.stores[n].value].full]
        wanted = [kernel.body[p].args[0] for p in reduces] + [kernel.stores[n].value for n in full_stores]
        chunk_steps: list[Step] = []
        for position in sorted(_closure(kernel, wanted, lambda p: places[p].full)):
            chunk_steps.append(Step("compute", position))
            chunk_steps += [Step("pile", p) for p in reduces if kernel.body[p].args[0] == position]
            chunk_steps += [Step("store", n) for n in full_stores if kernel.stores[n].value == position]
        row = _Writer(kernel, row_steps, rows_outside=True).write() if row_steps else None
        chunk = _Writer(kernel, chunk_steps, rows_outside=True).write() if chunk_steps else None
        result.append(Level(row, chunk, tuple(reduces)))
    return tuple(result)
