"""What a local store makes of links, FIFOs and other strange files under its root (X9)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flexstore.backends.local import LocalStore
from flexstore.errors import ObjectNotFoundError, StoreError


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def test_x9_links_do_not_lead_out_of_the_root(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    store.put("x", [b"1"])
    (store.root / "file").symlink_to(tmp_path / "outside" / "secret")
    (store.root / "folder").symlink_to(tmp_path / "outside")
    asked: list[Callable[[str], object]] = [
        store.get,
        store.head,
        store.delete,
        lambda name: store.get_into(name, 0, []),
        lambda name: store.put(name, [b"overwritten"]),
        lambda name: store.upload(name, 1),
    ]
    for ask in asked:
        for name in ("file", "folder/secret"):
            with pytest.raises(StoreError, match="leads out of") as caught:
                ask(name)
            assert "follow_symlinks" in str(caught.value)
    assert [info.name for info in store.list()] == ["x"]
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["secret"]
    assert (tmp_path / "outside" / "secret").read_bytes() == b"secret"


def test_trusted_folders_may_link_out_as_hugging_face_caches_do(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"weights")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blob")
    store = LocalStore(tmp_path / "snapshot", follow_symlinks=True)
    assert store.get("model.safetensors") == b"weights"
    assert list(store.list()) == [store.head("model.safetensors")]


def test_links_inside_the_root_and_a_linked_root_are_fine(store: LocalStore, tmp_path: Path) -> None:
    store.put("a/x", [b"1"])
    (store.root / "link").symlink_to("a/x")
    (tmp_path / "linked").symlink_to(store.root)
    linked = LocalStore(tmp_path / "linked")
    assert linked.get("link") == linked.get("a/x") == b"1"
    assert [info.name for info in linked.list()] == ["a/x", "link"]
    linked.put("a/y", [b"2"])
    assert store.get("a/y") == b"2"


def test_dangling_links_and_loops_are_no_objects(store: LocalStore) -> None:
    store.put("x", [b"1"])
    (store.root / "dangling").symlink_to("nothing")
    (store.root / "loop").symlink_to(".")
    (store.root / "itself").symlink_to("itself")
    assert [info.name for info in store.list()] == ["x"]
    for name in ("dangling", "loop"):
        with pytest.raises(ObjectNotFoundError):
            store.get(name)
    with pytest.raises(StoreError, match="symbolic links"):
        store.get("itself")


def test_x9_a_fifo_does_not_block_a_reader(store: LocalStore) -> None:
    store.put("x", [b"1"])
    os.mkfifo(store.root / "fifo")
    for ask in (store.get, store.head):
        with pytest.raises(ObjectNotFoundError):
            ask("fifo")
    assert [info.name for info in store.list()] == ["x"]


def test_files_with_unsafe_names_are_not_listed(store: LocalStore) -> None:
    store.put("x", [b"1"])
    (store.root / "back\\slash").write_bytes(b"")
    (store.root / "new\nline").write_bytes(b"")
    assert [info.name for info in store.list()] == ["x"]


def test_a_file_that_vanishes_while_listing_is_left_out(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("x", [b"1"])
    store.put("y", [b"2"])
    inner = LocalStore._files

    def files(self: LocalStore, folder: str, prefix: str) -> Iterator[Any]:
        found = list(inner(self, folder, prefix))
        (store.root / "x").unlink(missing_ok=True)
        yield from found

    monkeypatch.setattr(LocalStore, "_files", files)
    assert [info.name for info in store.list()] == ["y"]


def test_a_root_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file")
    with pytest.raises(StoreError, match="Not a directory"):
        list(store.list())
    with pytest.raises(StoreError, match="Not a directory"):
        store.put("x", [b"1"])
