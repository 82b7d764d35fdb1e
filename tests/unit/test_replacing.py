"""Replacing and deleting: what another saver, a damaged manifest or another program's checkpoint makes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import flexstore as fs
from flexstore.backends.base import Store
from flexstore.backends.local import LocalStore
from flexstore.checkpoint import delete_checkpoint
from flexstore.core.manifest import MANIFEST_NAME
from flexstore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    UnsupportedVersionError,
)
from flexstore.groups.threads import ThreadGroup, run
from flexstore.retention import collect_garbage
from flexstore.strategies.safetensors import INDEX_NAME
from flexstore.testing import RecordingStore, flip_bit
from tests.manifest_kit import sealed
from tests.stories_kit import STRATEGIES, URL, handing, memory_store, names, published

pytestmark = pytest.mark.usefixtures("handed")

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
PADDLE = ["paddle_w2", "paddle_w2_replicas", "paddle_w2_safetensors"]
CHANGING = ("put", "upload", "write", "commit", "delete")
EVERYTHING = -3600.0
"""Grace seconds with which also what is written now counts as old."""


def save(store: Store, value: int, strategy: str = "distcp", *, overwrite: bool = False) -> fs.Checkpoint:
    """A Hugging Face directory, if the format makes one."""
    state = {"w": np.full((4, 3), value, np.float32), "step": value}
    return fs.save(state, URL, strategy, overwrite=overwrite, storage_options=handing(store)).result()


def damage(store: Store) -> None:
    flip_bit(store, MANIFEST_NAME, 8 * (len(published(store)) // 2))


def age(store: Store) -> None:
    """Make the manifest one that a later version has written."""
    document = json.loads(published(store))
    del document["checksum"]
    store.put(MANIFEST_NAME, [sealed(document | {"version": 2})])


def of(checkpoint: fs.Checkpoint) -> set[str]:
    """All objects of a checkpoint."""
    return {MANIFEST_NAME, *(info.name for info in checkpoint.manifest.files)}


# Handles that are stale.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_a_stale_handle_deletes_nothing(strategy: str) -> None:
    store = memory_store()
    stale = save(store, 1, strategy)
    fresh = save(store, 2, strategy, overwrite=True)
    with pytest.raises(CheckpointNotFoundError, match="replaced or removed"):
        stale.delete()
    assert names(store) == of(fresh)
    fresh.verify()
    fresh.delete()
    assert names(store) == set()
    for handle in (stale, fresh):
        with pytest.raises(CheckpointNotFoundError):
            handle.delete()


def test_x5_a_handle_deletes_nothing_that_it_cannot_tell_to_be_its_own() -> None:
    store = memory_store()
    handle = save(store, 1)
    damage(store)
    before = names(store)
    with pytest.raises(CheckpointNotFoundError):
        handle.delete()
    assert names(store) == before


# Manifests that cannot be read.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_damaged_checkpoint_can_be_deleted(strategy: str) -> None:
    store = memory_store()
    left = of(save(store, 1, strategy)) - {MANIFEST_NAME}
    damage(store)
    delete_checkpoint(URL, storage_options=handing(store))
    assert names(store) == left
    with pytest.raises(CheckpointNotFoundError):
        fs.open_checkpoint(URL, storage_options=handing(store))
    assert set(collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store))) == left - {INDEX_NAME}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_whatever_is_published_can_be_deleted_and_nothing_is_no_error(strategy: str, tmp_path: Path) -> None:
    fs.save({"w": np.ones(3)}, tmp_path, strategy)
    delete_checkpoint(tmp_path)
    assert names(LocalStore(tmp_path)) == set()
    delete_checkpoint(tmp_path)
    delete_checkpoint(tmp_path / "never made")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x5_a_damaged_checkpoint_can_be_overwritten(strategy: str) -> None:
    store = memory_store()
    old = of(save(store, 1, strategy))
    damage(store)
    with pytest.raises(CheckpointExistsError):
        save(store, 2, strategy)
    checkpoint = save(store, 2, strategy, overwrite=True)
    assert checkpoint.common["step"] == 2
    checkpoint.verify()
    collect_garbage(URL, grace_seconds=EVERYTHING, storage_options=handing(store))
    assert names(store) == of(checkpoint)
    assert names(store) & old <= {MANIFEST_NAME, INDEX_NAME}


@pytest.mark.parametrize("overwrite", [False, True])
def test_m1_a_checkpoint_of_a_newer_version_is_never_replaced(overwrite: bool) -> None:
    """Nothing is written first, and it is not deleted either."""
    store = RecordingStore(memory_store())
    save(store, 1)
    age(store)
    before = published(store)
    store.operations.clear()
    with pytest.raises(UnsupportedVersionError if overwrite else CheckpointExistsError):
        save(store, 2, overwrite=overwrite)
    assert store.count(*CHANGING) == 0
    with pytest.raises(UnsupportedVersionError):
        delete_checkpoint(URL, storage_options=handing(store))
    assert store.count(*CHANGING) == 0
    assert published(store) == before


# Another program's checkpoint.


@pytest.mark.parametrize("sample", PADDLE)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d12_an_overwrite_of_a_paddle_checkpoint_leaves_ours_alone(sample: str, strategy: str, tmp_path: Path) -> None:
    """Its metadata would else be found by Paddle, and its data files by nobody."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN / sample, folder)
    theirs = names(LocalStore(folder))
    with pytest.raises(CheckpointExistsError, match="overwrite=True"):
        fs.save({"w": np.ones(3)}, folder, strategy)
    assert names(LocalStore(folder)) == theirs

    def save(group: ThreadGroup) -> fs.Checkpoint:
        shard = fs.ShardedTensor("w", np.full((1, 3), group.rank), (1, 3), (2, 3), (group.rank, 0))
        return fs.save({"w": shard}, folder, strategy, group=group, overwrite=True).result()

    checkpoint, _ = run(2, save)
    assert names(LocalStore(folder)) == of(checkpoint)
    assert not names(LocalStore(folder)) & theirs
    checkpoint.verify()


@pytest.mark.parametrize("sample", PADDLE)
def test_d12_deleting_a_paddle_checkpoint_removes_its_metadata_first(sample: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / sample, tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "notes.txt").write_text("nobody's")
    store = RecordingStore(LocalStore(tmp_path / "checkpoint"))
    fs.open_checkpoint(URL, storage_options=handing(store)).delete()
    assert names(store) == {"notes.txt"}
    assert next(operation.name for operation in store.operations if operation.verb == "delete") == "0.metadata"
    with pytest.raises(CheckpointNotFoundError):
        fs.open_checkpoint(URL, storage_options=handing(store))


def test_x5_a_paddle_checkpoint_that_is_broken_can_be_overwritten(tmp_path: Path) -> None:
    """Nobody knows its files, so they stay; ours is the one that is read."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN / "paddle_torn", folder)
    with pytest.raises(CorruptCheckpointError):
        fs.open_checkpoint(folder)
    checkpoint = fs.save({"w": np.ones(3)}, folder, overwrite=True).result()
    assert names(LocalStore(folder)) == of(checkpoint) | {"0.metadata"}
    assert set(fs.open_checkpoint(folder)) == {"w"}


def test_d12_an_overwrite_of_a_hugging_face_model_by_another_format_leaves_ours_alone(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        safetensors.numpy.save_file({name: np.ones(2, np.float32)}, tmp_path / name)
    (tmp_path / "config.json").write_text("{}")
    checkpoint = fs.save({"w": np.ones(3)}, tmp_path, "distcp", overwrite=True).result()
    assert names(LocalStore(tmp_path)) == of(checkpoint) | {"config.json"}


# The index of a Hugging Face directory.


def cut(group: ThreadGroup) -> dict[str, Any]:
    """A state of which no tensor is whole on any rank."""
    return {"w": fs.ShardedTensor("w", np.full((2, 3), group.rank), (2, 3), (4, 3), (2 * group.rank, 0))}


def test_d12_overwriting_whole_tensors_by_cut_ones_removes_the_index() -> None:
    """Else Hugging Face's loaders would look for files that are gone."""
    store = memory_store()
    save(store, 1, "safetensors")
    assert INDEX_NAME in names(store)
    options = handing(store)
    run(2, lambda group: fs.save(cut(group), URL, "safetensors", group=group, overwrite=True, storage_options=options))
    checkpoint = fs.open_checkpoint(URL, storage_options=options)
    assert names(store) == of(checkpoint)
    assert INDEX_NAME not in names(store)
    save(store, 3, "safetensors", overwrite=True)
    assert set(json.loads(store.get(INDEX_NAME))["weight_map"].values()) < names(store)


def test_d12_overwriting_by_another_format_removes_the_index() -> None:
    store = memory_store()
    save(store, 1, "safetensors")
    checkpoint = save(store, 2, "distcp", overwrite=True)
    assert names(store) == of(checkpoint)
