"""Pickle values as opcodes: what protocol 4 writes for them, without frames (which readers do not need)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexstore.strategies.distcp import opcodes as op

HEAD = op.PROTO + b"\x04"
_SHORT_TUPLES = (op.EMPTY_TUPLE, op.TUPLE1, op.TUPLE2, op.TUPLE3)


def integer(value: int) -> bytes:
    """A number that is not negative."""
    if value < 1 << 8:
        return op.BININT1 + value.to_bytes(1, "little")
    if value < 1 << 16:
        return op.BININT2 + value.to_bytes(2, "little")
    width = value.bit_length() // 8 + 1
    return op.LONG1 + bytes((width,)) + value.to_bytes(width, "little")


def text(value: str) -> bytes:
    """A string."""
    data = value.encode()
    if len(data) < 1 << 8:
        return op.SHORT_BINUNICODE + bytes((len(data),)) + data
    return op.BINUNICODE + len(data).to_bytes(4, "little") + data


def sequence(items: Sequence[bytes]) -> bytes:
    """A tuple of values that are emitted already."""
    if len(items) < len(_SHORT_TUPLES):
        return b"".join(items) + _SHORT_TUPLES[len(items)]
    return op.MARK + b"".join(items) + op.TUPLE


def integers(values: Sequence[int]) -> bytes:
    """A tuple of numbers, none negative."""
    if len(values) == 1:  # most are: biases, norms, flattened shards
        return integer(values[0]) + op.TUPLE1
    return sequence([integer(value) for value in values])


def payload_head(nbytes: int) -> bytes:
    """What stands before the ``nbytes`` bytes of a bytes literal."""
    if nbytes < 1 << 8:
        return op.SHORT_BINBYTES + nbytes.to_bytes(1, "little")
    if nbytes < 1 << 32:
        return op.BINBYTES + nbytes.to_bytes(4, "little")
    return op.BINBYTES8 + nbytes.to_bytes(8, "little")


def padding(position: int, after: int, alignment: int) -> bytes:
    """A bytes literal that is thrown away at once, so that something later is aligned.

    Args:
        position: byte offset of the padding itself.
        after: bytes between the padding and what is to be aligned.
        alignment: in bytes, at most 256.
    """
    frame = len(op.SHORT_BINBYTES) + 1 + len(op.POP)
    count = -(position + frame + after) % alignment
    return op.SHORT_BINBYTES + bytes((count,)) + bytes(count) + op.POP


def name(module: str, attribute: str) -> bytes:
    """A class or function, by name."""
    return text(module) + text(attribute) + op.STACK_GLOBAL


def remembered(values: Iterable[bytes]) -> bytes:
    """Put values into the memo, in order from number 0, and leave nothing on the stack."""
    return b"".join(value + op.MEMOIZE + op.POP for value in values)


def recalled(number: int) -> bytes:
    """The value of that memo number, at most 255."""
    return op.BINGET + bytes((number,))
