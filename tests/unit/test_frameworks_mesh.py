"""Where a mesh puts a rank's block."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexstore.core.box import Box
from flexstore.errors import InvalidStateError
from flexstore.frameworks.mesh import Cut, block_on_mesh


@st.composite
def cut_tensors(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    dims = draw(st.permutations(range(len(mesh))))
    count = draw(st.integers(0, len(mesh)))
    cuts = tuple(Cut(dim, draw(st.integers(0, len(shape) - 1))) for dim in dims[:count])
    return shape, mesh, cuts


@given(cut_tensors())
def test_the_blocks_of_all_ranks_tile_the_tensor(case):
    shape, mesh, cuts = case
    uncut = np.prod([dim for i, dim in enumerate(mesh) if i not in {cut.mesh_dim for cut in cuts}], dtype=int)
    held = np.zeros(shape, int)
    for coordinate in itertools.product(*map(range, mesh)):
        held[block_on_mesh(shape, mesh, coordinate, cuts).within((0,) * len(shape))] += 1
    assert (held == uncut).all()


def test_uneven_parts_are_largest_first():
    blocks = [block_on_mesh((5, 2), (4,), (rank,), (Cut(0, 0),)) for rank in range(4)]
    assert blocks == [Box((0, 0), (2, 2)), Box((2, 0), (2, 2)), Box((4, 0), (1, 2)), Box((0, 0), (0, 2))]


def test_a_strided_cut_is_one_box_once_a_later_cut_undoes_it():
    cuts = (Cut(0, 0, split_factor=2), Cut(1, 0))
    assert block_on_mesh((8,), (2, 2), (1, 0), cuts) == Box((2,), (2,))
    with pytest.raises(InvalidStateError, match="more than one box"):
        block_on_mesh((8,), (2, 2), (1, 0), cuts[:1])
