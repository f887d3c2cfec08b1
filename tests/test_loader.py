"""Tests of finding and loading drivers: real metadata folders, drivers that fail in every way, the sentence of each.

Here: `polygrad.driver.discovery`, `examination`, `messages` and `loader`. Not here: open devices (`test_opening.py`,
`test_binding.py`).
"""

import importlib.metadata
import subprocess
import sys
import textwrap

import pytest

from polygrad import errors
from polygrad.driver import DeviceInfo, DriverBase, DriverInfo, hookimpl
from polygrad.driver.discovery import core_version
from polygrad.driver.loader import Registry

GOOD = """
    from polygrad.driver import DeviceInfo, DriverBase, DriverInfo

    class Acme(DriverBase):
        info = DriverInfo("acme", summary="a test", requires="libacme 4 or later"{more})

    plugin = Acme.plugin()
"""


def good(more=""):
    return GOOD.replace("{more}", more)


class Site:
    """A folder on sys.path with distributions in it."""

    def __init__(self, folder):
        self.folder = folder

    def module(self, name, source):
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source))

    def distribution(self, name, entry_points, version="0.3", extras=()):
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        provided = "".join(f"Provides-Extra: {e}\n" for e in extras)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{provided}")
        (info / "entry_points.txt").write_text(f"[polygrad.drivers]\n{entry_points}\n")
        return info

    def driver(self, source, name="acme"):
        """Add a distribution with one driver whose module has this source."""
        self.module(f"polygrad_{name}", source)
        self.distribution(f"polygrad-{name}", f"{name} = polygrad_{name}:plugin")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Give a folder that alone (beside the standard library) is searched for distributions and modules."""
    standard = [p for p in sys.path if p.startswith(sys.base_prefix) and not p.endswith("-packages")]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *standard])
    monkeypatch.delenv("POLYGRAD_DRIVERS_ONLY", raising=False)
    monkeypatch.delenv("POLYGRAD_DRIVERS_BLOCK", raising=False)
    yield Site(tmp_path)
    for name in [n for n, m in sys.modules.items() if str(tmp_path) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


def failure(registry, name, kind):
    """Load *name*, expect an error of *kind*, return its sentence; the record must tell the same."""
    with pytest.raises(errors.DriverError) as caught:
        registry.load(name)
    assert type(caught.value) is kind
    for record in registry.records():
        if record.name == name:
            assert record.reason == str(caught.value)
    return str(caught.value)


def assert_nothing_registered(registry):
    assert registry.plugins.get_plugins() == set()
    assert registry.loaded == {}


# ---- finding ------------------------------------------------------------------------------------------------


def test_discovery_imports_no_driver(site):
    site.driver("raise SystemError('imported')")
    assert [(r.name, r.distribution, r.version, r.status) for r in Registry().records()] == [
        ("acme", "polygrad-acme", "0.3", "unloaded")
    ]
    assert "polygrad_acme" not in sys.modules


def test_loading_one_driver_imports_that_one_alone(site):
    site.driver(good())
    site.driver("raise SystemError('imported')", "other")
    registry = Registry()
    assert registry.load("acme").info.summary == "a test"
    assert "polygrad_other" not in sys.modules
    assert [(r.name, r.status, r.summary) for r in registry.records()] == [
        ("acme", "ok", "a test"),
        ("other", "unloaded", ""),
    ]


def test_a_loaded_driver_is_returned_again(site):
    site.driver(good())
    registry = Registry()
    assert registry.load("acme") is registry.load("acme")


@pytest.mark.parametrize("target", ["polygrad_acme", "polygrad_acme:Acme", "polygrad_acme:plugin"])
def test_an_entry_point_may_name_a_module_a_class_or_a_plugin(site, target):
    site.module("polygrad_acme", good())
    site.distribution("polygrad-acme", f"acme = {target}")
    assert Registry().load("acme").info.name == "acme"


def test_a_driver_installed_later_is_found(site):
    registry = Registry()
    assert registry.names() == []
    site.driver(good())
    assert registry.load("acme").info.name == "acme"


def test_mangled_metadata_of_one_distribution_hides_no_other(site):
    site.distribution("a-bad", "this is no entry point")
    site.driver(good())
    with pytest.raises(TypeError):
        importlib.metadata.entry_points(group="polygrad.drivers")
    assert Registry().names() == ["acme"]


def test_a_distribution_without_a_name_still_has_its_driver(site):
    site.driver(good())
    (site.folder / "polygrad_acme-0.3.dist-info" / "METADATA").unlink()
    registry = Registry()
    assert registry.load("acme").source == "a nameless distribution"


# ---- each failure, and its sentence ----------------------------------------------------------------------------


def test_an_unknown_name_is_told_with_the_known_ones(site):
    site.driver(good())
    assert failure(Registry(), "zebra", errors.DriverNotFound) == (
        "no installed driver is named 'zebra' (known: acme); install the distribution that provides it"
    )
    assert failure(Registry(discovering=False), "zebra", errors.DriverNotFound) == (
        "no installed driver is named 'zebra' (known: none); install the distribution that provides it"
    )


def test_a_misspelt_name_is_told_the_close_one(site):
    site.driver(good())
    assert failure(Registry(), "amce", errors.DriverNotFound) == (
        "no installed driver is named 'amce' (known: acme); did you mean 'acme'?"
    )


def test_a_driver_that_raises_on_import_is_broken_and_disturbs_no_other(site):
    site.driver("1 / 0")
    site.driver(good().replace("acme", "other"), "other")
    registry = Registry()
    with pytest.raises(errors.DriverBroken) as caught:
        registry.load("acme")
    assert str(caught.value) == (
        "driver 'acme' (polygrad-acme 0.3) is broken: it could not be imported: ZeroDivisionError: division by zero; "
        "`python -m polygrad drivers -v` shows the traceback"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    record = registry.record("acme")
    assert (record.status, record.reason) == ("broken", str(caught.value))
    assert 'polygrad_acme.py", line 1' in record.traceback
    assert record.traceback.rstrip().endswith("ZeroDivisionError: division by zero")
    assert_nothing_registered(registry)
    assert registry.load("other").info.name == "other"


def test_a_driver_that_exits_on_import_is_broken(site):
    site.driver("import sys; sys.exit('no device')")
    assert failure(Registry(), "acme", errors.DriverBroken) == (
        "driver 'acme' (polygrad-acme 0.3) is broken: it could not be imported: SystemExit: no device; "
        "`python -m polygrad drivers -v` shows the traceback"
    )


def test_a_missing_library_makes_a_driver_unavailable(site):
    site.driver("import libacme_that_is_not_there")
    registry = Registry()
    assert failure(registry, "acme", errors.DriverUnavailable) == (
        "driver 'acme' (polygrad-acme 0.3) is unavailable: No module named 'libacme_that_is_not_there'; "
        "install what it needs"
    )
    assert registry.record("acme").status == "unavailable"


def test_a_missing_library_is_told_with_the_extra_that_brings_it(site):
    site.module("polygrad_acme", "import libacme_that_is_not_there")
    site.distribution("polygrad-acme", "acme = polygrad_acme:plugin", extras=["test", "acme"])
    assert failure(Registry(), "acme", errors.DriverUnavailable) == (
        "driver 'acme' (polygrad-acme 0.3) is unavailable: No module named 'libacme_that_is_not_there'; "
        "pip install 'polygrad-acme[acme]'"
    )


def test_a_library_that_cannot_be_linked_makes_a_driver_unavailable(site):
    site.driver("raise ImportError('libacme.so.4: cannot open shared object file')")
    assert failure(Registry(), "acme", errors.DriverUnavailable) == (
        "driver 'acme' (polygrad-acme 0.3) is unavailable: ImportError: libacme.so.4: cannot open shared object file; "
        "install what it needs"
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import polygrad_acme.nowhere", "No module named 'polygrad_acme.nowhere'; 'polygrad_acme' is not a package"),
        ("import polygrad.driver.nowhere", "No module named 'polygrad.driver.nowhere'"),
        ("import xml.nowhere", "No module named 'xml.nowhere'"),
    ],
)
def test_a_missing_module_of_its_own_or_ours_makes_a_driver_broken(site, source, said):
    site.driver(source)
    assert failure(Registry(), "acme", errors.DriverBroken) == (
        f"driver 'acme' (polygrad-acme 0.3) is broken: it could not be imported: {said}; "
        "`python -m polygrad drivers -v` shows the traceback"
    )


def test_a_driver_that_says_it_is_unavailable_is_quoted(site):
    site.driver("from polygrad.driver import DriverUnavailable\nraise DriverUnavailable('acme needs libacme 4')")
    registry = Registry()
    assert failure(registry, "acme", errors.DriverUnavailable) == "acme needs libacme 4"
    assert registry.record("acme").status == "unavailable"


def test_an_entry_point_that_names_nothing_is_broken(site):
    site.module("polygrad_acme", "")
    site.distribution("polygrad-acme", "acme = polygrad_acme:plugin")
    assert failure(Registry(), "acme", errors.DriverBroken) == (
        "driver 'acme' (polygrad-acme 0.3) is broken: it could not be imported: "
        "AttributeError: module 'polygrad_acme' has no attribute 'plugin'; "
        "`python -m polygrad drivers -v` shows the traceback"
    )


def test_an_entry_point_that_names_no_plugin_is_broken(site):
    site.driver("plugin = 'nothing'")
    assert failure(Registry(), "acme", errors.DriverBroken) == (
        "driver 'acme' (polygrad-acme 0.3) is broken: 'nothing' implements no polygrad_drivers; "
        "make the entry point name the plugin, such as 'acme:plugin'"
    )


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            ", api=(2, 1)",
            "driver 'acme' (polygrad-acme 0.3) speaks driver interface 2.1 and polygrad CORE speaks 1.0; "
            "pip install --upgrade polygrad-array",
        ),
        (
            ", api=(1, 7)",
            "driver 'acme' (polygrad-acme 0.3) speaks driver interface 1.7 and polygrad CORE speaks 1.0; "
            "pip install --upgrade polygrad-array",
        ),
        (
            ", api=(0, 9)",
            "driver 'acme' (polygrad-acme 0.3) speaks driver interface 0.9 and polygrad CORE speaks 1.0; "
            "pip install --upgrade polygrad-acme",
        ),
        (
            ", ir=(2, 0)",
            "driver 'acme' (polygrad-acme 0.3) speaks fused IR 2.0 and polygrad CORE speaks 1.0; "
            "pip install --upgrade polygrad-array",
        ),
    ],
)
def test_another_version_is_refused_with_both_numbers_and_the_way_out(site, more, sentence):
    site.driver(good(more))
    registry = Registry()
    assert failure(registry, "acme", errors.DriverIncompatible) == sentence.replace("CORE", core_version())
    assert registry.record("acme").status == "incompatible"
    assert_nothing_registered(registry)


def test_a_newer_minor_of_the_ir_is_welcome(site):
    site.driver(good(", ir=(1, 4)"))
    assert Registry().load("acme").info.ir == (1, 4)


def test_an_incompatible_driver_is_not_called_broken_for_hooks_that_we_do_not_know(site):
    source = good(", api=(1, 9)").replace("Acme.plugin()", "New()")
    source += """
    from polygrad.driver import hookimpl
    class New:
        @hookimpl
        def polygrad_drivers(self): return [Acme.info]
        @hookimpl
        def polygrad_teleport(self, device): pass
    plugin = New()
    """
    site.driver(textwrap.dedent(source).replace("plugin = New()\n", "", 1))
    failure(Registry(), "acme", errors.DriverIncompatible)


PARTS = """
    from polygrad.driver import DriverInfo, hookimpl

    class Plugin:
        @hookimpl
        def polygrad_drivers(self): return [DriverInfo("acme")]
        @hookimpl
        def polygrad_open(self, driver, ordinal, options): pass
        @hookimpl
        def polygrad_allocate(self, device, nbytes): pass
        @hookimpl
        def polygrad_free(self, device, handle): pass
        @hookimpl
        def polygrad_launch_op(self, device, op, outs, ins, attrs): pass
        @hookimpl
        def polygrad_launch_fused(self, device, kernel, buffers, ints, scalars): pass

    plugin = Plugin()
"""


def test_a_plugin_of_plain_hooks_is_a_driver(site):
    site.driver(PARTS)
    assert Registry().load("acme").info.name == "acme"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("polygrad_free", "polygrad_fre", "there is no hook 'polygrad_fre'; did you mean 'polygrad_free'?"),
        ("polygrad_free", "polygrad_zzz", "there is no hook 'polygrad_zzz'; rename it"),
        (
            "@hookimpl\n        def polygrad_free",
            "def polygrad_free",
            "polygrad_free is not marked as a hook; put @hookimpl above it",
        ),
        (
            "@hookimpl\n        def polygrad_free",
            "def polygrad_fre",
            "there is no hook 'polygrad_fre'; did you mean 'polygrad_free'?",
        ),
        (
            "polygrad_free(self, device, handle): pass",
            "unrelated(self): pass",
            "there is no hook 'unrelated'; rename it",
        ),
        (
            "@hookimpl\n        def polygrad_free(self, device, handle)",
            "def unrelated(self)",
            "it lacks polygrad_free; implement what is missing, or subclass DriverBase",
        ),
        (
            "device, handle",
            "device, block",
            "hookimpl definition: polygrad_free(device, block); Argument(s) {'block'} are declared in the hookimpl but "
            "can not be found in the hookspec; take only arguments that the hook has",
        ),
        (
            'DriverInfo("acme")',
            'DriverInfo("acne")',
            "polygrad_drivers() describes 'acne'; give DriverInfo the name of the entry point",
        ),
        (
            '[DriverInfo("acme")]',
            "[]",
            "polygrad_drivers() describes nothing; give DriverInfo the name of the entry point",
        ),
        (
            '[DriverInfo("acme")]',
            '["acme"]',
            "polygrad_drivers() gave 'acme'; give DriverInfo objects named with a-z, 0-9 and _",
        ),
        (
            "class Plugin:",
            "class Plugin:\n        __hash__ = None",
            "its plugin object cannot be hashed; give it identity, as plain classes have",
        ),
        (
            'return [DriverInfo("acme")]',
            "raise KeyError('x')",
            "it could not be imported: KeyError: 'x'; `python -m polygrad drivers -v` shows the traceback",
        ),
    ],
)
def test_a_faulty_plugin_is_broken_and_leaves_nothing_behind(site, old, new, fault):
    assert old in PARTS
    site.driver(PARTS.replace(old, new))
    registry = Registry()
    assert failure(registry, "acme", errors.DriverBroken) == f"driver 'acme' (polygrad-acme 0.3) is broken: {fault}"
    assert_nothing_registered(registry)
    assert not any(
        getattr(registry.plugins.hook, h).get_hookimpls() for h in vars(registry.plugins.hook) if h[0] != "_"
    )


def test_a_hook_marked_optional_may_be_unknown(site):
    future = "@hookimpl(optionalhook=True)\n        def polygrad_future(self): pass\n        "
    site.driver(PARTS.replace("@hookimpl\n        def polygrad_free", f"{future}@hookimpl\n        def polygrad_free"))
    assert Registry().load("acme").info.name == "acme"


def test_two_distributions_of_one_name_are_both_named_and_neither_is_imported(site):
    site.driver("raise SystemError('imported')")
    site.distribution("acme-fork", "acme = acme_fork:plugin", version="1.0")
    registry = Registry()
    assert failure(registry, "acme", errors.DriverError) == (
        "driver 'acme' is advertised by acme-fork 1.0 and polygrad-acme 0.3, so none is loaded; uninstall all but one"
    )
    record = registry.record("acme")
    assert record[:4] == ("acme", "acme-fork, polygrad-acme", "1.0, 0.3", "duplicate")
    assert "polygrad_acme" not in sys.modules


def test_a_blocked_driver_is_not_imported(site, monkeypatch):
    site.driver("raise SystemError('imported')")
    monkeypatch.setenv("POLYGRAD_DRIVERS_BLOCK", "other, Acme")
    registry = Registry()
    assert failure(registry, "acme", errors.DriverBlocked) == (
        "driver 'acme' is blocked by POLYGRAD_DRIVERS_BLOCK='other, Acme'; take it out of that variable"
    )
    assert registry.record("acme").status == "blocked"
    assert "polygrad_acme" not in sys.modules


def test_only_the_listed_drivers_are_loaded(site, monkeypatch):
    site.driver("raise SystemError('imported')")
    site.driver(good().replace("acme", "other"), "other")
    monkeypatch.setenv("POLYGRAD_DRIVERS_ONLY", "other")
    registry = Registry()
    assert failure(registry, "acme", errors.DriverBlocked) == (
        "driver 'acme' is blocked: POLYGRAD_DRIVERS_ONLY='other' does not name it; add it to that variable"
    )
    assert registry.load("other").info.name == "other"


def test_the_variables_are_read_when_a_driver_is_loaded(site, monkeypatch):
    site.driver(good())
    registry = Registry()
    monkeypatch.setenv("POLYGRAD_DRIVERS_BLOCK", "acme")
    failure(registry, "acme", errors.DriverBlocked)
    monkeypatch.delenv("POLYGRAD_DRIVERS_BLOCK")
    assert registry.load("acme").info.name == "acme"
    assert registry.record("acme").status == "ok"


def test_an_entry_point_with_an_impossible_name_is_broken(site):
    site.module("polygrad_acme", good())
    site.distribution("polygrad-acme", "Ac-me = polygrad_acme:plugin")
    assert failure(Registry(), "Ac-me", errors.DriverBroken) == (
        "driver 'Ac-me' (polygrad-acme 0.3) is broken: polygrad_drivers() describes 'acme'; "
        "give DriverInfo the name of the entry point"
    )


def test_a_failed_load_is_tried_again(site):
    site.driver("1 / 0")
    registry = Registry()
    failure(registry, "acme", errors.DriverBroken)
    site.module("polygrad_acme", good())
    importlib.invalidate_caches()
    assert registry.load("acme").info.name == "acme"
    assert registry.record("acme")[3:6] == ("ok", "", "")


# ---- plugins of this process ------------------------------------------------------------------------------------


class Toy(DriverBase):
    """A driver that opens and does nothing."""

    info = DriverInfo("toy", summary="a toy")

    def open(self, ordinal, options):
        return DeviceInfo("toy", ordinal, "a toy", dtypes=frozenset({"float32"}))


class Wrapper:
    """A plugin that sees allocations."""

    @hookimpl(wrapper=True)
    def polygrad_allocate(self, device, nbytes):
        return (yield)


def test_a_driver_of_this_process_is_registered_without_an_entry_point():
    registry = Registry(discovering=False)
    assert registry.register(Toy) == ["toy"]
    assert registry.load("toy").info is Toy.info
    assert registry.records() == [("toy", "registered in this process", "", "ok", "", "", "a toy")]


def test_a_name_that_is_taken_is_refused_or_replaced():
    registry = Registry(discovering=False)
    first, second = Toy.plugin(), Toy.plugin()
    registry.register(first)
    with pytest.raises(errors.DriverError) as caught:
        registry.register(second)
    assert str(caught.value) == (
        "driver 'toy' (registered in this process) is loaded already; pass replace=True to put another in its place"
    )
    assert registry.load("toy").plugin is first
    registry.register(second, replace=True)
    assert registry.load("toy").plugin is second
    assert not registry.plugins.is_registered(first)


def test_a_faulty_replacement_leaves_the_old_driver_in_place():
    class Newer(Toy):
        info = DriverInfo("toy", api=(3, 0))

    registry = Registry(discovering=False)
    registry.register(Toy)
    with pytest.raises(errors.DriverIncompatible) as caught:
        registry.register(Newer, replace=True)
    assert str(caught.value) == (
        "driver 'toy' (registered in this process) speaks driver interface 3.0 and "
        f"polygrad {core_version()} speaks 1.0; pip install --upgrade polygrad-array"
    )
    assert registry.load("toy").info is Toy.info


def test_an_older_driver_of_this_process_cannot_be_upgraded_by_pip():
    class Older(Toy):
        info = DriverInfo("toy", api=(0, 1))

    with pytest.raises(errors.DriverIncompatible, match=r"speaks 1\.0; bring it up to date$"):
        Registry(discovering=False).register(Older)


def test_wrappers_come_and_go_and_change_the_epoch():
    registry, wrapper = Registry(discovering=False), Wrapper()
    registry.register(Toy)
    before = registry.epoch
    assert registry.register(wrapper) == []
    assert registry.epoch == before + 1
    registry.unregister(wrapper)
    assert registry.epoch == before + 2
    registry.unregister(wrapper)
    assert registry.epoch == before + 2


def test_a_plugin_without_hooks_is_refused():
    with pytest.raises(errors.DriverBroken) as caught:
        Registry(discovering=False).register(object())
    assert str(caught.value) == (
        "driver 'object' (registered in this process) is broken: it implements no hook; mark its hooks with @hookimpl"
    )


def test_one_plugin_may_bring_several_drivers(site):
    site.module("polygrad_acme", PARTS.replace('[DriverInfo("acme")]', '[DriverInfo("acme"), DriverInfo("acme2")]'))
    site.distribution("polygrad-acme", "acme = polygrad_acme:plugin\nacme2 = polygrad_acme:plugin")
    registry = Registry()
    assert registry.load("acme").plugin is registry.load("acme2").plugin
    assert registry.load("acme2").info.name == "acme2"
    registry.unregister(registry.load("acme").plugin)
    assert_nothing_registered(registry)


# ---- the rules of the interface ---------------------------------------------------------------------------------


def test_no_parameter_of_a_hook_has_a_default():
    registry = Registry(discovering=False)
    hooks = [h for h in vars(registry.plugins.hook).values() if hasattr(h, "spec")]
    assert len(hooks) >= 12
    assert all(not h.spec.kwargnames for h in hooks)


def test_importing_the_loader_imports_no_driver_and_reads_no_metadata():
    source = (
        "import sys; import polygrad.driver.loader, polygrad.driver.binding; "
        "print(sorted({'polygrad_cpu', 'polygrad_opencl', 'polygrad_cuda', 'pyopencl', 'cupy'} & set(sys.modules)), "
        "polygrad.driver.loader.REGISTRY._advertised)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "[] None\n"
