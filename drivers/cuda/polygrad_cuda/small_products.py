"""Small products of float32 in one launch of our own: for these a library is late before it begins.

Here: for which products, and launching. Not here: text (`small_products_source.py`), all other products (`matmul.py`).

Products of few tiles leave most of a device idle unless the inner axis is divided. Clusters do that without a second
launch; only devices since Hopper have them, so others leave all to cuBLAS. Where a library has blocks enough, or long
sums, it wins: measured on an H200, 128 x 256 x 512 takes 5.3 us here and 7.8 there, 512 x 256 x 128 5.3 and 4.5.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from polygrad_cuda.matmul_plan import Plan
from polygrad_cuda.small_products_source import SLOTS, STEP, THREADS, TILE, Form, text_of

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

HOPPER = 90
SPLITS = (8, 4, 2)
SHORTEST = 16  # terms of the inner axis that a block takes at least
LONGEST = 112  # and at most: with more of them the library's larger tiles win
FEW = 8  # multiprocessors for each tile, at least
FOUR = 16  # bytes of four elements, which are read at once if they are aligned
MOST = (1 << 31) - 1
Addresses = Callable[[int, int, int, int], None]  # of a, b, out and addend


def split_of(plan: Plan, multiprocessors: int) -> int:
    """Return how many blocks share each tile of a product; 0 if it is none of these.

    Examples
    --------
    >>> from polygrad_cuda.matmul_plan import plan
    >>> def of(m, n, k):
    ...     return split_of(plan((m, n), k, ((k, 1), (n, 1), (n, 1)))[0], 132)
    >>> of(128, 512, 784), of(128, 256, 10), of(784, 512, 128), of(4096, 768, 768)
    (8, 1, 0, 0)
    """
    tiles = -(-plan.m // TILE) * -(-plan.n // TILE) * plan.batch[0]
    if plan.outer or tiles * FEW > multiprocessors or max(plan.a.leading, plan.b.leading, plan.m * plan.n) > MOST:
        return 0
    split = next((s for s in SPLITS if tiles * s <= multiprocessors and plan.k >= s * SHORTEST), 1)
    return split if plan.k <= split * LONGEST else 0


class SmallProducts:
    """The small products of one device."""

    def __init__(self, driver: "CudaDriver") -> None:
        self.driver = driver
        self.able = int(driver.compiler.architecture) >= HOPPER

    def call(self, plan: Plan, row: bool | None, activation: str) -> Addresses | None:
        """Return what launches a product; None if it is not small.

        *row* says whether one row is added to all of its rows, or an array of its own size; None: nothing is.
        """
        split = split_of(plan, self.driver.multiprocessors) if self.able else 0
        if not split:
            return None
        count, a_next, b_next, out_next = plan.batch
        span = -(-plan.k // (split * STEP)) * STEP
        grid = (split * -(-plan.n // TILE), -(-plan.m // TILE), count)
        sizes = (plan.m, plan.n, plan.k, span, plan.a.leading, plan.b.leading, 0 if row else plan.n)
        steps = (a_next, b_next, out_next, out_next if row is False else 0)
        texts = [
            text_of(
                Form(split, not plan.a.transposed, plan.b.transposed, *fours, row is not None, activation == "relu")
            )
            for fours in ((False, False), (False, True), (True, False), (True, True))
        ]
        a_even, b_even = (
            leading % 4 == 0 and step % 4 == 0 for leading, step in ((plan.a.leading, a_next), (plan.b.leading, b_next))
        )

        def launch(a: int, b: int, out: int, addend: int) -> None:
            text = texts[2 * (a_even and a % FOUR == 0) + (b_even and b % FOUR == 0)]
            values = (a, b, out, addend, *sizes, *steps)
            self.driver.launch(text, "product", grid, (THREADS, 1, 1), SLOTS, values)

        return launch
