"""Plugins: lookup order, laziness, and errors that say what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flexstore.errors import DuplicatePluginError, MissingDependencyError, PluginError, UnknownPluginError
from flexstore.plugins import PluginInfo, PluginStatus, Registry

Factory = Callable[[], str]

BUILTIN = {
    "here": PluginInfo("flexstore_offer:here", "one that works"),
    "nested": PluginInfo("flexstore_offer:Holder.inside", "an attribute of a class"),
    "needy": PluginInfo(
        "flexstore_offer:here", "needs a package", ("no_such_package.part",), "pip install 'flexstore[needy]'"
    ),
    "broken": PluginInfo("flexstore_broken:here", "raises ImportError", hint="repair it"),
    "renamed": PluginInfo("flexstore_offer:gone", "has no such attribute"),
}
MODULES = {
    "flexstore_offer.py": """
def here(): return "builtin"
def offered(): return "offered"
class Holder:
    @staticmethod
    def inside(): return "inside"
""",
    "flexstore_other.py": "def offered(): return 'other'\n",
    "flexstore_broken.py": "import flexstore_imports_this_in_vain\n",
}


def _install(folder: Path, package: str, entries: str) -> None:
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[flexstore.tests]\n{entries}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    _install(tmp_path, "offering", "offered = flexstore_offer:offered\nhere = flexstore_other:offered")
    return tmp_path


@pytest.fixture
def registry(site: Path) -> Registry[Factory]:
    return Registry("gadget", "flexstore.tests", BUILTIN)


def test_builtin_plugins_are_imported_when_asked_for(registry: Registry[Factory]) -> None:
    registry.describe()
    assert "flexstore_offer" not in sys.modules
    assert registry.get("here")() == "builtin"
    assert registry.get("nested")() == "inside"


def test_entry_points_are_found_and_cannot_replace_builtin_plugins(registry: Registry[Factory]) -> None:
    assert registry.get("offered")() == "offered"
    assert registry.get("here")() == "builtin"


def test_registered_plugins_are_found(registry: Registry[Factory]) -> None:
    registry.register("mine", lambda: "mine", description="my own")
    assert registry.get("mine")() == "mine"
    assert PluginStatus("mine", "my own", True) in registry.describe()


@pytest.mark.parametrize("name", ["here", "offered", "mine"])
def test_m2_a_taken_name_is_an_error(registry: Registry[Factory], name: str) -> None:
    registry.register("mine", lambda: "mine")
    with pytest.raises(DuplicatePluginError, match=f"{name}(?s:.*)replace=True"):
        registry.register(name, lambda: "second")
    assert registry.get(name)() != "second"


@pytest.mark.parametrize("name", ["here", "offered", "mine"])
def test_m2_a_users_replacement_wins_for_good(registry: Registry[Factory], name: str) -> None:
    registry.register("mine", lambda: "mine")
    registry.register(name, lambda: "second", replace=True)
    with pytest.raises(DuplicatePluginError):
        registry.register(name, lambda: "third")
    registry.describe()
    assert registry.get(name)() == "second"


def test_a_missing_package_gives_the_sentence_the_user_needs(registry: Registry[Factory]) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        registry.get("needy")
    assert isinstance(caught.value, ImportError)
    assert "'needy' needs no_such_package" in str(caught.value)
    assert caught.value.hint == "pip install 'flexstore[needy]'"


def test_without_a_hint_the_package_is_named(site: Path) -> None:
    registry: Registry[Factory] = Registry("gadget", "none", {"x": PluginInfo("m:f", "", ("pack_a", "pack_b.c"))})
    with pytest.raises(MissingDependencyError) as caught:
        registry.get("x")
    assert caught.value.hint == "pip install pack_a pack_b m"


def test_a_package_that_cannot_be_imported_is_reported(registry: Registry[Factory]) -> None:
    with pytest.raises(MissingDependencyError, match="flexstore_imports_this_in_vain") as caught:
        registry.get("broken")
    assert caught.value.hint == "repair it"
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_target_that_does_not_exist_is_reported(registry: Registry[Factory]) -> None:
    with pytest.raises(PluginError, match="'renamed' is not at flexstore_offer:gone"):
        registry.get("renamed")


def test_unknown_names_list_the_known_and_the_close_ones(registry: Registry[Factory]) -> None:
    with pytest.raises(UnknownPluginError) as caught:
        registry.get("hero")
    assert isinstance(caught.value, KeyError)
    assert str(caught.value) == (
        "unknown gadget 'hero'\n  hint: did you mean here? known: broken, here, needy, nested, offered, renamed"
    )


def test_describe_is_sorted_and_tells_what_is_installed(registry: Registry[Factory]) -> None:
    assert registry.describe() == (
        PluginStatus("broken", "raises ImportError", True),
        PluginStatus("here", "one that works", True),
        PluginStatus("needy", "needs a package", False),
        PluginStatus("nested", "an attribute of a class", True),
        PluginStatus("offered", "from the package offering", True),
        PluginStatus("renamed", "has no such attribute", True),
    )


def test_an_entry_point_whose_package_is_gone_is_not_installed(registry: Registry[Factory], site: Path) -> None:
    _install(site, "leftover", "left = flexstore_removed:it")
    assert PluginStatus("left", "from the package leftover", False) in registry.describe()
    with pytest.raises(MissingDependencyError, match="flexstore_removed"):
        registry.get("left")


def test_one_name_offered_by_two_packages_is_an_error(registry: Registry[Factory], site: Path) -> None:
    _install(site, "rival", "offered = flexstore_other:offered")
    with pytest.raises(DuplicatePluginError, match="flexstore_offer:offered") as caught:
        registry.get("offered")
    assert "flexstore_other:offered" in str(caught.value)
    registry.register("offered", lambda: "chosen", replace=True)
    assert registry.get("offered")() == "chosen"


def test_a_package_that_is_seen_twice_counts_once(registry: Registry[Factory], site: Path) -> None:
    _install(site, "again", "offered = flexstore_offer:offered")
    assert registry.get("offered")() == "offered"


def test_of_racing_registrations_exactly_one_wins(registry: Registry[Factory]) -> None:
    def register(number: int) -> bool:
        try:
            registry.register("raced", lambda: str(number))
        except DuplicatePluginError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, wins in enumerate(pool.map(register, range(32))) if wins]
    assert len(won) == 1
    assert registry.get("raced")() == str(won[0])


def test_plugins_need_the_standard_library_only() -> None:
    code = "import sys; import flexstore.plugins; print('numpy' in sys.modules, 'flexstore.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
