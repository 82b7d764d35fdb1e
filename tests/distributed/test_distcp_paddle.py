"""The distcp format against real Paddle: each reads what the other wrote."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flexstore.backends.local import LocalStore
from flexstore.core.box import Box
from flexstore.strategies.distcp.format import DistcpFormat
from tests.distcp_kit import read_tensor, write_checkpoint
from tests.distributed.paddle_state import arrays

WRITER = Path(__file__).with_name("paddle_writer.py")
GRID = np.arange(24, dtype=np.float32).reshape(4, 6)
NESTED = {
    "model.whole": GRID,
    "model.strided": GRID.T,
    "model.rows": GRID,
    "model.columns": GRID,
    "model.copies": GRID,
}


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def written_by_paddle(request, paddle_launch, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("paddle")
    paddle_launch(WRITER, request.param, [folder])
    return folder


@pytest.fixture
def paddle() -> Iterator[Any]:
    """Paddle; its own warnings are none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle

        yield paddle


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["plain", "replicas", "safetensors", "versions"])
def test_what_paddle_wrote_is_read_without_paddle(written_by_paddle, name):
    store = LocalStore(written_by_paddle / name)
    manifest = DistcpFormat().read_manifest(store)
    assert {tensor.key for tensor in manifest.tensors} == set(arrays())
    for key, want in arrays().items():
        got = read_tensor(store, manifest, key)
        assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())


@pytest.mark.distributed
def test_d27_nested_dicts_strided_tensors_and_dist_tensors_of_paddle_are_read(written_by_paddle):
    store = LocalStore(written_by_paddle / "nested")
    manifest = DistcpFormat().read_manifest(store)
    assert {tensor.key: tensor.path for tensor in manifest.tensors} == {key: tuple(key.split(".")) for key in NESTED}
    for key, want in NESTED.items():
        assert np.array_equal(read_tensor(store, manifest, key), want)


def cut_of(key: str, shape: tuple[int, ...]) -> list[list[tuple[str, Box]]]:
    """Three boxes of a tensor: two on rank 0, one on rank 1; small tensors stay whole."""
    if not shape or shape[0] < 3:
        return [[], [(key, Box.whole(shape))]]
    rest = (0,) * (len(shape) - 1)
    first, second, third = (
        (key, Box((start, *rest), (count, *shape[1:]))) for start, count in [(0, 1), (1, 1), (2, shape[0] - 2)]
    )
    return [[first, third], [second]]


def save_as_two_ranks(folder: Path, state: dict[str, np.ndarray]) -> None:
    cuts = [cut_of(key, array.shape) for key, array in state.items()]
    boxes = [[box for cut in cuts for box in cut[rank]] for rank in range(2)]
    write_checkpoint(LocalStore(folder), state, boxes, paths={"nested.w": ("nested", "w")})


@pytest.mark.distributed
def test_what_we_wrote_is_loaded_by_paddle(paddle, tmp_path):
    """8-bit floats are left out: Paddle 3.3.1 converts their bits to numbers, also when it wrote them itself."""
    state = {key: array for key, array in arrays().items() if "float8" not in key}
    state |= {
        "complex": np.arange(5, dtype=np.complex64) * 1j,
        "large": np.arange(60_000.0).reshape(300, 200),
        "nested.w": GRID,
    }
    save_as_two_ranks(tmp_path, state)
    target = {key: paddle.zeros(array.shape, array.dtype.name) for key, array in state.items()}
    paddle.distributed.load_state_dict(target, str(tmp_path))
    for key, want in state.items():
        got = target[key].cast("float32") if want.dtype.name == "bfloat16" else target[key]
        assert np.array_equal(got.numpy(), want.astype(np.float32) if want.dtype.name == "bfloat16" else want), key


@pytest.mark.distributed
def test_the_bits_of_8_bit_floats_are_those_that_paddle_writes(paddle, tmp_path):
    state = {key: array for key, array in arrays().items() if "float8" in key and array.ndim == 2}
    assert len(state) == 2
    tensors = {key: paddle.to_tensor(a.astype(np.float32)).cast(a.dtype.name) for key, a in state.items()}
    paddle.distributed.save_state_dict(tensors, str(tmp_path / "paddle"))
    boxes = [[(key, Box.whole(array.shape)) for key, array in state.items()]]
    write_checkpoint(LocalStore(tmp_path / "ours"), state, boxes)
    theirs = paddle.load(str(tmp_path / "paddle" / "0_0.distcp"), return_numpy=True)
    ours = paddle.load(str(tmp_path / "ours" / "0_7.distcp"), return_numpy=True)
    assert set(ours) == set(theirs)
    for key, want in theirs.items():
        assert ours[key].dtype == want.dtype
        assert np.array_equal(ours[key], want)
