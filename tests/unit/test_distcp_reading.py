"""What the distcp reader understands and what it refuses, on checkpoints made by hand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES
from flexstore.errors import CheckpointNotFoundError, CorruptCheckpointError, UnsupportedValueError
from flexstore.strategies.distcp.format import DistcpFormat
from flexstore.strategies.distcp.payloads import index_file
from tests.distcp_kit import (
    OLD_MODULE,
    LocalTensorIndex,
    LocalTensorMetadata,
    Metadata,
    one_tensor,
    paddle_pickle,
    read_tensor,
    sample_arrays,
    store_of,
    write_checkpoint,
)

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def data(arrays: dict, protocol: int = 4) -> bytes:
    return pickle.dumps(arrays | {"StructuredToParameterName@@": {key: key for key in arrays}}, protocol)


def one_file(metadata: Metadata, array: np.ndarray = W, **options) -> dict[str, bytes]:
    return {"0.metadata": paddle_pickle(metadata, **options), "0_0.distcp": data({"w": array})}


def read_w(files: dict[str, bytes]) -> np.ndarray:
    store = store_of(files)
    return read_tensor(store, DistcpFormat().read_manifest(store), "w")


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_data_files_of_every_protocol_are_indexed(protocol):
    arrays = {key: a for key, a in sample_arrays().items() if DTYPES[a.dtype.name].is_numpy_native}
    arrays |= {
        "fortran": np.asfortranarray(np.arange(24, dtype=np.int16).reshape(2, 3, 4)),
        "strided": np.arange(24, dtype=np.int32).reshape(4, 6)[::2, ::3],
        "empty": np.zeros((0, 3), np.float32),
        "large": np.arange(50_000, dtype=np.float64),
        "last": np.array(7, np.int8),
    }
    store = store_of({"0_0.distcp": data(arrays, protocol)})
    index = index_file(store, "0_0.distcp", store.head("0_0.distcp").nbytes)
    assert list(index) == list(arrays)
    for key, array in arrays.items():
        found = index[key]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        stored = store.get("0_0.distcp", found.offset, found.offset + array.nbytes)
        assert stored == array.tobytes("F" if found.fortran else "C")
    assert index["fortran"].fortran


def test_payloads_are_not_read_to_index_a_file():
    class Counting:
        def __init__(self, store):
            self.inner, self.io, self.nbytes = store, store.io, 0

        def get(self, name, start=0, stop=None):
            self.nbytes += stop - start
            return self.inner.get(name, start, stop)

    content = data({f"w{i}": np.zeros(1 << 20, np.uint8) for i in range(16)})
    store = Counting(store_of({"0_0.distcp": content}))
    assert len(index_file(store, "0_0.distcp", len(content))) == 16
    assert store.nbytes <= 17 * store.io.gap_nbytes


def test_equal_one_byte_arrays_share_their_bytes():
    content = data({"a": np.array(True), "b": np.array([True])}, protocol=3)
    index = index_file(store_of({"f.distcp": content}), "f.distcp", len(content))
    assert index["a"].offset == index["b"].offset


@pytest.mark.parametrize("module", [OLD_MODULE, "paddle.distributed.flex_checkpoint.dcp.metadata"])
def test_e3_both_module_paths_are_understood(module):
    assert np.array_equal(read_w(one_file(one_tensor(), module=module)), W)


def test_pickles_of_the_first_versions_lack_fields():
    described = [
        LocalTensorMetadata(global_offset=(0, 0), local_shape=(2, 2), dtype="float32"),
        LocalTensorMetadata(global_offset=(0, 2), local_shape=(2, 1), dtype="float32"),
    ]
    storage = {
        LocalTensorIndex(tensor_key="w", global_offset=(0, 0)): "0_0.distcp",
        LocalTensorIndex(tensor_key="w", global_offset=(0, 2)): "1_0.distcp",
    }
    old = Metadata(state_dict_metadata={"w": described}, storage_metadata=storage)
    files = {
        "0.metadata": paddle_pickle(old, OLD_MODULE),
        "0_0.distcp": data({"w": W[:, :2]}),
        "1_0.distcp": data({"w": W[:, 2:]}),
    }
    assert np.array_equal(read_w(files), W)


def test_bfloat16_and_8_bit_floats_are_stored_as_integers():
    for name, carrier in {"bfloat16": "uint16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}.items():
        values = np.array([0, 1, -2, 0.5]).astype(DTYPES[name].numpy)
        got = read_w(one_file(one_tensor((4,), dtype=name), values.view(carrier)))
        assert got.dtype == values.dtype
        assert got.tobytes() == values.tobytes()


def test_column_major_arrays_keep_their_order():
    store = store_of(one_file(one_tensor(), np.asfortranarray(W)))
    manifest = DistcpFormat().read_manifest(store)
    assert manifest.chunks_of("w")[0].fortran
    assert np.array_equal(read_tensor(store, manifest, "w"), W)


def test_d11_flattened_shards_of_3d_tensors_land_where_they_belong():
    whole = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    metadata = one_tensor((3, 4, 5))
    described, storage, files = [], {}, {}
    for rank, (start, stop) in enumerate([(0, 7), (7, 7), (7, 8), (8, 53), (53, 60)]):
        fields = {
            "global_offset": (0, 0, 0),
            "local_shape": (3, 4, 5),
            "is_flattened": True,
            "flattened_range": (start, stop),
        }
        described.append(LocalTensorMetadata(dtype="float32", global_shape=(3, 4, 5), **fields))
        storage[LocalTensorIndex(tensor_key="w", **fields)] = f"{rank}_0.distcp"
        files[f"{rank}_0.distcp"] = data({"w": whole.reshape(-1)[start:stop]})
    metadata.state_dict_metadata, metadata.storage_metadata = {"w": described}, storage
    assert np.array_equal(read_w(files | {"0.metadata": paddle_pickle(metadata)}), whole)


def test_d27_the_path_of_a_nested_tensor_is_kept():
    metadata = one_tensor()
    metadata.flat_mapping = {"w": ("a", "b")}
    manifest = DistcpFormat().read_manifest(store_of(one_file(metadata)))
    assert manifest.tensors[0].path == ("a", "b")


def test_a_path_of_one_piece_is_not_kept():
    assert DistcpFormat().read_manifest(store_of(one_file(one_tensor()))).tensors[0].path is None


def test_empty_shards_need_no_file():
    metadata = one_tensor((0, 3))
    metadata.storage_metadata = {}
    manifest = DistcpFormat().read_manifest(store_of({"0.metadata": paddle_pickle(metadata)}))
    assert manifest.tensors[0].shape == (0, 3)
    assert len(manifest.chunks) == 0


def test_d13_d17_the_largest_id_is_read_alone():
    files = {}
    for number in (0, 1, 2, 10):
        files[f"{number}.metadata"] = paddle_pickle(one_tensor(file=f"0_{number}.distcp"))
        files[f"0_{number}.distcp"] = data({"w": W + number})
    assert np.array_equal(read_w(files), W + 10)


def test_d12_a_torn_newer_save_is_not_replaced_by_an_older_one():
    files = one_file(one_tensor()) | {"1.metadata": paddle_pickle(one_tensor(file="0_1.distcp"))}
    with pytest.raises(CorruptCheckpointError, match=r"0_1\.distcp"):
        read_w(files)


@pytest.mark.parametrize(
    "array", [W.T.copy(), W.reshape(-1), W.astype(np.float64), W.view(np.int32)], ids=["shape", "ndim", "size", "type"]
)
def test_d6_d7_d12_data_that_contradicts_the_metadata_is_refused(array):
    with pytest.raises(CorruptCheckpointError, match="the metadata says") as caught:
        read_w(one_file(one_tensor(), array))
    assert (caught.value.key, caught.value.file) == ("w", "0_0.distcp")
    assert caught.value.box == Box.whole((2, 3))


def test_big_endian_arrays_are_refused():
    with pytest.raises(CorruptCheckpointError, match="big-endian"):
        read_w(one_file(one_tensor(), W.astype(">f4")))


def test_an_unknown_dtype_is_named():
    with pytest.raises(UnsupportedValueError, match="float4") as caught:
        read_w(one_file(one_tensor(dtype="float4")))
    assert caught.value.key == "w"


def test_an_unpublished_attempt_of_ours_is_invisible():
    store = store_of({})
    write_checkpoint(store, {"w": W}, [[("w", Box.whole(W.shape))]])
    assert not DistcpFormat().detect(store)
    with pytest.raises(CheckpointNotFoundError):
        DistcpFormat().read_manifest(store)
    for name, content in one_file(one_tensor(), W + 1).items():
        store.put(name, [content])
    assert DistcpFormat().detect(store)
    assert np.array_equal(read_tensor(store, DistcpFormat().read_manifest(store), "w"), W + 1)


@pytest.mark.parametrize("name", [".metadata", "x.metadata", "0.metadata.lock", "sub/0.metadata", "x.auto.metadata"])
def test_other_files_are_no_paddle_checkpoint(name):
    assert not DistcpFormat().detect(store_of({name: b"x"}))
