"""The law of the library: a state cut in any way, saved, and loaded under any other cut equals what numpy says.

Blocks and flattened ranges, replicas, empty shares, ranks that hold nothing, padding, and every layout that memory can
have, on both sides; through memory, and through every format on every kind of store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flexstore as fs
from flexstore.backends.base import Store
from flexstore.backends.local import LocalStore
from flexstore.core.dtypes import DTYPES, DType
from flexstore.core.tensor import ShardedTensor
from flexstore.groups.threads import run
from flexstore.loading import LoadReport
from flexstore.testing import Cut, expected
from flexstore.testing.generators import cuts
from tests.stories_kit import STRATEGIES, URL, bits, emptied, handing, memory_store

Array = npt.NDArray[Any]

EXTENTS = (1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 0)
UNKNOWN_TO_SAFETENSORS = ("complex128",)


def strided(values: Array) -> Array:
    """Every second element of a larger tensor."""
    room = np.zeros((*values.shape, 2), values.dtype)
    room[..., 0] = values
    return room[..., 0]


def backwards(values: Array) -> Array:
    """The same elements, the last one first in memory."""
    turn = (..., *(slice(None, None, -1),) * values.ndim)
    return values[turn].copy()[turn]


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "row-major": lambda values: np.array(values, order="C"),
    "column-major": lambda values: np.array(values, order="F"),
    "strided": strided,
    "backwards": backwards,
}


@dataclass(frozen=True)
class Laid:
    """A cut, and how its shards lie in memory: flattened ones have ``padding`` more elements, all ones."""

    cut: Cut
    layout: str
    padding: int

    def filled(self, rank: int) -> list[ShardedTensor]:
        """The shards of a rank with their contents."""
        return [self._laid(shard) for shard in self.cut.filled(rank)]

    def zeroed(self, rank: int) -> list[ShardedTensor]:
        """The shards of a rank to load into."""
        return [self._laid(shard) for shard in self.cut.zeroed(rank)]

    def nbytes(self, rank: int) -> int:
        """Bytes that a rank holds, padding not counted."""
        return sum(share.size for share in self.cut.ranks[rank]) * self.cut.dtype.itemsize

    def _laid(self, shard: ShardedTensor) -> ShardedTensor:
        values = shard.local_tensor
        if shard.is_flattened:
            values = np.concatenate([values, np.ones(self.padding, values.dtype)])
            if len(values) % 2 == 0:
                values = values.reshape(2, -1)
        return replace(shard, local_tensor=LAYOUTS[self.layout](values))


@dataclass(frozen=True)
class Move:
    """The same tensors cut in two ways."""

    source: tuple[Laid, ...]
    target: tuple[Laid, ...]
    source_size: int
    target_size: int


@st.composite
def laid(draw: st.DrawFn, key: str, shape: tuple[int, ...], dtype: DType, world_size: int) -> Laid:
    cut = draw(cuts(key, shape, dtype, world_size))
    return Laid(cut, draw(st.sampled_from(list(LAYOUTS))), draw(st.integers(0, 3)))


@st.composite
def moves(draw: st.DrawFn, without: Sequence[str] = (), *, same_ranks: bool = False) -> Move:
    dtypes = [dtype for name, dtype in DTYPES.items() if name not in without]
    source_size = draw(st.integers(1, 4))
    target_size = source_size if same_ranks else draw(st.integers(1, 4))
    source, target = [], []
    for key in ("w", "layers.0.b")[: draw(st.integers(1, 2))]:
        shape = tuple(draw(st.lists(st.sampled_from(EXTENTS), max_size=4)))
        dtype = draw(st.sampled_from(dtypes))
        source.append(draw(laid(key, shape, dtype, source_size)))
        target.append(draw(laid(key, shape, dtype, target_size)))
    return Move(tuple(source), tuple(target), source_size, target_size)


def shards(side: Sequence[Laid], rank: int, *, filled: bool) -> dict[str, list[ShardedTensor]]:
    """The state of one rank; without the names of which it holds nothing."""
    held = [each for each in side if each.cut.ranks[rank]]
    return {each.cut.key: each.filled(rank) if filled else each.zeroed(rank) for each in held}


def check_rank(move: Move, rank: int, loaded: dict[str, list[ShardedTensor]]) -> None:
    """Every element is right, and no element of the padding was touched."""
    for key, wanted in shards(move.target, rank, filled=True).items():
        for got, want in zip(loaded[key], wanted, strict=True):
            assert bits(got.local_tensor) == bits(want.local_tensor), (key, rank, got.block, got.flattened_range)


def check_storage(move: Move, strategy: str, store: Store, *, verify: bool = True) -> list[LoadReport]:
    """Save with the ranks of one side, load with those of the other."""
    options = handing(store)

    def save(group: fs.ProcessGroup) -> None:
        state = shards(move.source, group.rank, filled=True)
        fs.save(state, URL, strategy, group=group, storage_options=options)

    def load(group: fs.ProcessGroup) -> LoadReport:
        state = shards(move.target, group.rank, filled=False)
        report = fs.load(state, URL, group=group, verify=verify, storage_options=options)
        check_rank(move, group.rank, state)
        return report

    run(move.source_size, save)
    for each in move.source:
        whole = fs.open_checkpoint(URL, storage_options=options)[each.cut.key].read()
        assert bits(whole) == bits(np.array(expected(each.cut.key, each.cut.shape, each.cut.dtype)))
    return run(move.target_size, load)


def options_for(strategy: str) -> Sequence[str]:
    return UNKNOWN_TO_SAFETENSORS if strategy == "safetensors" else ()


@settings(max_examples=150)
@given(move=moves(same_ranks=True), budget=st.sampled_from([0, 256 << 20]))
def test_r1_r3_d11_d29_any_tiling_becomes_any_other_in_memory(move: Move, budget: int) -> None:
    def work(group: fs.ProcessGroup) -> None:
        source = shards(move.source, group.rank, filled=True)
        target = shards(move.target, group.rank, filled=False)
        before = {key: [bits(shard.local_tensor) for shard in held] for key, held in source.items()}
        fs.reshard(source, target, group=group, budget_nbytes=budget)
        check_rank(move, group.rank, target)
        assert before == {key: [bits(shard.local_tensor) for shard in held] for key, held in source.items()}

    run(move.source_size, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=100)
@given(data=st.data())
def test_r3_r9_d11_d29_any_tiling_loads_as_any_other(handed: None, strategy: str, data: st.DataObject) -> None:
    """Z2: padding is cut at save and left alone at load. Windows and reads of any size give the same (R5)."""
    move = data.draw(moves(options_for(strategy)))
    sizes = st.sampled_from([1, 64, 4096, 8 << 20])
    store = memory_store(
        request_nbytes=data.draw(sizes),
        read_nbytes=data.draw(sizes),
        gap_nbytes=data.draw(st.sampled_from([0, 7, 4096])),
    )
    with emptied(store):
        check_storage(move, strategy, store)
        fs.open_checkpoint(URL, storage_options=handing(store)).verify()


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=20)
@given(data=st.data())
def test_r3_any_tiling_loads_as_any_other_on_a_disk(handed: None, strategy: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_storage(data.draw(moves(options_for(strategy))), strategy, LocalStore(folder))


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=75)
@given(data=st.data())
def test_r5_a_rank_reads_exactly_what_it_wants(handed: None, strategy: str, data: st.DataObject) -> None:
    """Without checksum blocks to complete and gaps to read over, each byte is read once per place that needs it."""
    move = data.draw(moves(options_for(strategy)))
    with emptied(memory_store(gap_nbytes=0)) as store:
        reports = check_storage(move, strategy, store, verify=False)
    assert [report.bytes_read for report in reports] == [
        sum(each.nbytes(rank) for each in move.target) for rank in range(move.target_size)
    ]
