"""The repository builds anywhere: no path of somebody's machine, no host that only some networks reach."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from flexstore.version import __version__

ROOT = Path(__file__).parents[2]
MACHINE_PATH = re.compile(r"(?<![\w.}/])/(?:work|root|home|Users|opt)/[\w.]")
PACKAGE_INDEX = re.compile(r"--(?:extra-)?index(?:-url)?\b|--find-links\b|--trusted-host\b")
URL = re.compile(r"https?://([\w.-]+)")
TEXTS = (".py", ".md", ".toml", "Makefile", ".ci/run", ".gitignore", "LICENSE")
KNOWN_HOSTS = {
    "127.0.0.1",
    "example.com",
    "host",
    "keepachangelog.com",
    "localhost",
    "semver.org",
    "www.apache.org",
    "www.rfc-editor.org",
}


def texts() -> dict[str, str]:
    """Every text file that git tracks or would track, by its path; data files are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    paths = {name: ROOT / name for name in listed if name.endswith(TEXTS) and "golden/data" not in name}
    return {name: path.read_text() for name, path in paths.items() if path.is_file() and path != Path(__file__)}


def test_no_path_of_a_machine_is_named():
    assert {name: MACHINE_PATH.findall(text) for name, text in texts().items() if MACHINE_PATH.search(text)} == {}


def test_no_package_index_is_named():
    assert [name for name, text in texts().items() if PACKAGE_INDEX.search(text)] == []


def test_only_known_hosts_are_named():
    strange = {name: set(URL.findall(text)) - KNOWN_HOSTS for name, text in texts().items()}
    assert {name: hosts for name, hosts in strange.items() if hosts} == {}


def test_nothing_is_left_to_do():
    mark = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
    assert [name for name, text in texts().items() if name.startswith("flexstore/") and mark.search(text)] == []


def test_ci_can_be_executed():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_changelog_has_the_version():
    assert re.search(rf"^## .*\b{re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
