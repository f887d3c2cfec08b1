"""Library ops that a device lacks: computed from other ops on the same device, or, for a short list, on the host's.

Here: `stand_in`. Which way an op goes stands in its declaration: one with a `fallback` stays on the device; eigenvalue,
singular value and QR decompositions borrow the host device, which is counted, warned of once, and refused if the
variable POLYGRAD_FALLBACK says ``error``.
Not here: any op; what a launch does.
"""

import os
import warnings
from typing import Any

from polygrad.errors import FallbackWarning, UnsupportedOp
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node
from polygrad.runtime.devices import State, state

HOST = "cpu:0"
MODES = ("warn", "error", "allow")
_warned: set[tuple[str, str]] = set()


def stand_in(found: State, node: Node) -> None:
    """Give the results of the call that *node* belongs to their values, though the device has no such op.

    Raises
    ------
    UnsupportedOp
        If the host's device would have to help and may not, or lacks the op too.
    """
    from polygrad.runtime.realize import realize  # noqa: PLC0415  the two modules need each other

    op, attrs, parents = node.spec.op, node.spec.attrs[1:], node.parents
    waiting = node.value.living()
    for p in parents:
        if p.device is None and p.spec.op.kind != "scalar":
            p.device = found.name  # it is made of constants alone
    realize(parents)
    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        if op.fallback is not None:
            made = op.fallback(F, *[F.cut(p) for p in parents], *attrs)
            made = made if isinstance(made, tuple) else (made,)
        else:
            made = _borrowed(found, node, parents, attrs)
        made = tuple(F.astype(m, m.dtype) if m.spec.op.kind in ("scalar", "expand") else m for m in made)
        for m in made:
            m.device = m.device or found.name
        realize(made)
    finally:
        RECORDING.enabled = before
    for n in waiting:
        _take(found, n, made[n.spec.attrs[0]])


def _take(found: State, node: Node, made: Node) -> None:
    """Give *node* the value of *made*."""
    from polygrad.runtime.realize import release  # noqa: PLC0415  as above
    from polygrad.runtime.transfer import contiguous  # noqa: PLC0415  as above

    if made.aval is not node.aval:
        raise AssertionError(f"the fallback of {node.spec.op.name} gives {made!r} where {node!r} was inferred")
    source = contiguous(made)
    with found.lock:
        if node.storage is None:
            node.storage = source.storage
            release(node)


def _borrowed(found: State, node: Node, parents: tuple[Node, ...], attrs: tuple[Any, ...]) -> tuple[Node, ...]:
    """Return the results computed on the host's device, brought back."""
    name = node.spec.op.call
    mode = fallback_mode()
    if mode == "error" or found.name == HOST or name not in state(HOST).info.ops:
        why = "POLYGRAD_FALLBACK=error forbids the host's" if mode == "error" else f"nor has {HOST}"
        raise UnsupportedOp(f"{found.name} has no op {name!r}, and {why}: compute it on another device")
    found.fallbacks += 1
    if mode == "warn":
        _warn_once(found.name, name, f"it has no {name!r}, which runs on {HOST}: operands are copied there and back")
    results = getattr(F, node.spec.op.name)(*[F.to_device_(p, HOST) for p in parents], *attrs)
    results = results if isinstance(results, tuple) else (results,)
    return tuple(F.to_device_(r, found.name) for r in results)


def fallback_mode() -> str:
    """Return what the variable POLYGRAD_FALLBACK says: ``warn`` (if it is not set), ``error`` or ``allow``."""
    mode = os.environ.get("POLYGRAD_FALLBACK", "warn")
    if mode not in MODES:
        raise ValueError(f"POLYGRAD_FALLBACK is one of {', '.join(MODES)}, got {mode!r}")
    return mode


def leaves_device(device: str) -> None:
    """Say that an array's value is copied to the host though nobody has asked for that by name.

    Raises
    ------
    TypeError
        If POLYGRAD_FALLBACK says ``error``.
    """
    mode = fallback_mode()
    if mode == "error":
        raise TypeError(
            f"POLYGRAD_FALLBACK=error forbids that an array on {device} is copied to the host by the way: say .numpy()"
        )
    state(device).fallbacks += 1
    if mode == "warn":
        _warn_once(
            device, "__array__", "NumPy asks for an array's value, which is copied to the host; .numpy() says so"
        )


def _warn_once(device: str, what: str, why: str) -> None:
    if (device, what) in _warned:
        return
    _warned.add((device, what))
    warnings.warn(
        f"{device}: {why} (POLYGRAD_FALLBACK=allow silences this, =error forbids it)", FallbackWarning, stacklevel=4
    )
