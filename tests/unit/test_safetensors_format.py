"""The safetensors strategy: what it writes, that the library reads it, and which directories it reads."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from flexstore.backends.local import LocalStore
from flexstore.core.box import Box
from flexstore.core.dtypes import DTYPES, dtype_named
from flexstore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidStateError,
    UnsupportedValueError,
)
from flexstore.planning.files import WriteItem
from flexstore.strategies.safetensors import INDEX_NAME, SINGLE_NAME, SafetensorsFormat
from flexstore.strategies.safetensors_header import HeaderEntry, dtype_code, read_header, write_header
from flexstore.testing.cuts import expected
from tests.distcp_kit import read_tensor, store_of
from tests.safetensors_kit import info, raw_file, whole, write_checkpoint

F32 = dtype_named("float32")
STORABLE = [name for name in DTYPES if name != "complex128"]
SHAPES = [(), (1,), (5,), (3, 4), (2, 3, 4)]
FORMAT = SafetensorsFormat()


def sample_arrays() -> dict[str, np.ndarray]:
    """Every dtype in several shapes, so that any order of files and bytes would show."""
    keys = [(f"t.{name}.{len(shape)}.{shape}", shape, name) for name in STORABLE for shape in SHAPES]
    return {key: expected(key, shape, name) for key, shape, name in keys}


def test_header_of_two_tensors() -> None:
    header = write_header([("a", F32, (2, 3)), ("b", dtype_named("bool"), ())], {"format": "pt"})
    length = int.from_bytes(header[:8], "little")
    assert len(header) == 8 + length
    assert len(header) % 8 == 0
    assert json.loads(header[8:]) == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BOOL", "shape": [], "data_offsets": [24, 25]},
    }


def test_a_header_is_read_with_absolute_offsets() -> None:
    data = write_header([("a", F32, (2,)), ("empty", F32, (0, 4)), ("b", F32, ())], {"x": "y"})
    header = read_header(store_of({"f": data + bytes(12)}), "f")
    n = len(data)
    assert header.tensors == {
        "a": HeaderEntry("float32", (2,), n, n + 8),
        "empty": HeaderEntry("float32", (0, 4), n + 8, n + 8),
        "b": HeaderEntry("float32", (), n + 8, n + 12),
    }
    assert (header.metadata, header.nbytes, header.file_nbytes) == ({"x": "y"}, n, n + 12)


def test_a_header_longer_than_one_read_is_read() -> None:
    names = [f"layer.{i}.weight" for i in range(3000)]
    data = write_header([(name, F32, (1,)) for name in names], {})
    assert len(data) > 64 << 10
    assert list(read_header(store_of({"f": data + bytes(4 * len(names))}), "f").tensors) == names


def test_names_that_a_file_cannot_hold_are_refused() -> None:
    for names in (["a", "a"], ["__metadata__"]):
        with pytest.raises(InvalidStateError, match="cannot hold this name"):
            write_header([(name, F32, ()) for name in names], {})
    with pytest.raises(InvalidStateError, match="Unicode"):
        write_header([("\ud800", F32, ())], {})


def test_complex128_is_refused_with_a_hint() -> None:
    with pytest.raises(UnsupportedValueError, match="complex128") as caught:
        dtype_code(dtype_named("complex128"))
    assert "distcp" in str(caught.value)


def test_the_library_reads_every_dtype_and_shape(tmp_path: Path) -> None:
    arrays = sample_arrays()
    write_checkpoint(LocalStore(tmp_path), arrays, [whole(arrays)])
    with safetensors.safe_open(tmp_path / "model-7-00000.safetensors", "torch") as file:
        assert set(file.keys()) == set(arrays)
        assert file.metadata() == {"format": "pt", "flexstore_attempt": "7"}
        for key, array in arrays.items():
            tensor = file.get_tensor(key)
            assert tuple(tensor.shape) == array.shape
            assert tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() == array.tobytes()


def test_the_library_reads_it_as_numpy(tmp_path: Path) -> None:
    arrays = {key: array for key, array in sample_arrays().items() if array.dtype.isbuiltin == 1}
    write_checkpoint(LocalStore(tmp_path), arrays, [whole(arrays)])
    loaded = safetensors.numpy.load_file(tmp_path / "model-7-00000.safetensors")
    assert set(loaded) == set(arrays)
    for key, array in arrays.items():
        assert loaded[key].dtype == array.dtype
        assert np.array_equal(loaded[key], array)


def test_whole_tensors_make_a_hugging_face_directory(tmp_path: Path) -> None:
    arrays = sample_arrays()
    half = len(arrays) // 2
    manifest = write_checkpoint(LocalStore(tmp_path), arrays, [whole(arrays)[:half], whole(arrays)[half:]])
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    assert index["metadata"] == {
        "total_size": sum(array.nbytes for array in arrays.values()),
        "flexstore_attempt": "7",
    }
    assert set(index["weight_map"]) == set(arrays)
    for key, file in index["weight_map"].items():
        with safetensors.safe_open(tmp_path / file, "torch") as opened:
            assert tuple(opened.get_tensor(key).shape) == arrays[key].shape
    last = manifest.files[-1]
    assert (last.name, last.nbytes, last.frame_crc) == (INDEX_NAME, (tmp_path / INDEX_NAME).stat().st_size, None)


def test_pieces_are_named_after_their_boxes_and_make_no_hugging_face_directory(tmp_path: Path) -> None:
    arrays = {"w": expected("w", (4, 16), F32), "b": expected("b", (3,), F32)}
    left, right = Box((0, 0), (4, 8)), Box((0, 8), (4, 8))
    manifest = write_checkpoint(LocalStore(tmp_path), arrays, [[("w", left), ("b", Box.whole((3,)))], [("w", right)]])
    first = safetensors.numpy.load_file(tmp_path / "model-7-00000.safetensors")
    second = safetensors.numpy.load_file(tmp_path / "model-7-00001.safetensors")
    assert set(first) == {"w@[0:4,0:8]", "b"}
    assert set(second) == {"w@[0:4,8:16]"}
    assert np.array_equal(np.hstack([first["w@[0:4,0:8]"], second["w@[0:4,8:16]"]]), arrays["w"])
    assert not (tmp_path / INDEX_NAME).exists()
    assert [file.name for file in manifest.files] == ["model-7-00000.safetensors", "model-7-00001.safetensors"]


def test_no_key_can_be_mistaken_for_a_piece_or_for_the_metadata(tmp_path: Path) -> None:
    keys = ["w", "w@[0:2]", "w@[2:4]", "__metadata__", "x@[]", "y@[0:1]z", "@[0:9]@[0:4]"]
    arrays = {key: expected(key, (4,), F32) for key in keys}
    boxes = [*whole(arrays)[1:], ("w", Box((0,), (2,))), ("w", Box((2,), (2,)))]
    write_checkpoint(LocalStore(tmp_path), arrays, [boxes])
    loaded = safetensors.numpy.load_file(tmp_path / "model-7-00000.safetensors")
    assert set(loaded) == {
        *("w@[0:2]", "w@[2:4]", "w@[0:2]@[0:4]", "w@[2:4]@[0:4]", "__metadata__@[0:4]", "x@[]@[0:4]"),
        *("y@[0:1]z", "@[0:9]@[0:4]@[0:4]"),
    }
    assert np.array_equal(loaded["w@[0:2]"], arrays["w"][:2])
    assert np.array_equal(loaded["w@[0:2]@[0:4]"], arrays["w@[0:2]"])


def test_a_renamed_whole_tensor_makes_no_hugging_face_directory(tmp_path: Path) -> None:
    arrays = {key: expected(key, (4,), F32) for key in ("w", "v@[0:2]")}
    write_checkpoint(LocalStore(tmp_path), arrays, [whole(arrays)])
    assert not (tmp_path / INDEX_NAME).exists()


def test_every_tensor_is_aligned_to_its_elements() -> None:
    items = [WriteItem(i, name, DTYPES[name], Box((0,), (3,)), (3,)) for i, name in enumerate(STORABLE)]
    (layout,) = FORMAT.layout(items, 0, 1, "7")
    placed = [(offset, part) for offset, part in layout.placed() if isinstance(part, WriteItem)]
    assert len(placed) == len(items)
    assert all(offset % part.dtype.itemsize == 0 for offset, part in placed)


def test_a_rank_without_items_writes_no_file() -> None:
    assert FORMAT.layout([], 3, 4, "7") == []


def test_file_names_differ_by_attempt_and_rank() -> None:
    item = WriteItem(0, "w", F32, Box((), ()), ())
    names = {FORMAT.layout([item], rank, 2, attempt)[0].name for rank in (0, 1) for attempt in ("7", "8")}
    assert len(names) == 4


def test_replicated_tensors_stay_whole() -> None:
    assert FORMAT.splits_replicas is False


def test_a_tensor_without_elements_leaves_no_index_that_would_miss_it(tmp_path: Path) -> None:
    arrays = {"w": expected("w", (2,), F32), "none": np.zeros((0, 3), np.float32)}
    write_checkpoint(LocalStore(tmp_path), arrays, [whole(arrays)[:1]])
    assert not (tmp_path / INDEX_NAME).exists()


def test_an_unpublished_attempt_is_invisible() -> None:
    """Design 3.2.4, whether the attempt is a Hugging Face directory or not."""
    arrays = {"w": expected("w", (4,), F32)}
    for boxes in ([whole(arrays)], [[("w", Box((0,), (2,)))], [("w", Box((2,), (2,)))]]):
        store = store_of({})
        write_checkpoint(store, arrays, boxes)
        assert not FORMAT.detect(store)
        with pytest.raises(CheckpointNotFoundError):
            FORMAT.read_manifest(store)


def test_no_index_is_written_over_another_programs_model() -> None:
    arrays = {"w": expected("w", (4,), F32)}
    for name, content in ((SINGLE_NAME, b"any"), (INDEX_NAME, b'{"weight_map":{}}'), (INDEX_NAME, b"broken")):
        store = store_of({name: content})
        with pytest.raises(CheckpointExistsError, match="another program's model"):
            write_checkpoint(store, arrays, [whole(arrays)])
        assert store.get(name) == content


def test_an_index_of_our_own_is_replaced() -> None:
    store, arrays = store_of({}), {"w": expected("w", (4,), F32)}
    for attempt in ("7", "8"):
        write_checkpoint(store, arrays, [whole(arrays)], attempt)
    assert json.loads(store.get(INDEX_NAME))["weight_map"] == {"w": "model-8-00000.safetensors"}


def library_file(*keys: str) -> bytes:
    return safetensors.numpy.save({key: expected(key, (2, 3), F32) for key in keys})


def index_of(**weight_map: str) -> bytes:
    return json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode()


FOREIGN = {
    "one file": {SINGLE_NAME: library_file("a", "b")},
    "one file before an index": {
        SINGLE_NAME: library_file("a", "b"),
        INDEX_NAME: index_of(z="old.safetensors"),
        "old.safetensors": library_file("z"),
    },
    "an index": {
        "1.safetensors": library_file("a", "unnamed"),
        "2.safetensors": library_file("b"),
        INDEX_NAME: index_of(a="1.safetensors", b="2.safetensors"),
    },
    "an index without metadata, files in a folder": {
        "parts/1.safetensors": library_file("b", "a"),
        INDEX_NAME: b'{"weight_map":{"a":"parts/1.safetensors","b":"parts/1.safetensors"}}',
    },
    "files without an index": {
        "x.safetensors": library_file("a"),
        "y.safetensors": library_file("b"),
        "config.json": b"{}",
    },
    "all files of a set": {
        "m-00001-of-00002.safetensors": library_file("a"),
        "m-00002-of-00002.safetensors": library_file("b"),
    },
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_directories_are_read(kind: str) -> None:
    store = store_of(FOREIGN[kind])
    assert FORMAT.detect(store)
    manifest = FORMAT.read_manifest(store)
    assert manifest.is_foreign
    assert manifest.strategy == "safetensors"
    assert [tensor.key for tensor in manifest.tensors] == ["a", "b"]
    for key in "ab":
        assert np.array_equal(read_tensor(store, manifest, key), expected(key, (2, 3), F32))
    sizes = {item.name: item.nbytes for item in store.list()}
    assert all(file.nbytes == sizes[file.name] for file in manifest.files)


def test_leftovers_of_our_own_attempts_do_not_hide_a_foreign_checkpoint() -> None:
    store = store_of({})
    write_checkpoint(store, {"w": expected("w", (4,), F32)}, [[("w", Box((0,), (4,)))]])
    store.put("theirs.safetensors", [library_file("a")])
    assert FORMAT.detect(store)
    assert [tensor.key for tensor in FORMAT.read_manifest(store).tensors] == ["a"]


def test_tensors_of_every_dtype_and_without_elements_are_read() -> None:
    arrays = {key: array for key, array in sample_arrays().items() if array.dtype != ml_dtypes.float8_e5m2}
    tensors = {
        key: torch.frombuffer(bytearray(a.tobytes()), dtype=getattr(torch, a.dtype.name)).reshape(a.shape)
        for key, a in arrays.items()
    }
    store = store_of({SINGLE_NAME: safetensors.torch.save(tensors | {"none": torch.zeros(0, 3)})})
    manifest = FORMAT.read_manifest(store)
    for key, array in arrays.items():
        assert manifest.tensors[manifest.index[key]].dtype.numpy == array.dtype
        assert read_tensor(store, manifest, key).tobytes() == array.tobytes()
    assert manifest.tensors[manifest.index["none"]].shape == (0, 3)
    assert manifest.chunks_of("none") == []


BROKEN = {
    "a file that the index names is missing": (
        {"1.safetensors": library_file("a"), INDEX_NAME: index_of(a="1.safetensors", b="2.safetensors")},
        "2.safetensors",
    ),
    "a tensor that the index names is missing": (
        {"1.safetensors": library_file("a"), INDEX_NAME: index_of(a="1.safetensors", b="1.safetensors")},
        "key=b",
    ),
    "a name that leaves the directory": ({INDEX_NAME: index_of(a="../1.safetensors")}, "forbidden name"),
    "an absolute name": ({INDEX_NAME: index_of(a="/1.safetensors")}, "forbidden name"),
    "an index that is no JSON": ({INDEX_NAME: b'{"weight_map":'}, INDEX_NAME),
    "an index without a map": ({INDEX_NAME: b'{"metadata":{}}'}, "weight_map"),
    "an index of numbers": ({INDEX_NAME: b'{"weight_map":{"a":1}}'}, "weight_map"),
    "an index as deep as the sea": ({INDEX_NAME: b'{"metadata":{"a":' + b"[" * 10**5}, INDEX_NAME),
    "one name in two files": (
        {"x.safetensors": library_file("a", "b"), "y.safetensors": library_file("b")},
        "x.safetensors",
    ),
    "a part of a set is missing": (
        {f"m-0000{i}-of-00003.safetensors": library_file(str(i)) for i in (1, 3)},
        "m-00002-of-00003.safetensors",
    ),
    "an empty file": ({"x.safetensors": b""}, "x.safetensors"),
    "a file that was cut short": ({SINGLE_NAME: library_file("a")[:-1]}, SINGLE_NAME),
}


@pytest.mark.parametrize("why", BROKEN)
def test_broken_foreign_directories_are_detected_and_refused(why: str) -> None:
    files, message = BROKEN[why]
    store = store_of(files)
    assert FORMAT.detect(store)
    with pytest.raises(CorruptCheckpointError, match=message):
        FORMAT.read_manifest(store)


def test_an_element_type_that_we_do_not_know_is_named() -> None:
    store = store_of({SINGLE_NAME: raw_file({"a": info("F8_E8M0", [2], 0, 2)}, bytes(2))})
    assert FORMAT.detect(store)
    with pytest.raises(UnsupportedValueError, match="F8_E8M0") as caught:
        FORMAT.read_manifest(store)
    assert (caught.value.key, caught.value.file) == ("a", SINGLE_NAME)


def test_an_empty_directory_is_not_a_checkpoint() -> None:
    assert not FORMAT.detect(store_of({}))
    assert not FORMAT.detect(store_of({"config.json": b"{}", "sub/x.safetensors": library_file("a")}))
