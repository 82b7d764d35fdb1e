"""What flexstore's first version left behind when a save was interrupted must never become "Paddle's checkpoint".

An attempt is told from Paddle's own files by how its metadata begins. A writer that emitted the same values in another
order would still read its own files, and take those of its predecessors for Paddle's: this pins the beginning.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import flexstore as fs
from flexstore.backends.local import LocalStore
from flexstore.core.box import Box
from flexstore.errors import CheckpointNotFoundError
from flexstore.strategies.distcp.format import DistcpFormat
from flexstore.strategies.distcp.metadata_file import is_ours
from tests.distcp_kit import store_of, write_checkpoint

UNPUBLISHED = Path(__file__).parent / "data" / "flexstore_unpublished"
METADATA = "7.metadata"

MODULE = b"\x8c\x2fpaddle.distributed.flex_checkpoint.dcp.metadata"
BEGINNING = (
    b"\x80\x04"
    + MODULE
    + b"\x8c\x13LocalTensorMetadata\x93\x940"
    + MODULE
    + b"\x8c\x10LocalTensorIndex\x93\x940"
    + b"\x8c\x0atensor_key\x940"
    + b"\x8c\x0dglobal_offset\x940"
    + b"\x8c\x0blocal_shape\x940"
    + b"\x8c\x05dtype\x940"
    + b"\x8c\x0cglobal_shape\x940"
    + b"\x8c\x0cis_flattened\x940"
    + b"\x8c\x0fflattened_range\x940"
    + b"\x8c\x0areplica_id\x940"
    + MODULE
    + b"\x8c\x08Metadata\x93)\x81}"
    + b"\x8c\x11flexstore_attempt"
)


@pytest.mark.parametrize("arrays", [{}, {"w": np.ones((2, 3), np.float32), "none": np.zeros((0,), np.int8)}])
def test_the_first_bytes_of_our_metadata_never_change(arrays: dict[str, np.ndarray]) -> None:
    store = store_of({})
    write_checkpoint(store, arrays, [[(key, Box.whole(array.shape)) for key, array in arrays.items() if array.size]])
    assert store.get(METADATA).startswith(BEGINNING)


def test_the_stored_sample_begins_like_that() -> None:
    assert (UNPUBLISHED / METADATA).read_bytes().startswith(BEGINNING)
    (info,) = [info for info in LocalStore(UNPUBLISHED).list() if info.name == METADATA]
    assert is_ours(LocalStore(UNPUBLISHED), info)


def test_an_old_unpublished_attempt_is_no_checkpoint(tmp_path: Path) -> None:
    assert not DistcpFormat().detect(LocalStore(UNPUBLISHED))
    with pytest.raises(CheckpointNotFoundError):
        fs.open_checkpoint(UNPUBLISHED)
    folder = tmp_path / "checkpoint"
    shutil.copytree(UNPUBLISHED, folder)
    fs.save({"w": np.zeros(2)}, folder)
    assert fs.open_checkpoint(folder)["w"].shape == (2,)


def test_metadata_that_begins_otherwise_is_not_ours() -> None:
    """Cut short, or with one byte changed, wherever it is."""
    content = (UNPUBLISHED / METADATA).read_bytes()
    others = [content[: len(BEGINNING) - 1]]
    others += [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(0, len(BEGINNING), 7)]
    for other in others:
        assert DistcpFormat().detect(store_of({METADATA: other}))
