"""Hypothesis strategies for the laws that every cut, every dtype and every box must obey."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES, DType
from flexstore.testing.cuts import Cut, Pick, pick_cut, pick_shape, pick_tiling


def dtypes() -> st.SearchStrategy[DType]:
    """Any element type that a checkpoint can hold."""
    return st.sampled_from(list(DTYPES.values()))


@st.composite
def shapes(draw: st.DrawFn, max_ndim: int = 4, max_dim: int = 6) -> tuple[int, ...]:
    """Shapes of 0 to ``max_ndim`` dimensions of 1 to ``max_dim``."""
    return pick_shape(_pick(draw), max_ndim, max_dim)


@st.composite
def boxes(draw: st.DrawFn, shape: Sequence[int]) -> Box:
    """Boxes inside a shape, empty ones too."""
    ranges = [sorted((draw(st.integers(0, dim)), draw(st.integers(0, dim)))) for dim in shape]
    return Box(tuple(lo for lo, _ in ranges), tuple(hi - lo for lo, hi in ranges))


@st.composite
def tilings(draw: st.DrawFn, shape: Sequence[int], max_pieces: int = 8) -> list[Box]:
    """Exact tilings of a shape by non-empty boxes."""
    pick = _pick(draw)
    return pick_tiling(pick, shape, pick(1, max_pieces))


@st.composite
def cuts(
    draw: st.DrawFn,
    key: str = "weight",
    shape: tuple[int, ...] | None = None,
    dtype: DType | None = None,
    world_size: int | None = None,
) -> Cut:
    """Tensors cut over ranks; whatever is not given is chosen.

    Two cuts with the same key, shape and dtype have the same contents: save the one, load the other.
    """
    pick = _pick(draw)
    return pick_cut(
        pick,
        key,
        pick_shape(pick) if shape is None else shape,
        draw(dtypes()) if dtype is None else dtype,
        pick(1, 4) if world_size is None else world_size,
    )


def _pick(draw: st.DrawFn) -> Pick:
    return lambda low, high: draw(st.integers(low, high))
