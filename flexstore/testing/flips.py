"""Damage to stored bytes."""

from __future__ import annotations

import os

from flexstore.backends.base import Store
from flexstore.backends.local import LocalStore


def flip_bit(where: Store | str | os.PathLike[str], name: str, bit: int) -> None:
    """Flip one bit of an object; the same call again restores it.

    Args:
        where: a store, or the folder of a local one.
        name: the object.
        bit: which bit of it: bit ``bit % 8`` (0 is the lowest) of byte ``bit // 8``.

    Raises:
        ValueError: the object has no such bit.
    """
    store = where if isinstance(where, Store) else LocalStore(where)
    data = bytearray(store.get(name))
    if not 0 <= bit < 8 * len(data):
        raise ValueError(f"{name} has {8 * len(data)} bits, there is no bit {bit}")
    data[bit // 8] ^= 1 << bit % 8
    store.put(name, [data])
