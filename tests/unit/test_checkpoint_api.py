"""`open_checkpoint`: looking at a checkpoint, reading parts of it, checking it, deleting it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flexstore as fs
from flexstore.backends.local import LocalStore
from flexstore.checkpoint import StoredTensor
from flexstore.core.checksum import crc32c
from flexstore.core.manifest import MANIFEST_NAME, build_chunk_table
from flexstore.core.manifest_json import encode
from flexstore.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidStateError,
    UnknownKeyError,
    UnsupportedVersionError,
)
from flexstore.groups.threads import ThreadGroup, run
from flexstore.testing import RecordingStore, expected, flip_bit
from tests.stories_kit import STRATEGIES, URL, bits, handing, memory_store, names, published

pytestmark = pytest.mark.usefixtures("handed")

ROOT = Path(__file__).parents[2]
SHAPE = (5, 6, 4)
VALUES = expected("cube", SHAPE, "int32")


def saved(strategy: str = "distcp") -> RecordingStore:
    """A checkpoint by two ranks, each with some planes of a cube."""
    store = RecordingStore(memory_store())

    def save(group: ThreadGroup) -> None:
        start, stop = ((0, 2), (2, 5))[group.rank]
        local = VALUES[start:stop]
        cube = fs.ShardedTensor("cube", local, local.shape, SHAPE, (start, 0, 0))
        state = {"cube": cube, "scalar": np.array(2.5), "none": np.zeros((0, 3)), "step": 3, "opt": {"lr": 0.1}}
        fs.save(state, URL, strategy, group=group, storage_options=handing(store))

    run(2, save)
    return store


@pytest.fixture(scope="module")
def cube(handed: None) -> StoredTensor:
    return opened(saved())["cube"]


def opened(store: Any) -> fs.Checkpoint:
    return fs.open_checkpoint(URL, storage_options=handing(store))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_m3_names_shapes_types_and_shards_are_told_without_reading_data(strategy: str) -> None:
    store = saved(strategy)
    store.operations.clear()
    checkpoint = opened(store)
    assert set(checkpoint) == {"cube", "none", "scalar"}
    assert len(checkpoint) == 3
    assert "cube" in checkpoint
    assert "step" not in checkpoint
    assert dict(checkpoint.common) == {"step": 3, "opt.lr": 0.1}
    cube = checkpoint["cube"]
    assert (cube.key, cube.shape, cube.dtype.name, cube.nbytes) == ("cube", SHAPE, "int32", VALUES.nbytes)
    assert sorted(chunk.box for chunk in cube.chunks) == [fs.Box((0, 0, 0), (2, 6, 4)), fs.Box((2, 0, 0), (3, 6, 4))]
    assert checkpoint["none"].chunks == []
    assert "int32" in repr(cube)
    assert {operation.name for operation in store.operations} == {MANIFEST_NAME}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_info_sums_up(strategy: str) -> None:
    checkpoint = opened(saved(strategy))
    info = checkpoint.info()
    assert info["strategy"] == checkpoint.strategy == strategy
    assert info["url"] == checkpoint.url
    assert (info["tensors"], info["plain_values"], info["world_size"]) == (3, 2, 2)
    assert info["nbytes"] == VALUES.nbytes + 8
    assert info["checksums"] is True
    assert info["foreign"] is False
    assert info["files"] == len(checkpoint.manifest.files)
    assert info["library"] == f"flexstore {fs.__version__}"


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(UnknownKeyError, match="no tensor 'cub'") as error:
        opened(saved())["cub"]
    assert isinstance(error.value, KeyError)
    assert error.value.key == "cub"
    assert opened(saved()).get("cub") is None


INDICES = st.tuples(
    *(
        st.integers(-dim, dim - 1)
        | st.builds(slice, *(st.none() | st.integers(-dim - 2, dim + 2),) * 2, st.sampled_from([None, 1]))
        for dim in SHAPE
    )
)


@settings(max_examples=200)
@given(parts=INDICES, head=st.integers(0, 3), tail=st.integers(0, 3), dots=st.booleans())
def test_read_takes_what_numpys_basic_indexing_takes(
    cube: StoredTensor, parts: tuple[Any, ...], head: int, tail: int, dots: bool
) -> None:
    """D29: also slices of one element, and integers, which drop their axis."""
    index = (*parts[:head], ..., *parts[max(head, 3 - tail) :]) if dots else parts[:head]
    got = cube.read(*index)
    want = np.asarray(VALUES[index])
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert bits(got) == bits(want)


@pytest.mark.parametrize(
    "index", [(5,), (-6,), (0, 0, 0, 0), (..., ...), (slice(0, 4, 2),), (slice(4, 0, -1),), (0, 0, 0, 0, ...)]
)
def test_an_index_that_does_not_fit_is_refused(index: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidStateError) as error:
        opened(saved())["cube"].read(*index)
    assert error.value.key == "cube"


def test_r5_a_part_reads_only_what_it_needs() -> None:
    store = saved()
    cube = opened(store)["cube"]
    store.operations.clear()
    assert bits(cube.read(3, verify=False)) == bits(VALUES[3])
    assert store.nbytes("get_into") == VALUES[3].nbytes
    assert cube.read(slice(2, 2)).shape == (0, 6, 4)
    assert store.count("get_into") == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_d15_verify_reads_everything_and_names_all_damage(strategy: str) -> None:
    store = saved(strategy)
    checkpoint = opened(store)
    report = checkpoint.verify()
    assert report.nbytes == sum(info.nbytes for info in checkpoint.manifest.files)
    assert report.unchecked_files == 0
    assert report.seconds > 0
    first, second = sorted(checkpoint["cube"].chunks, key=lambda chunk: chunk.box)
    for chunk in (first, second):
        flip_bit(store.inner, chunk.file, 8 * chunk.byte_offset + 5)
    with pytest.raises(CorruptCheckpointError, match="2 damaged range") as error:
        checkpoint.verify()
    assert all(chunk.file in str(error.value) for chunk in (first, second))
    assert "'cube'" in str(error.value)
    with pytest.raises(CorruptCheckpointError, match="checksum mismatch") as error:
        checkpoint["cube"].read(0)
    assert error.value.file == first.file
    assert error.value.box == first.box


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_delete_removes_the_manifest_first_and_then_everything_else(strategy: str) -> None:
    store = saved(strategy)
    checkpoint = opened(store)
    store.operations.clear()
    checkpoint.delete()
    assert names(store.inner) == set()
    assert next(operation.name for operation in store.operations if operation.verb == "delete") == MANIFEST_NAME
    with pytest.raises(CheckpointNotFoundError):
        opened(store)
    fs.save({"w": np.ones(2)}, URL, strategy, storage_options=handing(store))
    assert set(opened(store)) == {"w"}


def test_delete_leaves_the_files_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    fs.save({"w": np.ones(2)}, tmp_path).result().delete()
    assert names(LocalStore(tmp_path)) == {"notes.txt"}


def test_m1_a_newer_version_is_refused() -> None:
    store = saved()
    body = published(store).rsplit(b',"checksum"', 1)[0].replace(b'"version":1', b'"version":2', 1)
    store.put(MANIFEST_NAME, [body, b',"checksum":"crc32c:%08x"}\n' % crc32c(body)])
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        opened(store)
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        fs.load({}, URL, storage_options=handing(store))


def test_d14_a_published_hole_is_refused_by_every_reader() -> None:
    """Whoever wrote such a manifest, no load fills a tensor in part."""
    store = saved()
    manifest = opened(store).manifest
    chunks = [*manifest.chunks_of("cube")[1:], *manifest.chunks_of("scalar")]
    table = build_chunk_table(manifest.tensors, manifest.files, chunks)
    store.put(MANIFEST_NAME, [encode(replace(manifest, chunks=table))])
    with pytest.raises(CorruptCheckpointError) as error:
        opened(store)
    assert error.value.key == "cube"
    with pytest.raises(CorruptCheckpointError):
        fs.load({"scalar": np.zeros(())}, URL, storage_options=handing(store))


OPEN_WITHOUT_FRAMEWORKS = """
import sys
for name in ("paddle", "torch", "jax", "zarr", "tensorstore", "mpi4py"):
    sys.modules[name] = None  # any import of it fails
import flexstore as fs
checkpoint = fs.open_checkpoint(sys.argv[1])
print(sorted(checkpoint), checkpoint["w"].read(slice(1, 2)).tolist(), dict(checkpoint.common))
checkpoint.verify()
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_x7_a_checkpoint_of_many_ranks_is_read_where_no_framework_is(strategy: str, tmp_path: Path) -> None:
    def save(group: ThreadGroup) -> None:
        local = np.full((1, 2), group.rank, np.float32)
        shard = fs.ShardedTensor("w", local, (1, 2), (4, 2), (group.rank, 0))
        fs.save({"w": shard, "step": 9}, tmp_path, strategy, group=group)

    run(4, save)
    command = [sys.executable, "-c", OPEN_WITHOUT_FRAMEWORKS, str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout == "['w'] [[1.0, 1.0]] {'step': 9}\n"
