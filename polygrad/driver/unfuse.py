"""Kernels on a device that has an op library and no compiler: each instruction is an op on whole arrays.

Here: `Library`, what such a driver brings, and `unfuse`, which makes a launchable kernel of it. Not here: any library.

A value is an array of the library with one dimension an axis, of size 1 where it does not vary along it. Nothing is
fused, so each instruction is a pass over memory: right first, and fast where a library's op does the work of many.

    class AcmeDriver(DriverBase):
        def prepare_fused(self, kernel):
            return unfuse(self.library, kernel)
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polygrad.driver.ir import Kernel, placements
from polygrad.driver.launch import BoundView, Launch, decode
from polygrad.driver.types import Handle, Prepared, Ref

Value = Any  # an array of the library: it has a `shape`, and slices as NumPy's arrays do

WORD = 0xFFFFFFFF
GREATEST = 2**63 - 1


class Library:
    """What an op library must be able to do; subclass it, and write every method that raises here.

    `functions` maps the names of scalar ops, and ``where``, to functions of values. Operands have one dtype and the
    sizes that broadcast against each other; what is declared in `DeviceInfo.scalar_ops` must be there.
    """

    functions: Mapping[str, Callable[..., Value]]

    def load(self, ref: Ref) -> Value:
        """Return the strided memory of *ref* as a value of its shape: a view of it or a copy."""
        raise NotImplementedError

    def store(self, ref: Ref, value: Value) -> None:
        """Write *value*, broadcast to ``ref.shape``, to strided memory."""
        raise NotImplementedError

    def copy(self, value: Value) -> Value:
        """Return *value* in memory of its own; called where a kernel reads and writes the same buffer."""
        raise NotImplementedError

    def constant(self, number: bool | int | float, dtype: str, rank: int) -> Value:
        """Return *number* as a value of *rank* dimensions of size 1."""
        raise NotImplementedError

    def arange(self, count: int) -> Value:
        """Return 0, 1, .. up to *count* as a value of one dimension of dtype int64."""
        raise NotImplementedError

    def cast(self, value: Value, source: str, dtype: str) -> Value:
        """Return *value*, of dtype *source*, as *dtype*."""
        raise NotImplementedError

    def bitcast(self, value: Value, source: str, dtype: str) -> Value:
        """Return the bits of *value*, of dtype *source*, as *dtype*."""
        raise NotImplementedError

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return *value* with another shape, of as many elements."""
        raise NotImplementedError

    def broadcast(self, value: Value, shape: Sequence[int]) -> Value:
        """Return *value* repeated along its dimensions of size 1."""
        raise NotImplementedError

    def pad(self, value: Value, widths: Sequence[tuple[int, int]], fill: bool | int | float) -> Value:
        """Return *value* with (before, after) elements of *fill* around it along each dimension."""
        raise NotImplementedError

    def take(self, flat: Value, index: Value) -> Value:
        """Return for each element of *index*, int64 and never out of bounds, that element of *flat*."""
        raise NotImplementedError

    def first(self, value: Value, mask: Value) -> int | None:
        """Return the first element of *value*, in C order, where *mask* of the same shape is true; None if nowhere."""
        raise NotImplementedError

    def reduce(self, name: str, value: Value, axis: int, dtype: str) -> Value:
        """Return *value* reduced along *axis*, which goes away, by one of `ir.REDUCTIONS`, in its own dtype."""
        raise NotImplementedError

    def hold(self, value: Value, dtype: str) -> Value:  # noqa: ARG002  for those who write it
        """Return the result of an instruction as values of *dtype* are held; for libraries that lack dtypes.

        A library without uint32, say, may hold it as int64, and bring each result back into range here.
        """
        return value


def unfuse(library: Library, kernel: Kernel) -> Prepared:
    """Return what launches *kernel*: every value by the *library*'s ops, then every store.

    Examples
    --------
    >>> unfuse(Library(), Kernel(1, 0, (), (), (), (), ()))((), (4,), ())
    """
    last: dict[int, int] = {}
    for position, instr in enumerate(kernel.body):
        last |= dict.fromkeys((*instr.args, instr.guard), position)
    kept = {store.value for store in kernel.stores}
    dying = {p: [v for v, when in last.items() if when == p and v not in kept] for p in last.values()}
    return functools.partial(_run, library, kernel, dying)


def _run(
    library: Library,
    kernel: Kernel,
    dying: Mapping[int, Sequence[int]],
    buffers: Sequence[Handle],
    ints: tuple[int, ...],
    scalars: Sequence[Any],
) -> None:
    run = _Run(library, kernel, decode(kernel, ints), buffers)
    values: dict[int, Value] = {}
    for position, (op, dtype, places, attr, guard) in enumerate(kernel.body):
        args = [values[a] for a in places]
        if op == "load":
            value = run.gather(position, args, values.get(guard)) if args else run.read(attr)
        elif op in ("const", "scalar"):
            value = library.constant(attr if op == "const" else scalars[attr], dtype, kernel.rank)
        elif op == "iota":
            value = library.cast(run.along(attr), "int64", dtype)
        elif op == "cast":
            value = library.cast(args[0], kernel.body[places[0]].dtype, dtype)
        elif op == "bitcast":
            value = library.bitcast(args[0], kernel.body[places[0]].dtype, dtype)
        elif op == "reduce":
            value = run.reduce(attr, args[0], dtype)
        else:
            value = library.functions[op](*args)
        values[position] = library.hold(value, dtype)
        for dead in dying.get(position, ()):
            values.pop(dead, None)
    for number, view in kernel.stores:
        run.write(view, values[number], kernel.body[number].dtype, full=placements(kernel)[number].full)


class _Run:
    """One launch: loads, stores and reductions at its extents."""

    def __init__(self, library: Library, kernel: Kernel, launch: Launch, buffers: Sequence[Handle]) -> None:
        self.library, self.kernel, self.launch, self.buffers = library, kernel, launch, buffers
        self.do, self.extents, self.rank = getattr(library, "functions", {}), launch.extents, kernel.rank
        self.written = {kernel.views[store.view].buffer for store in kernel.stores}

    def integer(self, number: int) -> Value:
        return self.library.constant(number, "int64", self.rank)

    def along(self, axis: int) -> Value:
        """Return the index along *axis*."""
        shape = [self.extents[axis] if k == axis else 1 for k in range(self.rank)]
        return self.library.reshape(self.library.arange(self.extents[axis]), shape)

    def inside(self, bound: BoundView) -> list[tuple[int, int]]:
        """Return for each axis the half-open range of indices that lies in memory, of one index where none moves it."""
        ranges = [(0, n if stride else 1) for n, stride in zip(self.extents, bound.strides, strict=True)]
        for axis, lo, hi in bound.window:
            ranges[axis] = max(lo, 0), min(hi, self.extents[axis])
        return ranges

    def read(self, number: int) -> Value:
        """Return the value of a load without indices: strided memory, and around its windows the fill."""
        view, bound = self.kernel.views[number], self.launch.views[number]
        ranges = self.inside(bound)
        if any(lo >= hi for lo, hi in ranges):
            return self.library.constant(view.fill, view.dtype, self.rank)
        offset = bound.offset + sum(stride * lo for stride, (lo, _) in zip(bound.strides, ranges, strict=True))
        shape = tuple(hi - lo for lo, hi in ranges)
        value = self.library.load(Ref(self.buffers[view.buffer], offset, shape, bound.strides, view.dtype))
        if bound.window:
            windows = {axis: ranges[axis] for axis, _, _ in bound.window}
            widths = [
                (windows[k][0], self.extents[k] - windows[k][1]) if k in windows else (0, 0) for k in range(self.rank)
            ]
            return self.library.pad(value, widths, view.fill)
        return self.library.copy(value) if view.buffer in self.written else value

    def gather(self, position: int, indices: Sequence[Value], guard: Value | None) -> Value:
        """Return the value of a load with indices, element by element; the first bad index is reported."""
        number = self.kernel.body[position].attr
        view, bound, do = self.kernel.views[number], self.launch.views[number], self.do
        ranges = self.inside(bound)
        fill = self.library.constant(view.fill, view.dtype, self.rank)
        if any(lo >= hi for lo, hi in ranges):
            return fill
        address, mask = self.integer(bound.offset), None
        for axis, stride in enumerate(bound.strides):
            if stride:
                address = do["add"](address, do["multiply"](self.integer(stride), self.along(axis)))
        for axis, lo, hi in bound.window:
            index = self.along(axis)
            for low, high in ((self.integer(lo), index), (index, self.integer(hi - 1))):
                within = do["less_equal"](low, high)
                mask = within if mask is None else do["bitwise_and"](mask, within)
        reported = guard if mask is None else mask if guard is None else do["bitwise_and"](mask, guard)
        spans = [stride * (n - 1) for stride, n in bound.gathers]
        for a, index, (stride, size) in zip(self.kernel.body[position].args, indices, bound.gathers, strict=True):
            place = self.place(position, index, self.kernel.body[a].dtype, size, reported)
            address = do["add"](address, do["multiply"](self.integer(stride), place))
        # The memory that addresses can reach, from its first element to its last, and addresses from there on.
        for stride, (lo, hi) in zip(bound.strides, ranges, strict=True):
            spans.append(stride * (hi - 1 - lo))
        start = bound.offset + sum(stride * lo for stride, (lo, _) in zip(bound.strides, ranges, strict=True))
        first, last = start + sum(min(s, 0) for s in spans), start + sum(max(s, 0) for s in spans)
        address = do["subtract"](address, self.integer(first))
        flat = self.library.load(Ref(self.buffers[view.buffer], first, (last - first + 1,), (1,), view.dtype))
        if mask is None:
            return self.library.take(flat, address)
        return do["where"](mask, self.library.take(flat, do["where"](mask, address, self.integer(0))), fill)

    def signed(self, index: Value, dtype: str) -> Value:
        """Return *index* as int64; of uint64 what lies beyond is as far outside of any axis as the greatest int64."""
        if dtype == "uint64":
            most = self.library.constant(GREATEST, dtype, self.rank)
            index = self.do["where"](self.do["less"](index, most), index, most)
        return self.library.cast(index, dtype, "int64")

    def place(self, position: int, given: Value, dtype: str, size: int, reported: Value | None) -> Value:
        """Return the place in [0, size) that an index stands for, and report one that stands for none."""
        do, zero, top, index = self.do, self.integer(0), self.integer(size - 1), self.signed(given, dtype)
        placed = do["where"](do["less"](index, zero), do["add"](index, self.integer(size)), index)
        below, above = do["less"](placed, zero), do["less"](top, placed)
        bad = do["bitwise_or"](below, above)
        bad = bad if reported is None else do["bitwise_and"](bad, reported)
        self.report(position, self.library.first(*(self.library.broadcast(x, self.extents) for x in (given, bad))))
        return do["where"](below, zero, do["where"](above, top, placed))

    def report(self, position: int, index: int | None) -> None:
        """Write a bad index to the status word, unless one is there already."""
        word = Ref(self.buffers[self.kernel.status], 0, (1,), (1,), "int32")
        if index is None or int(self.library.load(word)[0]):
            return
        halves = [(half ^ 1 << 31) - (1 << 31) for half in (index & WORD, index >> 32 & WORD)]  # as int32
        for k, number in enumerate((self.launch.tag, position, *halves)):
            self.library.store(word._replace(offset=k), self.library.constant(number, "int32", 1))

    def reduce(self, name: str, value: Value, dtype: str) -> Value:
        """Return *value* reduced over all reduced axes, which stay as dimensions of size 1."""
        rows = tuple(value.shape[: self.kernel.parallel])
        full = self.library.broadcast(value, (*rows, *self.extents[self.kernel.parallel :]))
        reduced = self.library.reduce(name, self.library.reshape(full, (*rows, -1)), len(rows), dtype)
        return self.library.reshape(reduced, (*rows, *(1,) * self.kernel.reduced))

    def write(self, number: int, value: Value, dtype: str, *, full: bool) -> None:
        """Store a value; a partial one is summed over rows, part by part."""
        view, bound, parallel = self.kernel.views[number], self.launch.views[number], self.kernel.parallel
        reduced = self.extents[parallel:]
        shape = self.extents if full else (*self.extents[:parallel], *(1,) * len(reduced))
        ref = Ref(self.buffers[view.buffer], bound.offset, shape, bound.strides, view.dtype)
        if not view.partial:
            self.library.store(ref, value)
            return
        rows = self.library.reshape(self.library.broadcast(value, self.extents), (-1, *reduced))
        height = -(-rows.shape[0] // bound.parts)
        for part in range(bound.parts):
            total = self.library.reduce("sum", rows[part * height : (part + 1) * height], 0, dtype)
            start = bound.offset + part * bound.part_stride
            place = ref._replace(offset=start, shape=reduced, strides=bound.strides[parallel:])
            self.library.store(place, self.library.hold(total, dtype))


def random_bits(library: Library, out: Ref, key: int, counter: int) -> None:
    """Write random words to *out*, uint32: the accelerated op of this name, for a library without uint64.

    Philox-4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC11) in int64, whose products wrap as
    those of uint64 do; `functions` must have add, multiply, bitwise_and, bitwise_xor and bitwise_right_shift.
    """
    do, count = library.functions, out.shape[0]
    half = functools.partial(library.constant, dtype="int64", rank=1)

    def low(value: Value) -> Value:
        return do["bitwise_and"](value, half(WORD))

    def high(value: Value) -> Value:
        return low(do["bitwise_right_shift"](value, half(32)))

    block = do["add"](library.arange(-(-count // 4)), half(counter - (counter >> 63 << 64)))
    words, keys = [low(block), high(block), half(0), half(0)], [key & WORD, key >> 32]
    for _ in range(10):
        a, b = do["multiply"](half(0xD2511F53), words[0]), do["multiply"](half(0xCD9E8D57), words[2])
        mixed = [do["bitwise_xor"](do["bitwise_xor"](high(x), w), half(k)) for x, w, k in
                 ((b, words[1], keys[0]), (a, words[3], keys[1]))]  # fmt: skip
        words = [mixed[0], low(b), mixed[1], low(a)]
        keys = [(keys[0] + 0x9E3779B9) & WORD, (keys[1] + 0xBB67AE85) & WORD]
    for lane, word in enumerate(words):
        if lane < count:
            shape = (-(-(count - lane) // 4),)
            part = library.broadcast(word, (-(-count // 4),))[: shape[0]]
            ref = out._replace(offset=out.offset + lane, shape=shape, strides=(4,))
            library.store(ref, library.hold(library.cast(part, "int64", "uint32"), "uint32"))
