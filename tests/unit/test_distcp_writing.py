"""The files that the distcp format writes, looked at with the standard library's pickle and numpy."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest

from flexstore.core.box import Box
from flexstore.core.checksum import crc32c
from flexstore.core.dtypes import DTYPES, dtype_of
from flexstore.planning.files import WriteItem
from flexstore.strategies.distcp import emit
from flexstore.strategies.distcp.format import DistcpFormat
from tests.distcp_kit import (
    LocalTensorIndex,
    LocalTensorMetadata,
    Metadata,
    render,
    sample_arrays,
    store_of,
    write_checkpoint,
)

PADDLE_CLASSES = {cls.__name__: cls for cls in (Metadata, LocalTensorMetadata, LocalTensorIndex)}


def items_of(arrays: dict[str, np.ndarray]) -> list[WriteItem]:
    return [
        WriteItem(i, key, dtype_of(a.dtype), Box.whole(a.shape), a.shape) for i, (key, a) in enumerate(arrays.items())
    ]


def item(index: int, key: str, offset: int) -> WriteItem:
    return WriteItem(index, key, DTYPES["float32"], Box((offset,), (1,)), (8,))


class MetadataUnpickler(pickle.Unpickler):
    """Unpickles metadata without Paddle."""

    def find_class(self, module: str, name: str) -> Any:
        assert module == "paddle.distributed.flex_checkpoint.dcp.metadata"
        return PADDLE_CLASSES[name]


def test_a_data_file_is_a_pickled_dict_of_numpy_arrays():
    arrays = sample_arrays()
    (layout,) = DistcpFormat().layout(items_of(arrays), 0, 1, "0")
    content = pickle.loads(render(layout, arrays))
    assert content.pop("StructuredToParameterName@@") == {key: key for key in arrays}
    assert list(content) == list(arrays)
    for key, array in arrays.items():
        assert content[key].shape == array.shape
        assert content[key].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("name", "carrier"),
    [("bfloat16", "uint16"), ("float8_e4m3fn", "int8"), ("float8_e5m2", "int8"), ("bool", "bool"), ("int64", "int64")],
)
def test_types_that_numpy_lacks_are_written_as_paddle_writes_them(name, carrier):
    arrays = {"w": np.ones(3).astype(DTYPES[name].numpy)}
    (layout,) = DistcpFormat().layout(items_of(arrays), 0, 1, "0")
    assert pickle.loads(render(layout, arrays))["w"].dtype == carrier


def test_payloads_are_aligned():
    arrays = sample_arrays() | {"k" * 300: np.ones(3), "large": np.zeros(70_000, np.uint8)}
    (layout,) = DistcpFormat().layout(items_of(arrays), 0, 1, "0")
    offsets = [offset for offset, part in layout.placed() if isinstance(part, WriteItem)]
    assert len(offsets) == len(arrays)
    assert all(offset % 64 == 0 for offset in offsets)


def test_x8_a_small_tensor_costs_bytes():
    small = {f"layer.{i}.bias": np.ones(1, np.float32) for i in range(1000)}
    (layout,) = DistcpFormat().layout(items_of(small), 0, 1, "0")
    assert layout.nbytes < 256 * len(small)


def test_d16_file_names_of_ranks_and_boxes_never_collide():
    held = [[item(0, "a", 0), item(1, "b", 0), item(2, "a", 1), item(3, "a", 2)], [item(4, "a", 3), item(5, "a", 4)]]
    layouts = [DistcpFormat().layout(items, rank, 2, "42") for rank, items in enumerate(held)]
    names = [[layout.name for layout in of_rank] for of_rank in layouts]
    assert names == [["0_42.distcp", "2_42.distcp", "4_42.distcp"], ["1_42.distcp", "3_42.distcp"]]
    written = [[s.index for s in x.segments if isinstance(s, WriteItem)] for of_rank in layouts for x in of_rank]
    assert written == [[0, 1], [2], [3], [4], [5]]


def test_no_items_no_files():
    assert DistcpFormat().layout([], 0, 1, "0") == []


def test_metadata_says_what_paddle_would_say():
    arrays = {"w": np.zeros((4, 3), np.float32), "step": np.array(7), "none": np.zeros((0, 2), np.uint8)}
    halves = [Box((0, 0), (2, 3)), Box((2, 0), (2, 3))]
    store = store_of({})
    boxes = [[("w", halves[0]), ("step", Box((), ()))], [("w", halves[1])]]
    manifest = write_checkpoint(store, arrays, boxes, paths={"w": ("model", "w")})
    metadata = MetadataUnpickler(io.BytesIO(store.get("7.metadata"))).load()

    def plain(offset, shape, **more):
        return {
            "global_offset": offset,
            "local_shape": shape,
            "is_flattened": False,
            "flattened_range": None,
        } | more

    described = {key: [entry.__dict__ for entry in entries] for key, entries in metadata.state_dict_metadata.items()}
    assert described == {
        "w": [plain(box.offset, box.shape, dtype="float32", global_shape=(4, 3)) for box in halves],
        "step": [plain((), (), dtype="int64", global_shape=())],
        "none": [plain((0, 0), (0, 2), dtype="uint8", global_shape=(0, 2))],
    }
    assert [(index.__dict__, file) for index, file in metadata.storage_metadata.items()] == [
        (plain((0, 0), (2, 3), tensor_key="w", replica_id=None), "0_7.distcp"),
        (plain((2, 0), (2, 3), tensor_key="w", replica_id=None), "1_7.distcp"),
        (plain((), (), tensor_key="step", replica_id=None), "0_7.distcp"),
    ]
    assert metadata.flat_mapping == {"w": ("model", "w"), "step": ("step",), "none": ("none",)}
    assert metadata.flexstore_attempt == "7"
    file = manifest.files[-1]
    content = store.get(file.name)
    assert (file.name, file.nbytes, file.frame_crc) == ("7.metadata", len(content), crc32c(content))


@pytest.mark.parametrize("value", [0, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 62])
def test_emitted_numbers(value):
    assert pickle.loads(emit.HEAD + emit.integer(value) + b".") == value


@pytest.mark.parametrize("value", ["", "w", "é" * 127, "é" * 128, "x" * 70_000])
def test_emitted_strings(value):
    assert pickle.loads(emit.HEAD + emit.text(value) + b".") == value


@pytest.mark.parametrize("count", range(6))
def test_emitted_tuples(count):
    assert pickle.loads(emit.HEAD + emit.integers(range(count)) + b".") == tuple(range(count))


@pytest.mark.parametrize("nbytes", [0, 255, 256, 70_000])
def test_emitted_bytes(nbytes):
    assert pickle.loads(emit.HEAD + emit.payload_head(nbytes) + bytes(nbytes) + b".") == bytes(nbytes)


def test_bytes_above_4_gib_have_a_long_head():
    assert emit.payload_head(1 << 32) == b"\x8e" + (1 << 32).to_bytes(8, "little")


@pytest.mark.parametrize("position", range(130))
def test_padding_aligns(position):
    padding = emit.padding(position, 5, 64)
    assert (position + len(padding) + 5) % 64 == 0
    assert pickle.loads(emit.HEAD + b"N" + padding + b".") is None
