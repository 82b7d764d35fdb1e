"""Opening stores by URL, and showing URLs without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexstore.backends import BACKENDS, open_store, redacted, register_backend
from flexstore.backends.local import LocalStore
from flexstore.backends.memory import MemoryStore
from flexstore.errors import DuplicatePluginError, StoreError, UnknownPluginError
from flexstore.plugins import Registry


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(BACKENDS, "_registered", {})


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}", "FILE://{}"])
def test_local_urls_open_the_same_folder(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(tmp_path))
    assert isinstance(store, LocalStore)
    assert store.root == tmp_path
    assert open_store(store.url).url == store.url


def test_paths_may_be_path_objects_or_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store(Path("a") / "b").url == open_store("a/b").url == str(tmp_path / "a" / "b")


def test_file_urls_are_percent_encoded_and_paths_are_not(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/run%201").url == str(tmp_path / "run 1")
    assert open_store(f"{tmp_path}/run%201").url == str(tmp_path / "run%201")


def test_a_colon_in_a_path_makes_no_scheme(tmp_path: Path) -> None:
    assert open_store(f"{tmp_path}/x://y").url == str(tmp_path / "x:" / "y")


def test_file_urls_of_other_hosts_are_refused() -> None:
    with pytest.raises(StoreError, match="host 'relative'"):
        open_store("file://relative/path")


def test_opening_touches_nothing(tmp_path: Path) -> None:
    open_store(tmp_path / "new").close()
    assert list(tmp_path.iterdir()) == []


def test_options_go_to_the_backend(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"1")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    assert open_store(tmp_path / "root", {"follow_symlinks": True}).get("link") == b"1"


def test_memory_urls_share_one_tree_per_process() -> None:
    store = open_store("memory://test_backends/run/1")
    assert isinstance(store, MemoryStore)
    store.put("x", [b"1"])
    assert open_store("memory://test_backends/run/1/").get("x") == b"1"
    assert open_store("memory://test_backends").get("run/1/x") == b"1"
    assert [info.name for info in open_store("memory://test_backends/run").list()] == ["1/x"]
    assert list(open_store("memory://test_backends/ru").list()) == []
    store.delete("x")


def test_the_whole_memory_is_a_root_too() -> None:
    store = open_store("memory://")
    store.put("test_backends_x", [b"1"])
    assert open_store("memory://").get("test_backends_x") == b"1"
    store.delete("test_backends_x")


def test_x9_memory_paths_are_checked() -> None:
    with pytest.raises(StoreError, match="unsafe"):
        open_store("memory://a/../b")


def test_an_empty_url_is_refused() -> None:
    with pytest.raises(StoreError, match="empty"):
        open_store("")


@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize("url", ["gopher://key:secret@host/x", "zip::gopher://key:secret@host/x"])
def test_unknown_schemes_are_named_and_secrets_are_not(url: str) -> None:
    with pytest.raises(UnknownPluginError, match="gopher") as caught:
        open_store(url)
    assert "file, memory" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("backends")
def test_registered_backends_are_used() -> None:
    def factory(url: str, *, space: str) -> MemoryStore:
        return MemoryStore(f"{space}/{url.partition('://')[2]}")

    register_backend("mine", factory, description="my own")
    assert open_store("mine://a", {"space": "test"}).url == "memory://test/a"
    with pytest.raises(DuplicatePluginError):
        register_backend("file", factory)


@pytest.mark.usefixtures("backends")
def test_backends_are_a_registry_with_entry_points() -> None:
    assert isinstance(BACKENDS, Registry)
    assert [(status.name, status.installed) for status in BACKENDS.describe()] == [("file", True), ("memory", True)]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/path", "s3://bucket/path"),
        ("s3://key:secret@bucket/path", "s3://bucket/path"),
        ("s3://key@bucket/path", "s3://bucket/path"),
        ("s3://key:se/cr/et@bucket/path", "s3://bucket/path"),
        ("s3://key:se@cret@bucket/path", "s3://bucket/path"),
        ("s3://key:secret@bucket:80/run@2", "s3://bucket:80/run@2"),
        ("s3://bucket/run@2", "s3://bucket/run@2"),
        ("hdfs://node:9000/run@2", "hdfs://node:9000/run@2"),
        ("gs://b/x?token=secret&part=1#end", "gs://b/x?token=***&part=***#end"),
        ("/data/a?b=c/user:name@home", "/data/a?b=c/user:name@home"),
    ],
)
def test_redacted_hides_secrets_and_keeps_paths(url: str, shown: str) -> None:
    assert redacted(url) == shown
