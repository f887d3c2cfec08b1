"""What a driver offers if it can move values between the devices of several processes by itself.

Here: the interface.
Not here: any implementation; what moves values through host memory (`polygrad.distributed`).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from polygrad.driver.types import Ref


class Collectives(Protocol):
    """Collectives of one open device, from `polygrad_collectives`.

    All ranks make the same calls in the same order. A call enqueues its work, which begins after all launches made
    before it, and returns a token at once; launches made later run beside it until `wait`. Refs are contiguous and stay
    as they are until the token was waited for; results do not overlap operands. `name` is the library's, such as
    ``"NCCL"``; `sums` are the dtypes that it adds.
    """

    name: str
    sums: frozenset[str]

    def identity(self) -> bytes:
        """Return what a job is known by; one rank makes it for all."""

    def connect(self, identity: bytes, rank: int, size: int) -> None:
        """Join a job; every rank does, and each returns when all have."""

    def all_reduce(self, pairs: Sequence[tuple[Ref, Ref]], op: str) -> Any:
        """Combine operands, first of each pair, into the second on every rank; *op* is sum, max or min."""

    def broadcast(self, pairs: Sequence[tuple[Ref, Ref]], root: int) -> Any:
        """Copy the operands of one rank to the results of all."""

    def all_gather(self, pairs: Sequence[tuple[Ref, Ref]]) -> Any:
        """Copy the operand of each rank to its place along the first axis of the result."""

    def reduce_scatter(self, pairs: Sequence[tuple[Ref, Ref]]) -> Any:
        """Add operands, and give each rank its part of the first axis."""

    def done(self, token: Any) -> bool:
        """Whether the work of a token is done; may be called in another thread. Raises what went wrong."""

    def wait(self, token: Any) -> None:
        """Let launches made from now on begin after the work of a token; does not block."""

    def mark(self) -> Any:
        """Return a token behind the launches made so far."""

    def times(self, token: Any) -> tuple[float, float]:
        """Return when the device began and ended the work of a token, in seconds since `connect`; waits for it."""

    def abort(self) -> None:
        """Give up all work under way, at once, whatever other ranks do; may be called in another thread."""

    def close(self) -> None:
        """Give back what `connect` took."""
