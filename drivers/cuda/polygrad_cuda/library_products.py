"""Products by cuBLASLt: with a sum and a relu at their end, and with the fastest of the library's algorithms if asked.

Here: descriptors, the choice of an algorithm, calls. Not here: which products come here (`matmul.py`).

The library's first choice is a guess from the sizes. With the attribute `tune` each of its guesses is timed once for
each kind of product, in a CUDA graph, on the operands themselves; what was fastest is used from then on. Other
algorithms add up in another order, and which one wins may differ from run to run: so this is for those who ask.
"""

import ctypes
import functools
import importlib
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polygrad_cuda.matmul_plan import Operand, Plan

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

# Numbers of cuBLASLt's ABI: attributes of a product, of a preference; epilogues; what partial sums may be added up in.
TRANSPOSED_A, TRANSPOSED_B, EPILOGUE, BIAS = 3, 4, 7, 8
MOST_WORKSPACE, REDUCTIONS, *ALIGNMENTS = 1, 3, 5, 6, 7, 8
PLAIN, RELU, ROW = 1, 2, 4
IN_PLACE, WIDE = 1, 2
RESULT = 12  # words of eight bytes that describe a guess; the algorithm is the first of its members
GUESSES = 16
ALIGNED = 16  # bytes; addresses that are less aligned take another way
TIMED = 1e-3  # seconds of each measurement
ROUNDS = 3
Array = np.ndarray[Any, Any]
Addresses = Callable[[int, int, int, int], None]  # of a, b, out and addend


class Numbers(NamedTuple):
    """A dtype as the library knows it: its code, those of sums and of factors, and where 1 and 0 are."""

    code: int
    compute: int
    scale: int
    one: int
    zero: int


class LibraryProducts:
    """The handle of one device."""

    def __init__(self, driver: "CudaDriver", workspace: int, nbytes: int) -> None:
        self.driver = driver
        self.lt = importlib.import_module("nvmath.bindings.cublasLt")
        self.handle = self.lt.create()
        self.workspace, self.nbytes = workspace, nbytes
        self.tuned: dict[Any, Array] = {}

    def close(self) -> None:
        """Give the handle back."""
        self.lt.destroy(self.handle)

    def call(
        self, plan: Plan, numbers: Numbers, row: bool | None, activation: str, *, tune: bool, otherwise: Addresses
    ) -> Addresses:
        """Return what computes one product at given addresses; *otherwise* does if they are not aligned.

        *row* says whether one row is added to all of its rows, or an array of its own size; None: nothing is.
        """
        product = _Product(self, plan, numbers, row, activation)
        key = (plan, numbers.code, numbers.compute, row, activation)
        guessed: list[Array] = []

        def run(a: int, b: int, out: int, addend: int) -> None:
            if (a | b | out | addend) % ALIGNED:
                otherwise(a, b, out, addend)
                return
            chosen = self.tuned.get(key) if tune else None
            if chosen is None:
                if not guessed:
                    guessed.extend(product.guesses(GUESSES if tune else 1))
                chosen = guessed[0]
                if tune and not self.driver.capturing:
                    chosen = self.tuned[key] = self._fastest(product, guessed, (a, b, out, addend))
            product.launch(chosen, a, b, out, addend)

        return run

    def _fastest(self, product: "_Product", guesses: Sequence[Array], addresses: tuple[int, int, int, int]) -> Array:
        """Return the algorithm that takes least time."""
        times = [self._seconds(functools.partial(product.launch, guess, *addresses)) for guess in guesses]
        return guesses[int(np.argmin(times))]

    def _seconds(self, launch: Callable[[], None]) -> float:
        """Return how long a launch takes, of many in a graph: from Python it would take longer than most products."""
        cupy, stream = self.driver.cupy, self.driver.cupy_stream
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()

        def elapsed(work: Callable[[], None]) -> float:
            begin.record(stream)
            work()
            end.record(stream)
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3

        launch()  # what is loaded at first use is no part of it
        count = max(2, min(50, int(TIMED / max(elapsed(launch), 1e-6))))
        stream.begin_capture()
        for _ in range(count):
            launch()
        graph = stream.end_capture()
        return min(elapsed(lambda: graph.launch(stream)) for _ in range(ROUNDS)) / count


class _Product:
    """One kind of product with its descriptors, which go when it goes."""

    def __init__(self, owner: LibraryProducts, plan: Plan, numbers: Numbers, row: bool | None, activation: str) -> None:
        self.owner, self.plan, self.numbers, self.row = owner, plan, numbers, row
        lt, code = owner.lt, numbers.code
        self.product = lt.matmul_desc_create(numbers.compute, numbers.scale)
        self._set(TRANSPOSED_A, ctypes.c_int32(plan.b.transposed))  # column-major: a and b are swapped
        self._set(TRANSPOSED_B, ctypes.c_int32(plan.a.transposed))
        self._set(EPILOGUE, ctypes.c_uint32((ROW if row else 0) | (RELU if activation else 0) or PLAIN))
        self.b = _layout(lt, code, plan.n, plan.k, plan.b)
        self.a = _layout(lt, code, plan.k, plan.m, plan.a)
        self.out = lt.matrix_layout_create(code, plan.n, plan.m, plan.n)
        made = [
            (lt.matmul_desc_destroy, self.product),
            *((lt.matrix_layout_destroy, x) for x in (self.a, self.b, self.out)),
        ]
        weakref.finalize(self, _destroy, made)

    def _set(self, attribute: int, value: Any) -> None:
        self.owner.lt.matmul_desc_set_attribute(self.product, attribute, ctypes.addressof(value), ctypes.sizeof(value))

    def guesses(self, count: int) -> list[Array]:
        """Return up to so many algorithms, the one first that the library thinks fastest."""
        lt, owner = self.owner.lt, self.owner
        wishes = lt.matmul_preference_create()
        reductions = WIDE if self.numbers.code in NARROW else IN_PLACE | WIDE
        values = {MOST_WORKSPACE: ctypes.c_uint64(owner.nbytes), REDUCTIONS: ctypes.c_uint32(reductions)}
        values |= {name: ctypes.c_uint32(ALIGNED) for name in ALIGNMENTS}
        found, number = np.zeros((count, RESULT), np.uint64), ctypes.c_int(0)
        try:
            for name, value in values.items():
                lt.matmul_preference_set_attribute(wishes, name, ctypes.addressof(value), ctypes.sizeof(value))
            lt.matmul_algo_get_heuristic(
                owner.handle, self.product, self.b, self.a, self.out, self.out, wishes, count, found.ctypes.data,
                ctypes.addressof(number),
            )  # fmt: skip
        finally:
            lt.matmul_preference_destroy(wishes)
        return list(found[: number.value])

    def launch(self, algorithm: Array, a: int, b: int, out: int, addend: int) -> None:
        """Queue the product."""
        owner, one, zero = self.owner, self.numbers.one, self.numbers.zero
        if self.row:
            self._set(BIAS, ctypes.c_uint64(addend))
        whole = self.row is False
        owner.lt.matmul(
            owner.handle, self.product, one, b, self.b, a, self.a, one if whole else zero, addend if whole else out,
            self.out, out, self.out, algorithm.ctypes.data, owner.workspace, owner.nbytes, owner.driver.stream,
        )  # fmt: skip


NARROW = (2, 14)  # the codes of float16 and bfloat16


def _layout(lt: Any, code: int, rows: int, columns: int, operand: Operand) -> int:
    """Return the descriptor of an operand, which is column-major, as it lies in memory."""
    lying = (columns, rows) if operand.transposed else (rows, columns)
    made: int = lt.matrix_layout_create(code, *lying, operand.leading)
    return made


def _destroy(made: Sequence[tuple[Callable[[int], None], int]]) -> None:
    for function, descriptor in made:
        function(descriptor)
