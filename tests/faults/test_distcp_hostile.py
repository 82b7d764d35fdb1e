"""X9: a gallery of hostile distcp directories. Each is refused by name, executes nothing and takes little memory."""

from __future__ import annotations

import os
import pickle
import tracemalloc

import numpy as np
import pytest

from flexstore.errors import CorruptCheckpointError
from flexstore.strategies.distcp.format import DistcpFormat
from tests.distcp_kit import LocalTensorIndex, LocalTensorMetadata, one_tensor, paddle_pickle, shard_fields, store_of

MEMORY_LIMIT = 32 << 20
W = np.arange(6, dtype=np.float32).reshape(2, 3)
GOOD = {"0.metadata": paddle_pickle(one_tensor()), "0_0.distcp": pickle.dumps({"w": W}, 4)}


class Calling:
    """Pickles as a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def protocol_4(body: bytes) -> bytes:
    return b"\x80\x04" + body + b"."


def unicode(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def nested(opening: bytes, count: int) -> bytes:
    return protocol_4(opening * count)


STREAMS = {
    "empty file": b"",
    "no pickle": b"PK\x03\x04",
    "only the first byte": b"\x80",
    "newer protocol": b"\x80\x06N.",
    "os.system by a call": pickle.dumps(Calling(os.system, "true"), 4),
    "eval by a call": pickle.dumps(Calling(eval, "1"), 2),
    "GLOBAL os.system": b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.",
    "GLOBAL of a dotted allowed name": b"\x80\x04cnumpy\ndtype.__class__\n.",
    "STACK_GLOBAL builtins.getattr": protocol_4(unicode("builtins") + unicode("getattr") + b"\x93"),
    "global names that are no strings": protocol_4(b"K\x01K\x02\x93"),
    "endless GLOBAL line": b"\x80\x02c" + b"a" * 10_000,
    "call of something that is no global": protocol_4(b"K\x01)R"),
    "NEWOBJ of something that is no global": protocol_4(b"}\x29\x81"),
    "numpy.ndarray called": protocol_4(unicode("numpy") + unicode("ndarray") + b"\x93)R"),
    "arguments that are no tuple": protocol_4(unicode("numpy") + unicode("dtype") + b"\x93}R"),
    "BUILD of a dict": protocol_4(b"}}b"),
    "INST": b"\x80\x02(ios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\no.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "PERSID": b"Pevil\n.",
    "BINPERSID": b"\x80\x02K\x01Q.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "NEWOBJ_EX": protocol_4(unicode("numpy") + unicode("dtype") + b"\x93)}\x92"),
    "FLOAT line": b"F1.0\n.",
    "LONG4 of 2 GiB": protocol_4(b"\x8b\xff\xff\xff\x7f"),
    "string of 2**40 bytes": protocol_4(b"\x8d" + (1 << 40).to_bytes(8, "little")),
    "string of 4 GiB": protocol_4(b"X\xff\xff\xff\xff"),
    "string that is no UTF-8": protocol_4(b"\x8c\x01\xff"),
    "bytes of 2**63 bytes": protocol_4(b"\x8e" + (1 << 63).to_bytes(8, "little")),
    "bytearray of 2**40 bytes": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "memo entry never stored": protocol_4(b"h\x07"),
    "memo number 2**32 - 1, then an unknown one": protocol_4(b"Nr\xff\xff\xff\xffj\xfe\xff\xff\xff"),
    "memo filled for nothing": protocol_4(b"N" + b"\x94" * 200_000),
    "deep marks": nested(b"(", 100_000),
    "deep lists": protocol_4(b"]" * 50_000 + b"a" * 49_999),
    "deep tuples": protocol_4(b")" + b"\x85" * 200_000),
    "tuples that double": protocol_4(b")" + b"\x94h\x00\x86" * 50),
    "a list in itself": protocol_4(b"]\x94h\x00a"),
    "crowded stack": nested(b"N", 100_000),
    "empty stack": protocol_4(b""),
    "pop of nothing": protocol_4(b"0"),
    "tuple of nothing": protocol_4(b"\x87"),
    "mark missing": protocol_4(b"Nt"),
    "append to a dict": protocol_4(b"}Na"),
    "item of a list": protocol_4(b"]NNs"),
    "odd number of items": protocol_4(b"}(Nu"),
    "key that is a list": protocol_4(b"}]Ns"),
    "key that is a tuple nested 200,000 deep": protocol_4(b"})" + b"\x85" * 200_000 + b"Ns"),
    "key that occurs twice": protocol_4(b"}" + (unicode("w") + b"N") + b"s" + (unicode("w") + b"N") + b"s"),
    "dict of nothing useful": protocol_4(b"}" + unicode("w") + b"Ns"),
    "no dict": protocol_4(b"N"),
}


def refused(files: dict[str, bytes]) -> CorruptCheckpointError:
    """Read a directory; the refusal must not take much memory."""
    store = store_of(files)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError) as caught:
            DistcpFormat().read_manifest(store)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_LIMIT
    assert len(str(caught.value)) < 2000
    return caught.value


def test_x9_the_directory_that_the_gallery_spoils_is_good():
    assert len(DistcpFormat().read_manifest(store_of(GOOD)).chunks) == 1


@pytest.mark.parametrize("name", ["0.metadata", "0_0.distcp"])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_x9_a_hostile_stream_is_refused(stream, name):
    assert refused(GOOD | {name: stream}).file == name


@pytest.mark.parametrize("name", ["0.metadata", "0_0.distcp"])
def test_x9_every_cut_of_a_file_is_refused(name):
    for length in range(len(GOOD[name])):
        with pytest.raises(CorruptCheckpointError):
            DistcpFormat().read_manifest(store_of(GOOD | {name: GOOD[name][:length]}))


def test_x9_the_refusal_names_the_global_and_the_place():
    message = str(refused(GOOD | {"0_0.distcp": pickle.dumps(Calling(os.system, "true"), 4)}))
    assert "'posix' 'system' is not allowed" in message
    assert "near byte" in message
    assert "nothing was executed" in message


@pytest.mark.parametrize(
    "file", ["../x", "/etc/passwd", "a/b", "..", "", "a\\b", "a\x00b", "x" * 5000, 7, None], ids=repr
)
def test_x9_data_files_never_leave_the_folder(file):
    assert refused(GOOD | {"0.metadata": paddle_pickle(one_tensor(file=file))}).file == "0.metadata"


SHARDS = {
    "negative offset": {"global_offset": (-1, 0)},
    "offset beyond the shape": {"global_offset": (1, 0)},
    "negative shape": {"local_shape": (-2, 3)},
    "shape above 64 bits": {"local_shape": (1 << 64, 3)},
    "shape of 2**62 elements": {"local_shape": (1 << 62, 3), "global_shape": (1 << 62, 3)},
    "product above 64 bits": {"local_shape": (1 << 62, 1 << 62), "global_shape": (1 << 62, 1 << 62)},
    "shape beyond the tensor": {"local_shape": (2, 1 << 62)},
    "shape of strings": {"local_shape": ("2", "3")},
    "shape of bools": {"local_shape": (True, True)},
    "shape that is a list": {"local_shape": [2, 3]},
    "no shape": {"local_shape": None},
    "10,000 dimensions": {
        "local_shape": (1,) * 10_000,
        "global_shape": (1,) * 10_000,
        "global_offset": (0,) * 10_000,
    },
    "fewer dimensions": {"local_shape": (6,)},
    "other number of dimensions": {"global_shape": (2, 3, 1)},
    "range without flag": {"flattened_range": (0, 6)},
    "flag without range": {"is_flattened": True},
    "range beyond the block": {"is_flattened": True, "flattened_range": (0, 7)},
    "range beyond 64 bits": {"is_flattened": True, "flattened_range": (0, 1 << 70)},
    "range backwards": {"is_flattened": True, "flattened_range": (6, 0)},
    "range of three": {"is_flattened": True, "flattened_range": (0, 1, 2)},
    "range of a huge block": {
        "local_shape": (1 << 62, 1 << 62),
        "global_shape": (1 << 62, 1 << 62),
        "is_flattened": True,
        "flattened_range": (1, (1 << 63) - 1),
    },
    "dtype that is no string": {"dtype": 4},
    "key that is no string": {"tensor_key": 4},
}


@pytest.mark.parametrize("fields", SHARDS.values(), ids=SHARDS)
def test_x9_hostile_shards_are_refused(fields):
    refused(GOOD | {"0.metadata": paddle_pickle(one_tensor(**fields))})


def metadata_with(**fields) -> bytes:
    metadata = one_tensor()
    metadata.__dict__.update(fields)
    return paddle_pickle(metadata)


def shards_in(*files: str) -> bytes:
    """Two shards of one tensor, in those files."""
    fields = [shard_fields((0, 0), (2, 3)), shard_fields((2, 0), (2, 3))]
    described = [LocalTensorMetadata(dtype="float32", global_shape=(4, 3), **f) for f in fields]
    storage = {LocalTensorIndex(tensor_key="w", **f): file for f, file in zip(fields, files, strict=True)}
    return metadata_with(state_dict_metadata={"w": described}, storage_metadata=storage)


DOCUMENTS = {
    "no fields": lambda: metadata_with(state_dict_metadata=None, storage_metadata=None),
    "no storage": lambda: metadata_with(storage_metadata={}),
    "storage that is a list": lambda: metadata_with(storage_metadata=[]),
    "storage by strings": lambda: metadata_with(storage_metadata={"w": "0_0.distcp"}),
    "shards that are no list": lambda: metadata_with(state_dict_metadata={"w": {}}),
    "shards of the wrong class": lambda: metadata_with(state_dict_metadata={"w": [one_tensor()]}),
    "no shards": lambda: metadata_with(state_dict_metadata={"w": []}, storage_metadata={}),
    "a place for a tensor that is not described": lambda: metadata_with(state_dict_metadata={}),
    "paths that are a list": lambda: metadata_with(flat_mapping=["w"]),
    "a path that is a string": lambda: metadata_with(flat_mapping={"w": "w"}),
    "a path of numbers": lambda: metadata_with(flat_mapping={"w": (1, 2)}),
    "two shards of a key in one file": lambda: shards_in("0_0.distcp", "0_0.distcp"),
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_x9_contradictory_metadata_is_refused(document):
    assert refused(GOOD | {"0.metadata": document()}).file == "0.metadata"


def test_x9_one_shard_in_two_files_is_refused():
    metadata = one_tensor()
    again = LocalTensorIndex(**next(iter(metadata.storage_metadata)).__dict__)
    metadata.storage_metadata[again] = "1_0.distcp"
    refused(GOOD | {"0.metadata": paddle_pickle(metadata)})


def test_d14_a_file_that_lacks_its_tensor_is_refused():
    error = refused(GOOD | {"0_0.distcp": pickle.dumps({"v": W}, 4)})
    assert (error.key, error.file) == ("w", "0_0.distcp")


ARRAYS = {
    "objects": np.array([None] * 6).reshape(2, 3),
    "strings": np.array(["a"] * 6).reshape(2, 3),
    "structured": np.zeros((2, 3), "f4,i4"),
    "dates": np.zeros((2, 3), "M8[s]"),
    "a number": 7,
    "a list": [1, 2],
    "bytes": b"abc",
}


@pytest.mark.parametrize("value", ARRAYS.values(), ids=ARRAYS)
def test_x9_values_that_are_no_plain_arrays_are_refused(value):
    assert refused(GOOD | {"0_0.distcp": pickle.dumps({"w": value}, 4)}).file == "0_0.distcp"


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("count", [1, 5, 7])
def test_x9_a_shape_that_contradicts_the_bytes_is_refused(protocol, count):
    good = pickle.dumps({"w": np.arange(6, dtype=np.int16)}, protocol)
    assert good.count(b"K\x06\x85") == 1
    error = refused(GOOD | {"0_0.distcp": good.replace(b"K\x06\x85", bytes([0x4B, count, 0x85]))})
    assert "has 12 bytes" in str(error)


def test_x9_a_shape_of_huge_or_many_dimensions_is_refused():
    good = pickle.dumps({"w": np.arange(6, dtype=np.int16)}, 4)
    huge = b"\x8a\x09" + (1 << 62).to_bytes(9, "little")
    beyond = b"\x8a\xff" + b"\x7f" * 255
    for shape in (
        b"(" + huge * 9 + b"t",
        b"(" + beyond * 60 + b"t",
        b"(" + b"K\x01" * 60_000 + b"t",
        b"J\xff\xff\xff\xff\x85",
    ):
        refused(GOOD | {"0_0.distcp": good.replace(b"K\x06\x85", shape)})
