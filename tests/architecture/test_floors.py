"""Which module may import which (the contracts are in pyproject.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_no_module_imports_from_a_higher_floor(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    status = lint_imports(no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_all_contracts_are_there():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert [c["id"] for c in config["tool"]["importlinter"]["contracts"]] == ["floors", "pure", "named-after"]
