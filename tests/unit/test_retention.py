"""`collect_garbage` removes what interrupted saves left, and nothing else; `verify` notices what is then amiss."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import flexstore as fs
from flexstore.backends.base import Store
from flexstore.backends.local import LocalStore
from flexstore.core.manifest import MANIFEST_NAME
from flexstore.errors import CheckpointNotFoundError, CorruptCheckpointError, StoreError, UnsupportedVersionError
from flexstore.retention import collect_garbage
from flexstore.testing import FaultyStore, flip_bit
from tests.manifest_kit import sealed
from tests.stories_kit import STRATEGIES, URL, handing, memory_store, names, published

pytestmark = pytest.mark.usefixtures("handed")

EVERYTHING = -3600.0
"""Grace seconds with which also what is written now counts as old."""


def save(store: Store, value: int, strategy: str, *, overwrite: bool = False) -> fs.Checkpoint:
    state = {"w": np.full((4, 3), value, np.float32), "step": value}
    return fs.save(state, URL, strategy, overwrite=overwrite, storage_options=handing(store)).result()


def interrupted_save(store: Store, strategy: str) -> set[str]:
    """A save whose process dies when all its data is written; what it left behind."""
    before = names(store)
    overwrite = MANIFEST_NAME in before
    with pytest.raises(StoreError):
        save(FaultyStore(store, 1, verbs=("commit",), when="after", dead=True), 9, strategy, overwrite=overwrite)
    left = names(store) - before
    assert left
    return left


def aged(folder: Path, *found: str, days: float) -> None:
    """Make files look as if they had been written so many days ago."""
    then = time.time() - days * 86400
    for name in found:
        os.utime(folder / name, (then, then))


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_what_an_interrupted_save_left_is_removed(strategy: str, published: bool) -> None:
    store = memory_store()
    if published:
        save(store, 1, strategy)
    before = names(store)
    left = interrupted_save(store, strategy)
    assert set(collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store))) == left
    assert names(store) == before
    assert collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store)) == ()
    if published:
        checkpoint = fs.open_checkpoint(URL, storage_options=handing(store))
        checkpoint.verify()
        assert checkpoint.common["step"] == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_save_that_may_be_under_way_is_left_alone(strategy: str, tmp_path: Path) -> None:
    """Of two attempts, the one that is older than the grace period goes."""
    store = LocalStore(tmp_path)
    old = interrupted_save(store, strategy)
    young = interrupted_save(store, strategy)
    aged(tmp_path, *old, days=2)
    aged(tmp_path, *young, days=0.5)
    assert set(collect_garbage(tmp_path)) == old
    assert names(store) == young
    assert set(collect_garbage(tmp_path, grace_seconds=3600)) == young


def test_temporary_files_of_dead_writers_are_removed_unless_they_are_young(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    uploads = [store.upload(f"sub/{number}", 5) for number in range(2)]
    old, young = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob(".flexstore-*"))
    aged(tmp_path, str(old), days=2)
    aged(tmp_path, str(young), days=0.5)
    assert collect_garbage(tmp_path) == ()
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob(".flexstore-*")] == [young]
    for upload in uploads:
        upload.abort()


def test_files_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    """However old they are; also numbers that are too long or too short for an attempt."""
    left = interrupted_save(LocalStore(tmp_path), "distcp")
    theirs = {
        *("notes.txt", "0.metadata", "0_0.distcp", "model.safetensors", "tokenizer/vocab.json", "x.tmp"),
        *(f"{'7' * 21}.metadata", f"{'7' * 23}.metadata", "2024-01-01T00:00:00.log", ".flexstore-notes"),
    }
    for name in theirs:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs")
        aged(tmp_path, name, days=1000)
    assert set(collect_garbage(tmp_path, grace_seconds=EVERYTHING)) == left
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == theirs


def test_checkpoints_in_folders_below_are_left_alone(tmp_path: Path) -> None:
    """The URL of a whole run: each step has a manifest of its own, which names what is there."""
    for step in ("step_1", "step_2", "deep/er/step_3"):
        fs.save({"w": np.ones(3)}, tmp_path / step)
        interrupted_save(LocalStore(tmp_path / step), "distcp")
    unpublished = interrupted_save(LocalStore(tmp_path / "step_4"), "distcp")
    found = collect_garbage(tmp_path, grace_seconds=EVERYTHING)
    assert set(found) == {f"step_4/{name}" for name in unpublished}
    for step in ("step_1", "step_2", "deep/er/step_3"):
        fs.open_checkpoint(tmp_path / step).verify()
        assert len(collect_garbage(tmp_path / step, grace_seconds=EVERYTHING)) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_the_manifest_names_is_never_removed(strategy: str, tmp_path: Path) -> None:
    """However old it is; and a checkpoint written long ago is still whole."""
    store = LocalStore(tmp_path)
    save(store, 1, strategy)
    before = names(store)
    aged(tmp_path, *before, days=1000)
    assert collect_garbage(tmp_path) == ()
    assert names(store) == before
    fs.open_checkpoint(tmp_path).verify()


def test_nothing_under_the_url_is_no_garbage(tmp_path: Path) -> None:
    assert collect_garbage(tmp_path / "never made") == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_damaged_manifest_stops_the_collection(strategy: str) -> None:
    """Nobody knows what it named. When it is deleted, all that it named is garbage."""
    store = memory_store()
    save(store, 1, strategy)
    interrupted_save(store, strategy)
    flip_bit(store, MANIFEST_NAME, 8 * (len(published(store)) // 2))
    before = names(store)
    with pytest.raises(CorruptCheckpointError) as error:
        collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store))
    assert error.value.file == MANIFEST_NAME
    assert names(store) == before


def test_m1_a_manifest_of_a_newer_version_stops_the_collection() -> None:
    store = memory_store()
    save(store, 1, "distcp")
    document = json.loads(published(store))
    del document["checksum"]
    store.put(MANIFEST_NAME, [sealed(document | {"version": 2})])
    before = names(store)
    with pytest.raises(UnsupportedVersionError):
        collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store))
    assert names(store) == before


# What verify notices of the files.


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("change", [-1, 1])
def test_d15_verify_notices_a_file_of_a_wrong_size(strategy: str, change: int) -> None:
    """Longer or shorter; the bytes that are there may all be right."""
    store = memory_store()
    checkpoint = save(store, 1, strategy)
    for info in checkpoint.manifest.files:
        if info.frame_crc is None:  # of a file that has no checksum nothing is promised
            continue
        content = store.get(info.name)
        store.put(info.name, [content[:change] if change < 0 else content + bytes(change)])
        with pytest.raises(CorruptCheckpointError, match=f"{info.nbytes + change} bytes, not {info.nbytes}") as error:
            checkpoint.verify()
        assert error.value.file == info.name
        store.put(info.name, [content])
    checkpoint.verify()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d14_verify_notices_a_file_that_is_missing(strategy: str) -> None:
    store = memory_store()
    checkpoint = save(store, 1, strategy)
    for info in checkpoint.manifest.files:
        if info.frame_crc is None:
            continue
        content = store.get(info.name)
        store.delete(info.name)
        with pytest.raises(CorruptCheckpointError) as error:
            checkpoint.verify()
        assert error.value.file == info.name
        store.put(info.name, [content])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_deleted_checkpoint_leaves_no_garbage(strategy: str) -> None:
    store = memory_store()
    save(store, 1, strategy).delete()
    assert names(store) == set()
    with pytest.raises(CheckpointNotFoundError):
        fs.open_checkpoint(URL, storage_options=handing(store))
