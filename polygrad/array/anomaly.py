"""Anomaly detection: every value and every gradient checked as it is made.

Here: `detect_anomaly`, and the sweep with its checks.
Not here: anything that runs when nobody detects.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator

from polygrad import dtypes
from polygrad.array.object import Array
from polygrad.autograd import sweep, sweep_again
from polygrad.errors import GradError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, creation_site
from polygrad.runtime.realize import realize

_anomaly = threading.local()


@contextlib.contextmanager
def detect_anomaly() -> Iterator[None]:
    """Check every value and every gradient of this thread for NaN and infinity as it is made; slow, for debugging.

    Raises
    ------
    GradError
        Naming the op, whether forward or backward, and the line that made it.

    Examples
    --------
    >>> import polygrad as pg
    >>> with pg.detect_anomaly():
    ...     pg.log(pg.asarray([-1.0]))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    polygrad.errors.GradError: log gave NaN
    """
    outer = RECORDING.observer
    checking = [False]

    def observe(node: Node) -> None:
        if outer is not None:
            outer(node)
        # The sweep checks its own; what vmap reads has no values, what it makes of it is checked.
        if not checking[0] and not getattr(_anomaly, "sweeping", False) and not RECORDING.batches:
            node.trace = creation_site()
            checking[0] = True
            try:
                _check_finite(node, node, "forward")
            finally:
                checking[0] = False

    def observe_gradient(node: Node, gradient: Node) -> None:
        if not checking[0] and not RECORDING.batches:
            checking[0] = True
            gradient.device = gradient.device or node.device
            try:
                _check_finite(gradient, node, "backward")
            finally:
                checking[0] = False

    before = getattr(_anomaly, "observer", None)
    RECORDING.observer, _anomaly.observer = observe, observe_gradient
    try:
        yield
    finally:
        RECORDING.observer, _anomaly.observer = outer, before


def swept(
    seeds: list[tuple[Node, Node]],
    mask: int,
    observer: Callable[[Node, Node], None] | None = None,
    ends: Collection[Node] = (),
) -> tuple[dict[Node, Node], list[Node]]:
    """Return what `sweep` does, its gradients checked if this thread detects anomalies."""
    inspector = getattr(_anomaly, "observer", None)
    if inspector is None and observer is None and not ends and len(seeds) == 1:
        return sweep_again(*seeds[0], mask)
    before, _anomaly.sweeping = getattr(_anomaly, "sweeping", False), inspector is not None
    try:
        return sweep(seeds, mask, observer, inspector, ends)
    finally:
        _anomaly.sweeping = before


def _check_finite(value: Node, culprit: Node, direction: str) -> None:
    if dtypes.KINDS[value.aval.dtype] != "float" or not value.aval.size or value.device is None:
        return
    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        fine = F.all(F.isfinite(F.cut(value)))
    finally:
        RECORDING.enabled = before
    realize([fine])
    if not Array(fine).item():
        where = f"{culprit.trace[0]}:{culprit.trace[1]}, in {culprit.trace[2]}" if culprit.trace else "an unknown line"
        what = "value" if direction == "forward" else "gradient"
        raise GradError(
            f"{direction} anomaly: the {what} of {culprit.spec.op.name.rstrip('_')} {culprit.aval!r}, made at "
            f"{where}, holds a NaN or an infinity"
        )
