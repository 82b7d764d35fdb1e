"""The generators of test tensors make what they say."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES, DType
from flexstore.core.tensor import ShardedTensor
from flexstore.testing import Cut, expected, pick_cut, pick_ranges, pick_shape
from flexstore.testing.generators import boxes, cuts, dtypes, shapes, tilings


@given(st.data())
def test_tilings_cover_every_element_once(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    count = np.zeros(shape, int)
    for box in data.draw(tilings(shape)):
        count[box.within((0,) * len(shape))] += 1
    assert (count == 1).all()


@given(st.data())
def test_boxes_lie_in_their_shape(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    assert Box.whole(shape).contains(data.draw(boxes(shape)))


@given(st.randoms(use_true_random=False), st.integers(0, 50), st.integers(1, 8))
def test_ranges_are_consecutive_and_cover_all(source: random.Random, size: int, count: int) -> None:
    ranges = pick_ranges(source.randint, size, count)
    assert len(ranges) == count
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(size))


def _assembled(cut: Cut, shards: list[ShardedTensor]) -> tuple[np.ndarray, np.ndarray]:
    """Put shards together by the geometry of `ShardedTensor` alone: the elements, and which of them were there."""
    whole, seen = np.zeros(cut.shape, cut.dtype.numpy), np.zeros(cut.shape, bool)
    for shard in shards:
        flat = shard.local_tensor.reshape(-1)
        for box, position in shard.boxes():
            at = box.within((0,) * len(cut.shape))
            whole[at], seen[at] = flat[position : position + box.size].reshape(box.shape), True
    return whole, seen


@given(cuts())
def test_shards_of_all_ranks_make_the_expected_tensor(cut: Cut) -> None:
    shards = [shard for rank in range(len(cut.ranks)) for shard in cut.filled(rank)]
    whole, seen = _assembled(cut, shards)
    assert seen.all()
    assert whole.tobytes() == expected(cut.key, cut.shape, cut.dtype).tobytes()


@given(cuts())
def test_zeroed_shards_have_the_same_geometry_and_their_own_memory(cut: Cut) -> None:
    for rank, shares in enumerate(cut.ranks):
        for filled, zeroed, share in zip(cut.filled(rank), cut.zeroed(rank), shares, strict=True):
            assert list(filled.boxes()) == list(zeroed.boxes())
            assert zeroed.local_tensor.size == filled.local_tensor.size == share.size
            assert not zeroed.local_tensor.view(np.uint8).any() if zeroed.local_tensor.ndim else True
            assert zeroed.local_tensor.flags.owndata


@given(st.text(), dtypes(), shapes())
def test_contents_depend_on_the_key_alone_and_are_finite(key: str, dtype: DType, shape: tuple[int, ...]) -> None:
    once, again = (expected(key, shape, name) for name in (dtype, dtype.name))
    assert once.shape == shape
    assert once.dtype == dtype.numpy
    assert once.tobytes() == again.tobytes()
    assert np.isfinite(once.astype(np.complex128)).all()


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_contents_tell_places_and_keys_apart(name: str) -> None:
    one = expected("one", (64,), name)
    assert len(set(one.tolist())) > (1 if name == "bool" else 16)
    assert one.tobytes() != expected("two", (64,), name).tobytes()


def test_a_plain_random_source_reaches_every_kind_of_cut() -> None:
    source = random.Random(0)
    made = [
        pick_cut(source.randint, "w", pick_shape(source.randint), DTYPES["float32"], source.randint(1, 4))
        for _ in range(300)
    ]
    shares = [[share for rank in cut.ranks for share in rank] for cut in made]
    assert {len(cut.shape) for cut in made} == {0, 1, 2, 3, 4}
    assert any(share.flattened_range for all_ in shares for share in all_), "R9: flattened"
    assert any(share.size == 0 for all_ in shares for share in all_), "R9: empty"
    assert any(share.size == 1 and share.flattened_range for all_ in shares for share in all_), "D29: one element"
    assert any(len(set(all_)) < len(all_) for all_ in shares), "replicas"
    assert any(not rank for cut in made for rank in cut.ranks), "R7: a rank without any"
