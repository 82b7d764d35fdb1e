"""D15: no damage to the manifest goes unnoticed; and nothing it may say does harm (X9)."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexstore.core.manifest_json import decode, encode
from flexstore.errors import CorruptCheckpointError, FlexstoreError
from tests.manifest_kit import sealed, small_manifest

DATA = encode(small_manifest())


def test_d15_every_bit_flip_is_detected() -> None:
    for bit in range(8 * len(DATA)):
        flipped = bytearray(DATA)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptCheckpointError, match="checksum"):
            decode(bytes(flipped))


def test_every_truncation_and_every_tail_is_detected() -> None:
    for stop in range(len(DATA)):
        with pytest.raises(CorruptCheckpointError, match="checksum"):
            decode(DATA[:stop])
    for tail in (b"\n", b" ", b"\0", DATA):
        with pytest.raises(CorruptCheckpointError, match="checksum"):
            decode(DATA + tail)


@pytest.mark.parametrize(
    "inner",
    [
        b"[" * 10**6,
        b"[" * 10**6 + b"]" * 10**6,
        b'{"a":' * 10**5,
        b"9" * 10**6,
        b"1e999",
        b'"\xff"',
        b'"\\ud800"',
        b"NaN",
    ],
)
def test_x9_hostile_json_is_refused(inner: bytes) -> None:
    for member in (b'"common":{"a":', b'"tensors":{"a":', b'"world_size":', b'"unknown":'):
        document = sealed(DATA[: DATA.index(b',"common"')] + b"," + member + inner + b"}")
        with pytest.raises(CorruptCheckpointError):
            decode(document)


def test_x9_a_huge_tensor_in_a_small_document_costs_little_memory() -> None:
    document = DATA[: DATA.rindex(b',"checksum"')].replace(b'"shape":[0,5]', b'"shape":[0,%d]' % 2**60)
    tracemalloc.start()
    manifest = decode(sealed(document + b"}"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert manifest.tensors[-1].shape == (0, 2**60)
    assert peak < 1 << 20


@given(st.data())
def test_x9_a_mutated_document_with_a_right_checksum_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(DATA[: DATA.rindex(b',"checksum"')])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"9", b"-", b"[", b"}", b'"', b"e9"])
        )
    try:
        manifest = decode(sealed(bytes(body) + b"}"))
    except FlexstoreError:
        return
    assert encode(decode(encode(manifest))) == encode(manifest)
