"""X9: a safetensors header is data; whatever it says is checked before anything is read or allocated by it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexstore.backends.base import ObjectInfo
from flexstore.backends.memory import MemoryStore
from flexstore.errors import CorruptCheckpointError, FlexstoreError, ObjectNotFoundError
from flexstore.strategies.safetensors_header import read_header
from tests.distcp_kit import store_of
from tests.safetensors_kit import info, raw_file

ONE = info("F32", [2], 0, 8)
DEEP = b"[" * 10**6
BIG = 2**62

GALLERY: dict[str, bytes] = {
    "no bytes": b"",
    "seven bytes": bytes(7),
    "a header of no bytes": raw_file(b""),
    "a header longer than the file": raw_file({}, length=9),
    "a header of 2**64 - 1 bytes": raw_file({}, length=2**64 - 1),
    "a header of more than 100 MB": raw_file({}, length=100_000_001),
    "no object": raw_file(b"[]"),
    "a space before the object": raw_file(b" {}"),
    "a byte order mark": raw_file(b"\xef\xbb\xbf{}"),
    "UTF-16": raw_file('{"a":1}'.encode("utf-16-le")),
    "no UTF-8": raw_file(b'{"\xff":1}'),
    "a lone surrogate": raw_file(b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
    "an object that does not end": raw_file(b'{"a":'),
    "something after the object": raw_file(b"{}x"),
    "lists as deep as the sea": raw_file(b'{"a":' + DEEP),
    "objects as deep as the sea": raw_file(b'{"a":' * 10**5),
    "a number as long as a book": raw_file(
        b'{"a":{"dtype":"F32","shape":[' + b"9" * 10**5 + b'],"data_offsets":[0,8]}}'
    ),
    "a tensor that is a number": raw_file({"a": 1}),
    "no shape": raw_file({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)),
    "three offsets": raw_file({"a": ONE | {"data_offsets": [0, 8, 8]}}, bytes(8)),
    "an offset that is a float": raw_file({"a": ONE | {"data_offsets": [0.0, 8]}}, bytes(8)),
    "a negative offset": raw_file({"a": info("F32", [2], -8, 0)}),
    "offsets the wrong way round": raw_file({"a": info("F32", [2], 8, 0)}, bytes(8)),
    "a negative extent": raw_file({"a": info("F32", [-2], 0, 8)}, bytes(8)),
    "a range longer than the tensor": raw_file({"a": info("F32", [2], 0, 12)}, bytes(12)),
    "a range shorter than the tensor": raw_file({"a": info("F32", [2], 0, 4)}, bytes(4)),
    "extents whose product overflows": raw_file({"a": info("F32", [BIG, 4], 0, 0)}),
    "extents that zero does not excuse": raw_file({"a": info("F32", [0, BIG, BIG], 0, 0)}),
    "an extent beyond 2**62": raw_file({"a": info("F32", [2**64], 0, 0)}),
    "a thousand dimensions": raw_file({"a": info("F32", [1] * 1000, 0, 4)}, bytes(4)),
    "a range beyond the file": raw_file({"a": info("U8", [BIG], 0, BIG)}, bytes(8)),
    "a hole before the first tensor": raw_file({"a": info("F32", [1], 4, 8)}, bytes(8)),
    "a hole between tensors": raw_file({"a": info("U8", [1], 0, 1), "b": info("U8", [1], 2, 3)}, bytes(3)),
    "two tensors in one place": raw_file({"a": ONE, "b": ONE}, bytes(8)),
    "two tensors that overlap": raw_file({"a": ONE, "b": info("F32", [2], 4, 12)}, bytes(12)),
    "bytes after the last tensor": raw_file({"a": ONE}, bytes(9)),
    "fewer bytes than tensors": raw_file({"a": ONE}, bytes(7)),
    "one name twice": raw_file(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
    ),
    "the metadata twice": raw_file(b'{"__metadata__":{},"__metadata__":{}}'),
    "metadata that is no text": raw_file({"__metadata__": {"a": 1}}),
    "metadata that is a list": raw_file({"__metadata__": ["a"]}),
}


@pytest.mark.parametrize("attack", GALLERY)
def test_x9_gallery_of_refused_headers(attack: str) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        read_header(store_of({"model.safetensors": GALLERY[attack]}), "model.safetensors")
    assert caught.value.file == "model.safetensors"


def test_the_files_that_the_gallery_spoils_are_accepted() -> None:
    """Or the refusals above would prove nothing."""
    files: list[tuple[dict[str, Any], int]] = [
        ({}, 0),
        ({"__metadata__": {"a": "b"}}, 0),
        ({"a": ONE}, 8),
        ({"b": info("F32", [2], 8, 16), "a": ONE, "none": info("F32", [0, 5], 8, 8)}, 16),
    ]
    for header, nbytes in files:
        found = read_header(store_of({"f": raw_file(header, bytes(nbytes))}), "f")
        assert set(found.tensors) == set(header) - {"__metadata__"}


def test_a_missing_file_is_not_a_corrupt_one() -> None:
    with pytest.raises(ObjectNotFoundError):
        read_header(store_of({}), "model.safetensors")


def test_x9_a_small_file_costs_little_memory_whatever_it_claims() -> None:
    claims = [GALLERY[attack] for attack in GALLERY if "sea" not in attack and "book" not in attack]
    stores = [store_of({"f": claim}) for claim in claims]
    tracemalloc.start()
    for store in stores:
        with pytest.raises(CorruptCheckpointError):
            read_header(store, "f")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


class _HugeFile(MemoryStore):
    """A store whose objects seem to go on for a terabyte, and that counts the bytes asked of it."""

    asked = 0

    def head(self, name: str) -> ObjectInfo:
        return replace(super().head(name), nbytes=1 << 40)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        self.asked += (1 << 40 if stop is None else stop) - start
        return super().get(name, start)


def test_x9_a_header_of_more_than_100_mb_is_not_read() -> None:
    store = _HugeFile("huge")
    store.put("f", [raw_file(b"{" + b" " * 10**5, length=100_000_001)])
    with pytest.raises(CorruptCheckpointError, match="100000001 bytes"):
        read_header(store, "f")
    assert store.asked < 1 << 20


VALID = raw_file(
    {
        "__metadata__": {"format": "pt"},
        "a": info("F32", [2, 1], 0, 8),
        "b": info("BF16", [], 8, 10),
        "c": info("I8", [0], 10, 10),
    },
    bytes(10),
)


@given(st.data())
def test_x9_mutated_files_are_read_or_refused(data: st.DataObject) -> None:
    mutated = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        piece = data.draw(st.binary(max_size=2) | st.sampled_from([b"9", b"-", b"[", b"}", b'"', b"e9", b"\\u"]))
        mutated[at : at + data.draw(st.integers(0, 2))] = piece
    try:
        header = read_header(store_of({"f": bytes(mutated)}), "f")
    except FlexstoreError:
        return
    assert header.file_nbytes == len(mutated)
