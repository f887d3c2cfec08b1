"""Loading drivers: from entry points to registered plugins, with a record of every failure.

Here: the registry.
Not here: reading metadata (`discovery.py`), checking plugins (`examination.py`), the sentences of failures
(`messages.py`), open devices (`binding.py`).

Nothing is imported until a driver is asked for by name, and then that one alone: a driver that is missing, broken,
blocked, duplicate or of another version never disturbs its neighbours. Each failure is raised to whoever asked, and
kept in the driver's record for `pg.drivers()` and `python -m polygrad drivers`.
"""

import importlib
import logging
import os
import threading
import traceback
import weakref
from typing import Any

import pluggy

from polygrad.driver import hookspecs, messages
from polygrad.driver.discovery import Advertised, check_allowed, discover
from polygrad.driver.examination import Candidate, as_plugin, is_missing_library, package_of
from polygrad.driver.messages import IN_PROCESS
from polygrad.driver.records import DriverRecord, Loaded, Opened, Outcome, PreparedLaunch, Status
from polygrad.driver.types import DriverInfo
from polygrad.errors import DriverError, DriverIncompatible, DriverUnavailable, PolygradError

PATIENCE = 20.0  # seconds after which whoever waits for a driver is told for which
_log = logging.getLogger("polygrad.driver")


class Registry:
    """The drivers of a process, and the plugins that wrap their calls.

    `plugins` is the pluggy manager; `loaded` holds the registered drivers and `devices` the open devices, by name;
    `epoch` grows whenever plugins come or go, so that whoever keeps what they saw knows when to look again; `lock`
    guards it all.

    Examples
    --------
    >>> registry = Registry(discovering=False)
    >>> registry.names(), registry.records()
    ([], [])
    """

    def __init__(self, *, discovering: bool = True) -> None:
        self.plugins = pluggy.PluginManager(hookspecs.PROJECT)
        self.plugins.add_hookspecs(hookspecs)
        self.lock = threading.RLock()
        self.epoch = 0
        self.loaded: dict[str, Loaded] = {}
        self.devices: dict[str, Opened] = {}
        self._discovering = discovering
        self._advertised: dict[str, Advertised] | None = None
        self._outcomes: dict[str, Outcome] = {}
        _registries.add(self)

    def advertised(self, *, again: bool = False) -> dict[str, Advertised]:
        """Return who advertises which driver; read once a process, or *again*."""
        if not self._discovering:
            return {}
        with self.lock:
            if self._advertised is None or again:
                importlib.invalidate_caches()
                self._advertised = discover()
            return self._advertised

    def names(self) -> list[str]:
        """Return the names of all known drivers, loaded or not, in order."""
        return sorted({*self.advertised(), *self.loaded})

    def source(self, name: str) -> str:
        """Return the distribution and version that *name* comes with, as text."""
        if name in self.loaded:
            return self.loaded[name].source
        advertised = self.advertised().get(name)
        return advertised.source() if advertised else ""

    def load(self, name: str) -> Loaded:
        """Return the driver *name*, importing the one entry point of that name if it is not loaded yet.

        Raises
        ------
        DriverNotFound, DriverBlocked, DriverUnavailable, DriverBroken, DriverIncompatible
            As their names say. A failed load leaves nothing registered, and the next call tries again.
        DriverError
            If several distributions advertise the name.
        """
        found = self.loaded.get(name)
        if found is not None:
            return found
        advertised = self.advertised().get(name) or self.advertised(again=True).get(name)
        if advertised is None:
            raise messages.not_found(name, self.names())
        check_allowed(name)
        if advertised.is_duplicate:
            raise messages.duplicate(name, advertised.sources())
        with self.explaining(name, "imported", advertised.package):
            # Outside the lock: another thread may be importing the same module and be about to register a plugin.
            plugin = as_plugin(advertised.entry.load())
            with self.lock:
                if name not in self.loaded:
                    infos = Candidate(self.plugins, plugin, name, advertised.source()).examine_driver(name)
                    self._enter(plugin, next(i for i in infos if i.name == name), advertised.source())
                return self.loaded[name]

    def _enter(self, plugin: Any, info: DriverInfo, source: str) -> None:
        """Register the examined *plugin* for one of the drivers that it describes, or leave everything as it was."""
        shortcut = next((d.shortcut for d in self.loaded.values() if d.plugin is plugin), None)
        if shortcut is None:
            shortcut = PreparedLaunch(self.loaded, self.devices, plugin)
            self._add(plugin, info.name, source)
            self._add(shortcut, f"prepared launches of {info.name}", source)
        self.loaded[info.name] = Loaded(info, plugin, shortcut, source)
        self._outcomes[info.name] = Outcome("ok")
        self._changed()

    def _add(self, plugin: Any, name: str, source: str) -> None:
        try:
            self.plugins.register(plugin, name)
            self.plugins.check_pending()
        except Exception as error:
            # Older pluggy leaves what it had registered before it met the fault.
            if self.plugins.get_plugin(name) is plugin:
                self.plugins.unregister(name=name)
            if isinstance(error, pluggy.PluginValidationError):
                raise messages.refused(name, source, str(error)) from error
            raise

    def register(self, plugin: Any, *, replace: bool = False) -> list[str]:
        """Register *plugin* without an entry point, and return the names of its drivers.

        A plugin that describes no driver is a wrapper: until `unregister` it sees the calls of every device.
        Environment variables do not block plugins that are registered here: this is code that somebody called.

        Parameters
        ----------
        plugin : object or type
            A pluggy plugin, a subclass of DriverBase, or a module.
        replace : bool
            Unregister drivers of the same names first, closing their devices.

        Raises
        ------
        DriverError
            If a driver of the same name is loaded and not to be replaced.
        DriverBroken, DriverIncompatible
            As for `load`.
        """
        name = getattr(plugin, "__name__", type(plugin).__name__)
        with self.lock, self.explaining(name, "registered", package_of(plugin)):
            plugin = as_plugin(plugin)
            candidate = Candidate(self.plugins, plugin, name, IN_PROCESS)
            if not candidate.is_driver:
                candidate.examine_wrapper()
                self._add(plugin, f"{name} at {id(plugin):#x}", IN_PROCESS)
                self._changed()
                return []
            infos = candidate.examine_driver()
            for old in [self.loaded[i.name] for i in infos if i.name in self.loaded]:
                if not replace:
                    raise messages.taken(old.info.name, old.source)
                self.unregister(old.plugin)
            for info in infos:
                self._enter(plugin, info, IN_PROCESS)
            return [i.name for i in infos]

    def unregister(self, plugin: Any) -> None:
        """Take *plugin* out, closing the devices of its drivers; a plugin that is not registered is ignored."""
        with self.lock:
            for name in [n for n, d in self.loaded.items() if d.plugin is plugin]:
                for device in [d for d in self.devices.values() if d.info.driver == name]:
                    device.close()
                shortcut = self.loaded.pop(name).shortcut
                if self.plugins.is_registered(shortcut):
                    self.plugins.unregister(shortcut)
                self._outcomes.pop(name, None)
            if self.plugins.is_registered(plugin):
                self.plugins.unregister(plugin)
                self._changed()

    def _changed(self) -> None:
        self.epoch += 1
        for device in list(self.devices.values()):
            device.rebind()

    def explaining(self, name: str, doing: str, own: str) -> "_Explaining":
        """Return a context that turns whatever a driver raises into a DriverError, and records it.

        *doing* is what fails, as a participle. *own* is the top-level package of the driver: an import of it that fails
        is its own fault, not a missing library.
        """
        return _Explaining(self, name, doing, own)

    def unavailable(self, name: str, reason: str) -> DriverUnavailable:
        """Return the error that says that driver *name* has nothing to run on, and what to install."""
        loaded, advertised = self.loaded.get(name), self.advertised().get(name)
        requires = loaded.info.requires if loaded else ""
        pip = advertised.pip_extra(name) if advertised else ""
        return messages.unavailable(name, self.source(name), reason, requires, pip)

    def record_failure(self, name: str, error: DriverError, shown: str) -> None:
        """Remember that *name* failed with *error*; *shown* is the traceback."""
        status: Status = "broken"
        if isinstance(error, DriverUnavailable):
            status = "unavailable"
        elif isinstance(error, DriverIncompatible):
            status = "incompatible"
        self._outcomes[name] = Outcome(status, str(error), shown)

    def record_success(self, name: str) -> None:
        """Forget an earlier failure of *name*."""
        self._outcomes[name] = Outcome("ok")

    def records(self) -> list[DriverRecord]:
        """Return a record for each known driver, in order of names. Nothing is imported."""
        return [self.record(name) for name in self.names()]

    def record(self, name: str) -> DriverRecord:
        """Return the record of one known driver."""
        loaded, advertised = self.loaded.get(name), self.advertised().get(name)
        outcome = self._outcomes.get(name, Outcome("unloaded"))
        if loaded is not None and (loaded.source == IN_PROCESS or advertised is None):
            return DriverRecord(name, loaded.source, "", **outcome._asdict(), summary=loaded.info.summary)
        assert advertised is not None, name  # noqa: S101  a name is known because it is loaded or advertised
        identity = (", ".join(advertised.distributions()), ", ".join(advertised.versions()))
        if loaded is not None:
            return DriverRecord(name, *identity, **outcome._asdict(), summary=loaded.info.summary)
        try:
            check_allowed(name)
        except PolygradError as error:
            return DriverRecord(name, *identity, "blocked", str(error))
        if advertised.is_duplicate:
            return DriverRecord(name, *identity, "duplicate", str(messages.duplicate(name, advertised.sources())))
        return DriverRecord(name, *identity, **outcome._asdict())


class _Explaining:
    """See `Registry.explaining`."""

    def __init__(self, registry: Registry, name: str, doing: str, own: str) -> None:
        self.registry, self.name, self.doing, self.own = registry, name, doing, own
        self.timer = threading.Timer(PATIENCE, self._warn)
        self.timer.daemon = True

    def __enter__(self) -> None:
        self.timer.start()

    def _warn(self) -> None:
        _log.warning("%s", messages.taking_long(self.name, self.registry.source(self.name), self.doing, PATIENCE))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.timer.cancel()
        if not isinstance(error, (Exception, SystemExit)):
            return
        told = self._tell(error)
        if isinstance(told, DriverError):
            self.registry.record_failure(self.name, told, "".join(traceback.format_exception(error)))
        if told is not error:
            raise told from error

    def _tell(self, error: BaseException) -> BaseException:
        if isinstance(error, PolygradError):
            return error
        registry, name = self.registry, self.name
        if is_missing_library(error, self.own):
            return registry.unavailable(name, messages.sentence_of(error))
        return messages.broken(name, registry.source(name), self.doing, error)


_registries: "weakref.WeakSet[Registry]" = weakref.WeakSet()


def _after_fork() -> None:
    for registry in list(_registries):
        registry.lock = threading.RLock()  # the thread that held it does not exist in the child
        for device in list(registry.devices.values()):
            device.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

REGISTRY = Registry()
