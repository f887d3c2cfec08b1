"""What may be wrong with a driver's plugin, found before anything of it is registered.

Here: checks of names, versions and hooks.
Not here: imports and registration (`loader.py`), what the hooks do.
"""

import inspect
import re
import sys
from typing import Any, NoReturn

import pluggy

from polygrad.driver import hookspecs, messages
from polygrad.driver.base import DriverBase
from polygrad.driver.discovery import core_version
from polygrad.driver.ir import VERSION as IR_VERSION
from polygrad.driver.types import API, DriverInfo

NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
KNOWN_HOOKS = tuple(sorted(n for n in dir(hookspecs) if n.startswith("polygrad_")))
MANDATORY_HOOKS = (
    "polygrad_drivers", "polygrad_open", "polygrad_allocate", "polygrad_free",
    "polygrad_launch_op", "polygrad_launch_fused",
)  # fmt: skip


def as_plugin(target: Any) -> Any:
    """Return the plugin that an entry point means: a plugin, a DriverBase subclass, or a module with a `plugin`."""
    if inspect.ismodule(target) and not hasattr(target, "polygrad_drivers"):
        target = getattr(target, "plugin", target)
    if inspect.isclass(target) and issubclass(target, DriverBase):
        return target.plugin()
    return target


def is_missing_library(error: BaseException, own: str) -> bool:
    """Tell whether *error* says that somebody else's library is absent, not that the package *own* or we are wrong."""
    if not isinstance(error, ImportError):
        return False
    package = (error.name or "").partition(".")[0]
    return package not in (own, "polygrad") and package not in sys.stdlib_module_names


def package_of(plugin: Any) -> str:
    """Return the top-level package that a plugin, its class or its driver class was written in."""
    subject = getattr(plugin, "driver", plugin)  # a DriverBase plugin keeps the author's class there
    module = getattr(subject, "__module__", None) or getattr(type(subject), "__module__", "")
    return str(module).partition(".")[0]


class Candidate:
    """A plugin under examination: every check here runs before anything is registered."""

    def __init__(self, manager: pluggy.PluginManager, plugin: Any, name: str, source: str) -> None:
        self.plugin, self.name, self.source = plugin, name, source
        self.hooks: dict[str, str] = {}  # hook name to attribute name
        self.optional: set[str] = set()
        for attribute in dir(plugin):
            options = manager.parse_hookimpl_opts(plugin, attribute)
            if options is not None:
                hook = options.get("specname") or attribute
                self.hooks[hook] = attribute
                if options.get("optionalhook"):
                    self.optional.add(hook)

    @property
    def is_driver(self) -> bool:
        """Whether the plugin describes drivers; one that does not is a wrapper."""
        return "polygrad_drivers" in self.hooks

    def examine_driver(self, name: str = "") -> list[DriverInfo]:
        """Check all, and that driver *name* is among those described (if given); return the descriptions."""
        infos = self._descriptions()
        if name and name not in [i.name for i in infos]:
            described = ", ".join(repr(i.name) for i in infos) or "nothing"
            self._refuse(f"polygrad_drivers() describes {described}", "give DriverInfo the name of the entry point")
        for info in infos:
            self._check_versions(info)
        self._check_hooks()
        missing = [h for h in MANDATORY_HOOKS if h not in self.hooks]
        if missing:
            self._refuse(f"it lacks {', '.join(missing)}", "implement what is missing, or subclass DriverBase")
        return infos

    def examine_wrapper(self) -> None:
        """Check a plugin that describes no driver."""
        self._check_hooks()
        if not self.hooks:
            self._refuse("it implements no hook", "mark its hooks with @hookimpl")

    def _refuse(self, fault: str, way_out: str) -> NoReturn:
        raise messages.faulty(self.name, self.source, fault, way_out)

    def _descriptions(self) -> list[DriverInfo]:
        if not self.is_driver:
            self._refuse(
                f"{self.plugin!r} implements no polygrad_drivers",
                "make the entry point name the plugin, such as 'acme:plugin'",
            )
        infos = list(getattr(self.plugin, self.hooks["polygrad_drivers"])())
        wrong = [i for i in infos if not isinstance(i, DriverInfo) or not NAME.fullmatch(i.name)]
        if wrong:
            self._refuse(f"polygrad_drivers() gave {wrong[0]!r}", "give DriverInfo objects named with a-z, 0-9 and _")
        return infos

    def _check_versions(self, info: DriverInfo) -> None:
        # A newer minor of the interface may have hooks that we do not know; a newer minor of the IR takes all we write.
        if info.api[0] != API[0] or tuple(info.api) > API:
            raise messages.incompatible(info.name, self.source, "driver interface", info.api, API, core_version())
        if info.ir[0] != IR_VERSION[0]:
            raise messages.incompatible(info.name, self.source, "fused IR", info.ir, IR_VERSION, core_version())

    def _check_hooks(self) -> None:
        for hook in self.hooks:
            if hook not in KNOWN_HOOKS and hook not in self.optional:
                raise messages.unknown_hook(self.name, self.source, hook, KNOWN_HOOKS)
        marked = set(self.hooks.values())
        for attribute in (a for a in dir(self.plugin) if a.startswith("polygrad_") and a not in marked):
            if not inspect.isroutine(inspect.getattr_static(self.plugin, attribute)):
                continue  # an imported module of such a name is no hook
            if attribute not in KNOWN_HOOKS:
                raise messages.unknown_hook(self.name, self.source, attribute, KNOWN_HOOKS)
            self._refuse(f"{attribute} is not marked as a hook", "put @hookimpl above it")
        try:
            hash(self.plugin)
        except TypeError:
            self._refuse("its plugin object cannot be hashed", "give it identity, as plain classes have")
