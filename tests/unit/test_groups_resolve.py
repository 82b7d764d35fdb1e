"""What ``group=`` may be, and what it then means."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from flexstore.errors import GroupError, MissingDependencyError, UnknownPluginError
from flexstore.groups import resolve
from flexstore.groups.resolve import resolve_group
from flexstore.groups.single import SingleGroup
from flexstore.groups.threads import run


class Native:
    """A group object of a framework."""


class FakeGroup:
    """Our class for the groups of that framework."""

    up = False

    def __init__(self, group: Any = None) -> None:
        self.native = group

    @classmethod
    def initialised(cls) -> bool:
        return cls.up

    @classmethod
    def accepts(cls, native: object) -> bool:
        return isinstance(native, Native)


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> type[FakeGroup]:
    """A framework that is imported and the only one known."""
    kind = type("FakeGroup", (FakeGroup,), {})
    module = ModuleType("flexstore.groups.fake")
    module.FakeGroup = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flexstore.groups.fake", module)
    monkeypatch.setitem(sys.modules, "fake", ModuleType("fake"))
    monkeypatch.setattr(resolve, "_FRAMEWORKS", {"fake": "FakeGroup"})
    return kind


def test_a_process_group_is_itself() -> None:
    assert run(2, lambda group: resolve_group(group) is group) == [True, True]


def test_none_is_alone_while_no_framework_is_initialised(framework: type[FakeGroup]) -> None:
    assert isinstance(resolve_group(), SingleGroup)


def test_none_is_the_default_group_of_the_initialised_framework(framework: type[FakeGroup]) -> None:
    framework.up = True
    group: Any = resolve_group(None)
    assert isinstance(group, framework)
    assert group.native is None


def test_names(framework: type[FakeGroup]) -> None:
    assert isinstance(resolve_group("single"), SingleGroup)
    assert isinstance(resolve_group("fake"), framework)


def test_a_native_group_is_wrapped(framework: type[FakeGroup]) -> None:
    native = Native()
    group: Any = resolve_group(native)
    assert group.native is native


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownPluginError, match="'mpich'; known: single, paddle, torch"):
        resolve_group("mpich")


def test_what_is_no_group_is_refused(framework: type[FakeGroup]) -> None:
    with pytest.raises(GroupError, match="int is not a process group"):
        resolve_group(3)


def test_a_framework_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flexstore.groups.torch", None)
    with pytest.raises(MissingDependencyError, match="torch"):
        resolve_group("torch")


def test_no_framework_is_imported_unasked() -> None:
    code = (
        "import sys; from flexstore.groups.resolve import resolve_group; resolve_group(); resolve_group('single');"
        "sys.exit(bool({'paddle', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
