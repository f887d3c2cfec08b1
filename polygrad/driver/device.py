"""An open device: the hooks of its driver, bound once, as plain functions.

Here: binding and rebinding, prepared kernels, the end of a device.
Not here: how it is opened (`binding.py`); memory pools, program caches, transfers (the runtime).

Plugins that come or go rebind all open devices; the callables that `Device.prepare` gave out notice as well.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from polygrad.driver import messages
from polygrad.driver.bundles import Capturing
from polygrad.driver.calls import Hook, bound_hook, fail
from polygrad.driver.collectives import Collectives
from polygrad.driver.describe import kernel_name
from polygrad.driver.ir import Kernel
from polygrad.driver.loader import Registry
from polygrad.driver.notices import Notices
from polygrad.driver.types import DONE, DeviceInfo, Done, Handle, MemoryInfo, Prepared, Ref
from polygrad.driver.verify import verify
from polygrad.errors import CompileError, DriverError, LaunchError, PolygradError

Many = Callable[[Sequence[Sequence[Handle]], tuple[tuple[int, ...], ...], Sequence[Sequence[Any]]], None]


def _structure_key(kernel: Kernel) -> Any:
    """Return *kernel*, and beside it where -0.0 stands if it does: Python holds -0.0 equal to 0.0.

    -0.0 is not allowed as a literal; the key keeps such a kernel from being taken for one that was verified.
    """
    constants = [i.attr for i in kernel.body if i.op == "const"] + [v.fill for v in kernel.views]
    negative = tuple(k for k, c in enumerate(constants) if c == 0 and math.copysign(1.0, c) < 0)
    return (kernel, negative) if negative else kernel


class Device:
    """An open device: what the runtime calls. Made by `open_device`; there is one of each name.

    The methods of the waist are attributes that hold functions, replaced when plugins come or go, when the device is
    closed, and in a forked child. They raise nothing but PolygradErrors; those of the driver keep their cause.

        allocate(nbytes) -> handle              free(handle)                        launch_op(op, outs, ins, attrs)
        launch_fused(kernel, buffers, ints, scalars)                                synchronize()
        memory_info() -> MemoryInfo or None     view(handle, nbytes) -> memoryview or None
        adopt(memory) -> handle or None         export(ref, owner) -> object with __dlpack__, or None
        import_(producer) -> (ref, owner) or None           collectives() -> Collectives or None
        capture() -> Capturing or None        notices(nbytes) -> Notices or None

    Attributes
    ----------
    info : DeviceInfo
    name : str
        Such as ``"acme:0"``.
    options : dict
        What it was opened with.
    wrapped : bool
        Whether some plugin sees the launches of fused kernels, so that they go through pluggy.
    watched : bool
        Whether some plugin sees launches of any kind, so that each has to be made by itself.
    """

    __slots__ = (
        "__weakref__", "_fused_hook", "_launches", "_lock", "_plugin", "_prepared", "_refusal", "_registry",
        "adopt", "allocate", "capture", "collectives", "export", "free", "import_", "info", "launch_fused", "launch_op",
        "memory_info", "name", "notices", "options", "synchronize", "view", "watched",
    )  # fmt: skip

    allocate: Callable[[int], Handle]
    free: Callable[[Handle], None]
    launch_op: Callable[[str, Sequence[Ref], Sequence[Ref], Mapping[str, Any]], None]
    launch_fused: Callable[[Kernel, Sequence[Handle], tuple[int, ...], Sequence[Any]], None]
    synchronize: Callable[[], None]
    memory_info: Callable[[], MemoryInfo | None]
    view: Callable[[Handle, int], memoryview | None]
    adopt: Callable[[memoryview], Handle | None]
    export: Callable[[Ref, object], Any | None]
    import_: Callable[[Any], tuple[Ref, object] | None]
    collectives: Callable[[], Collectives | None]
    capture: Callable[[], Capturing | None]
    notices: Callable[[int], Notices | None]
    watched: bool

    def __init__(self, registry: Registry, plugin: Any, info: DeviceInfo, options: dict[str, str]) -> None:
        self._registry, self._plugin = registry, plugin
        self.info, self.name, self.options = info, info.device, options
        self._lock = threading.RLock()
        self._prepared: dict[Any, Prepared | None] = {}  # what the driver gave; None if it gave nothing
        self._launches: dict[Any, Prepared] = {}  # what prepare() gives
        self._fused_hook: Hook | None = None
        self._refusal: Callable[[str], PolygradError] | None = None
        self.rebind()

    def __repr__(self) -> str:
        return f"<device {self.name}: {self.info.name}>"

    @property
    def wrapped(self) -> bool:
        """Whether some plugin sees the launches of fused kernels."""
        return self._fused_hook is not None

    def _hook(self, name: str) -> Hook:
        return bound_hook(self._registry, self._plugin, f"polygrad_{name}")

    def rebind(self) -> None:
        """Bind every hook anew, unless the device is closed or was left behind by a fork."""
        if self._refusal is not None:
            return
        fused = self._hook("launch_fused")
        self.allocate = self._bound_allocate(self._hook("allocate"))
        self.free = self._bound("free", "freeing memory", DriverError)
        self.launch_op = self._bound_launch_op(self._hook("launch_op"))
        self.launch_fused = self._bound_launch_fused(fused)
        self.synchronize = self._bound("synchronize", "waiting", LaunchError)
        self.memory_info = self._bound("memory_info", "asking for its memory", DriverError)
        self.view = self._bound("view", "viewing memory", DriverError)
        self.adopt = self._bound("adopt", "adopting memory", DriverError)
        self.export = self._bound("export", "exporting memory", DriverError)
        self.import_ = self._bound("import", "importing memory", DriverError)
        self.collectives = self._bound("collectives", "asking for its collectives", DriverError)
        self.capture = self._bound("capture", "asking for what writes launches down", DriverError)
        self.notices = self._bound("notices", "asking for memory that the host reads", DriverError)
        self._fused_hook = fused if self._others_see("polygrad_launch_fused") else None
        self.watched = self.wrapped or self._others_see("polygrad_launch_op")

    def _others_see(self, hook: str) -> bool:
        drivers = [p for d in self._registry.loaded.values() for p in (d.plugin, d.shortcut)]
        impls = getattr(self._registry.plugins.hook, hook).get_hookimpls()
        return any(i.plugin not in drivers for i in impls)

    def _bound(self, hook: str, doing: str, wrap: type[DriverError]) -> Callable[..., Any]:
        function, info, name = self._hook(hook), self.info, self.name

        def call(*arguments: Any) -> Any:
            try:
                return function(info, *arguments)
            except Exception as error:
                fail(error, f"{doing} on {name}", wrap)

        return call

    def _bound_allocate(self, function: Hook) -> Callable[[int], Handle]:
        info, name = self.info, self.name

        def allocate(nbytes: int) -> Handle:
            assert nbytes > 0, nbytes  # noqa: S101  empty arrays have no memory
            try:
                handle = function(info, nbytes)
            except Exception as error:
                fail(error, f"allocating {nbytes} bytes on {name}", DriverError)
            if handle is None:
                raise messages.no_handle(name, nbytes)
            return handle

        return allocate

    def _bound_launch_op(
        self, function: Hook
    ) -> Callable[[str, Sequence[Ref], Sequence[Ref], Mapping[str, Any]], None]:
        info, name = self.info, self.name

        def launch_op(op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
            try:
                function(info, op, outs, ins, attrs)
            except Exception as error:
                fail(error, f"running {op} on {name}", LaunchError)

        return launch_op

    def _bound_launch_fused(
        self, function: Hook
    ) -> Callable[[Kernel, Sequence[Handle], tuple[int, ...], Sequence[Any]], None]:
        info, name = self.info, self.name

        def launch_fused(
            kernel: Kernel, buffers: Sequence[Handle], ints: tuple[int, ...], scalars: Sequence[Any]
        ) -> None:
            try:
                function(info, kernel, buffers, ints, scalars)
            except Exception as error:
                fail(error, f"running {kernel_name(kernel)} on {name}", LaunchError)

        return launch_fused

    def prepare(self, kernel: Kernel) -> Prepared:
        """Return a callable (buffers, ints, scalars) that launches *kernel*; the same one each time.

        The kernel is verified and compiled on the first call. The callable stays right when plugins come or go: while
        one wraps `polygrad_launch_fused` it goes through pluggy, ending in the same compiled program.

        Raises
        ------
        CompileError
            If the driver cannot compile it.
        """
        key = _structure_key(kernel)
        found = self._launches.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._launches.get(key)
            if found is None:
                self.check_usable()
                verify(kernel)
                self._prepared[key] = prepared = self._compile(kernel)
                found = self._launches[key] = self._launcher(kernel, prepared)
            return found

    def _compile(self, kernel: Kernel) -> Prepared | None:
        try:
            prepared: Prepared | None = self._hook("prepare_fused")(self.info, kernel)
        except Exception as error:
            fail(error, f"compiling {kernel_name(kernel)} on {self.name}", CompileError)
        return prepared

    def _launcher(self, kernel: Kernel, prepared: Prepared | None) -> Prepared:
        info, device = self.info, self
        if prepared is None:
            return lambda buffers, ints, scalars: device.launch_fused(kernel, buffers, ints, scalars)

        def launch(buffers: Sequence[Handle], ints: tuple[int, ...], scalars: Sequence[Any]) -> None:
            try:
                hook = device._fused_hook
                if hook is None:
                    prepared(buffers, ints, scalars)
                else:
                    hook(info, kernel, buffers, ints, scalars)
            except Exception as error:
                fail(error, f"running {kernel_name(kernel)} on {device.name}", LaunchError)

        return launch

    def prepare_many(self, kernel: Kernel) -> Many:
        """Return a callable that makes launches of *kernel* which do not wait for each other: see `PreparedMany.many`.

        They are made one by one while a plugin sees launches, and by drivers without the feature `many`.
        """
        single = self.prepare(kernel)
        together = getattr(self._prepared.get(_structure_key(kernel)), "many", None)
        device = self

        def launch(
            buffers: Sequence[Sequence[Handle]], ints: tuple[tuple[int, ...], ...], scalars: Sequence[Sequence[Any]]
        ) -> None:
            if together is None or device._fused_hook is not None:
                for one in zip(buffers, ints, scalars, strict=True):
                    single(*one)
                return
            try:
                together(buffers, ints, scalars)
            except Exception as error:
                fail(error, f"running {kernel_name(kernel)}, {len(ints)} times, on {device.name}", LaunchError)

        return launch

    def launch_prepared(
        self, kernel: Kernel, buffers: Sequence[Handle], ints: tuple[int, ...], scalars: Sequence[Any]
    ) -> Done | None:
        """Launch what the driver prepared for *kernel*, or return None if it has not."""
        prepared = self._prepared.get(_structure_key(kernel))
        if prepared is None:
            return None
        prepared(buffers, ints, scalars)
        return DONE

    def check_usable(self) -> None:
        """Raise DeviceError if the device is closed, DeviceLost if it was left behind by a fork."""
        if self._refusal is not None:
            raise self._refusal(self.name)

    def close(self) -> None:
        """Close the device; whatever is called afterwards raises DeviceError, but `free` and `close` do nothing."""
        with self._registry.lock:
            if self._refusal is not None:
                return
            try:
                self._bound("close", "closing", DriverError)()
            finally:
                self._refuse(messages.closed)
                del self._registry.devices[self.name]

    def after_fork(self) -> None:
        """Refuse further use in a child process, unless the driver says that it survives a fork."""
        self._lock = threading.RLock()  # the thread that held it does not exist here
        if self._refusal is None and self.info.features.fork == "unsafe":
            self._refuse(messages.forked)

    def _refuse(self, refusal: Callable[[str], PolygradError]) -> None:
        def refuse(*_arguments: Any) -> NoReturn:
            raise refusal(self.name)

        self._refusal = refusal
        self.allocate = self.launch_op = self.launch_fused = self.synchronize = refuse
        self.memory_info = self.view = self.adopt = self.export = self.import_ = self._fused_hook = refuse
        self.collectives = self.capture = self.notices = refuse
        self.free = lambda _handle: None  # finalizers of arrays that are still about must not raise
        self._prepared, self._launches = {}, {}
