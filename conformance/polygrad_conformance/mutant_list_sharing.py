"""The mutants of memory that is shared by DLPack.

Here: the list. Not here: other mutants of levels 0 to 3 (`mutant_list.py`), how they are tried (`selftest.py`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from polygrad.driver import DeviceInfo, Ref, hookimpl
from polygrad_conformance.mutants import Mutant

MUTANTS: list[Mutant] = []
HOSTED = 6  # the strict device that shares memory
_kept: list[Any] = []  # what a mutant never lets go


class _Sharing:
    """Exports or imports otherwise; *export* and *import_* get the driver's plugin and the hook's arguments."""

    def __init__(self, inner: Any, export: Callable[..., Any] | None, import_: Callable[..., Any] | None) -> None:
        self.inner, self.exporting, self.importing = inner, export, import_

    @hookimpl(tryfirst=True)
    def polygrad_export(self, device: DeviceInfo, ref: Ref, owner: object) -> Any:
        return self.exporting(self.inner, device, ref, owner) if self.exporting is not None else None

    @hookimpl(tryfirst=True)
    def polygrad_import(self, device: DeviceInfo, producer: Any) -> Any:
        return self.importing(self.inner, device, producer) if self.importing is not None else None


def _export(name: str, change: Callable[..., tuple[Ref, object]], killer: str) -> None:
    """Add a mutant that exports another ref, or for another owner."""

    def export(inner: Any, device: DeviceInfo, ref: Ref, owner: object) -> Any:
        return inner.polygrad_export(device, *change(ref, owner))

    MUTANTS.append(Mutant(name, "memory", lambda inner: _Sharing(inner, export, None), (killer,), HOSTED))


def _import(name: str, change: Callable[[Ref, object], tuple[Ref, object]], killer: str) -> None:
    """Add a mutant that says another ref of what it imports, or another owner."""

    def import_(inner: Any, device: DeviceInfo, producer: Any) -> Any:
        return change(*inner.polygrad_import(device, producer))

    MUTANTS.append(Mutant(name, "memory", lambda inner: _Sharing(inner, None, import_), (killer,), HOSTED))


def _keeping(ref: Ref, owner: object) -> tuple[Ref, object]:
    _kept.append(owner)
    return ref, owner


def _copying(inner: Any, device: DeviceInfo, producer: Any) -> Any:
    return inner.polygrad_import(device, np.from_dlpack(producer).copy())


_export("an export without its offset", lambda r, o: (r._replace(offset=0), o), "L1.share.export")
_export("an export without its strides", lambda r, o: (r._replace(strides=(3, 1)), o), "L1.share.export")
_export("an export of another dtype", lambda r, o: (
    r._replace(dtype="int32") if r.dtype == "float32" else r, o), "L1.share.export")  # fmt: skip
_export("an export that keeps nothing alive", lambda r, _o: (r, object()), "L1.share.owner")
_export("an export that is never let go", _keeping, "L1.share.owner")
MUTANTS.append(
    Mutant("an import by copy", "memory", lambda inner: _Sharing(inner, None, _copying), ("L1.share.import",), HOSTED)
)
_import("an import taken for contiguous", lambda r, o: (r._replace(strides=(3, 1)), o), "L1.share.import")
_import("an import of another dtype", lambda r, o: (r._replace(dtype="float32"), o), "L1.share.import")
_import("an import that keeps nothing alive", lambda r, _o: (r, object()), "L1.share.import")
