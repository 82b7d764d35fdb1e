"""Checkpoints that real Paddle wrote, read without Paddle. See data/paddle_README.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flexstore.backends.local import LocalStore
from flexstore.core.box import Box
from flexstore.core.dtypes import dtype_named
from flexstore.errors import CorruptCheckpointError
from flexstore.strategies.distcp.format import DistcpFormat
from tests.distcp_kit import read_tensor, store_of

DATA = Path(__file__).parent / "data"
WHOLE = ["paddle_w2", "paddle_w2_replicas", "paddle_w2_safetensors"]
TENSORS = {
    "m.embed.weight": ((16, 8), "bfloat16"),
    "m.col.weight": ((8, 12), "float32"),
    "m.col.bias": ((12,), "float16"),
    "m.row.weight": ((12, 8), "float32"),
    "m.norm.weight": ((8,), "float32"),
    "m.step": ((), "int64"),
    "m.ids": ((5, 3), "int64"),
    "m.scalar1": ((1,), "float32"),
    "m.col.weight.moment1_0": ((8, 12), "float32"),
    "m.row.weight.w_0": ((12, 8), "float32"),
    "m.flag": ((4,), "bool"),
    "m.u8": ((6,), "uint8"),
    "m.f64": ((3, 2), "float64"),
}


def expected(key: str) -> np.ndarray:
    """What the program that wrote the samples put into a tensor."""
    shape, dtype = TENSORS[key]
    values = np.arange(np.prod(shape, dtype=int)) % 251 + sum(map(ord, key)) % 97
    return values.astype(np.float32).reshape(shape).astype(dtype_named(dtype).numpy)


def open_sample(name: str) -> LocalStore:
    return LocalStore(DATA / name)


@pytest.mark.parametrize("sample", WHOLE)
def test_every_tensor_of_a_paddle_checkpoint_is_read(sample):
    store = open_sample(sample)
    manifest = DistcpFormat().read_manifest(store)
    assert {tensor.key for tensor in manifest.tensors} == set(TENSORS)
    for key in TENSORS:
        got, want = read_tensor(store, manifest, key), expected(key)
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("sample", [*WHOLE, "paddle_torn"])
def test_paddle_checkpoints_are_detected(sample):
    assert DistcpFormat().detect(open_sample(sample))


def test_a_foreign_manifest_says_so_and_names_its_files():
    manifest = DistcpFormat().read_manifest(open_sample("paddle_w2"))
    assert manifest.is_foreign
    assert manifest.strategy == "distcp"
    assert {(file.name, file.nbytes) for file in manifest.files} == {
        ("0_0.distcp", 1664),
        ("1_0.distcp", 2126),
        ("0.metadata", 2669),
    }


def test_d11_a_flattened_shard_becomes_boxes():
    manifest = DistcpFormat().read_manifest(open_sample("paddle_w2"))
    first, *rest = manifest.chunks_of("m.col.weight.moment1_0")
    assert first.box == Box((0, 0), (4, 12))
    assert [chunk.box for chunk in rest] == [Box((4, 0), (1, 1)), Box((4, 1), (1, 11)), Box((5, 0), (3, 12))]
    assert rest[0].byte_offset == first.byte_offset + 4 * 48


def test_replicas_are_read_once():
    plain = DistcpFormat().read_manifest(open_sample("paddle_w2"))
    replicated = DistcpFormat().read_manifest(open_sample("paddle_w2_replicas"))
    assert len(plain.chunks) == len(replicated.chunks)


def test_d14_a_torn_save_is_refused_with_its_missing_files():
    with pytest.raises(CorruptCheckpointError, match=r"2 of 2 data files are missing: 0_0\.distcp, 1_0\.distcp"):
        DistcpFormat().read_manifest(open_sample("paddle_torn"))


@pytest.mark.parametrize("sample", WHOLE)
def test_d14_a_data_file_cut_short_is_refused(sample):
    files = {path.name: path.read_bytes() for path in (DATA / sample).iterdir()}
    name = next(name for name in sorted(files) if name.startswith("1_"))
    for length in (0, 1, len(files[name]) // 2, len(files[name]) - 1):
        store = store_of(files | {name: files[name][:length]})
        with pytest.raises(CorruptCheckpointError) as caught:
            DistcpFormat().read_manifest(store)
        assert caught.value.file == name


def test_d22_stale_lock_files_are_ignored():
    files = {path.name: path.read_bytes() for path in (DATA / "paddle_w2").iterdir()}
    store = store_of(files | {"0.metadata.lock": b"", "10.metadata.lock": b"", "5_0.distcp": b"unnamed"})
    manifest = DistcpFormat().read_manifest(store)
    assert read_tensor(store, manifest, "m.ids").tobytes() == expected("m.ids").tobytes()
