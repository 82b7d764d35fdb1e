"""Laws of the distcp format: what is written is read, and damaged files raise nothing but flexstore's errors."""

from __future__ import annotations

import contextlib
import pickle
from itertools import pairwise, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES
from flexstore.errors import FlexstoreError
from flexstore.strategies.distcp.format import DistcpFormat
from flexstore.strategies.distcp.payloads import index_file
from tests.distcp_kit import disown, one_tensor, paddle_pickle, read_tensor, store_of, write_checkpoint

dims = st.lists(st.integers(1, 5), max_size=3).map(tuple)
keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=300)


@st.composite
def tilings(draw, shape):
    """A grid of boxes that tile ``shape``."""
    cuts = [sorted({0, dim, *draw(st.lists(st.integers(0, dim), max_size=2))}) for dim in shape]
    edges = [list(pairwise(axis)) for axis in cuts]
    return [Box(tuple(a for a, _ in cell), tuple(b - a for a, b in cell)) for cell in product(*edges)]


@st.composite
def checkpoints(draw):
    """Arrays, and which rank writes which box of them."""
    world = draw(st.integers(1, 3))
    arrays, boxes = {}, [[] for _ in range(world)]
    for key in draw(st.lists(keys, min_size=1, max_size=4, unique=True)):
        shape, dtype = draw(dims), draw(st.sampled_from(sorted(DTYPES)))
        nbytes = int(np.prod(shape)) * DTYPES[dtype].itemsize
        bits = np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8)
        arrays[key] = (bits % 2 if dtype == "bool" else bits).view(DTYPES[dtype].numpy).reshape(shape)
        for box in draw(tilings(shape)):
            boxes[draw(st.integers(0, world - 1))].append((key, box))
    return arrays, boxes


@given(checkpoints())
def test_what_was_written_is_read(checkpoint):
    arrays, boxes = checkpoint
    store = store_of({})
    written = write_checkpoint(store, arrays, boxes, paths={key: ("state", key) for key in arrays})
    disown(store)
    found = DistcpFormat().read_manifest(store)
    assert found.tensors == written.tensors
    for key, array in arrays.items():
        assert read_tensor(store, found, key).tobytes() == array.tobytes()
        assert {(c.box, c.file, c.byte_offset) for c in found.chunks_of(key)} == {
            (c.box, c.file, c.byte_offset) for c in written.chunks_of(key)
        }


@given(checkpoints(), st.sampled_from([3, 4, 5]))
def test_what_python_pickles_is_indexed(checkpoint, protocol):
    arrays = {key: a.view(np.uint8) if a.shape else a.reshape(1).view(np.uint8) for key, a in checkpoint[0].items()}
    content = pickle.dumps(arrays, protocol)
    index = index_file(store_of({"f": content}), "f", len(content))
    assert {k: content[a.offset : a.offset + arrays[k].nbytes] for k, a in index.items()} == {
        k: a.tobytes() for k, a in arrays.items()
    }


W = np.arange(6, dtype=np.float32).reshape(2, 3)
GOOD = {
    "0.metadata": paddle_pickle(one_tensor()),
    "0_0.distcp": pickle.dumps({"w": W, "v": np.asfortranarray(W[::2]), "StructuredToParameterName@@": {"w": "p"}}, 4),
}
GOOD_5 = GOOD | {"0_0.distcp": pickle.dumps({"w": W, "v": np.ones((0, 2))}, 5)}
edits = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 2), st.binary(max_size=9)), min_size=1)


def damaged(content: bytes, position: float, removed: int, inserted: bytes) -> bytes:
    at = int(position * len(content))
    return content[:at] + inserted + content[at + removed :]


@settings(max_examples=400)
@given(st.sampled_from([GOOD, GOOD_5]), st.sampled_from(sorted(GOOD)), edits)
def test_x9_damage_raises_only_flexstore_errors(good, name, changes):
    content = good[name]
    for change in changes:
        content = damaged(content, *change)
    store = store_of(good | {name: content})
    with contextlib.suppress(FlexstoreError):
        manifest = DistcpFormat().read_manifest(store)
        for tensor in manifest.tensors:
            for chunk in manifest.chunks_of(tensor.key):
                end = chunk.byte_offset + chunk.box.size * tensor.dtype.itemsize
                assert end <= store.head(chunk.file).nbytes
                assert Box.whole(tensor.shape).contains(chunk.box)


@settings(max_examples=400)
@given(st.binary(max_size=200))
def test_x9_noise_raises_only_flexstore_errors(noise):
    with contextlib.suppress(FlexstoreError):
        index_file(store_of({"f": noise}), "f", len(noise))
