"""A forward cursor over one stored object, fetching it in windows and skipping what nobody looks at.

Promises that no more than one window plus the longest piece asked for is held, and that nothing past the object's end
is asked of the store.
"""

from __future__ import annotations

from flexstore.backends.base import Store


class Refusal(ValueError):
    """The bytes are not what they should be; whoever knows the file turns it into a `CorruptCheckpointError`."""


class Window:
    """The cursor.

    Args:
        store, name: the object.
        nbytes: its size in bytes.
        ahead: bytes to fetch at a time; more only where a longer piece is asked for.
        limit: bytes that may be taken, those skipped not counted.
    """

    def __init__(self, store: Store, name: str, nbytes: int, ahead: int, limit: int) -> None:
        self.name = name
        self._store = store
        self._nbytes = nbytes
        self._ahead = ahead
        self._limit = limit
        self._buffer = b""
        self._start = 0  # where the buffer begins in the object
        self._cursor = 0  # in the buffer
        self._skipped = 0

    @property
    def position(self) -> int:
        """Byte offset in the object of what comes next."""
        return self._start + self._cursor

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes.

        Raises:
            Refusal: the object ends before, or more was taken than the limit allows.
        """
        end = self._cursor + count
        if end > len(self._buffer):
            self._fetch(count)
            end = count
        piece = self._buffer[self._cursor : end]
        self._cursor = end
        return piece

    def take_line(self, longest: int) -> bytes:
        """The bytes up to the next newline, which is taken too.

        Raises:
            Refusal: there is none within ``longest`` bytes.
        """
        line = bytearray()
        while (byte := self.take(1)) != b"\n":
            line += byte
            if len(line) > longest:
                raise Refusal(f"a line is longer than {longest} bytes")
        return bytes(line)

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes without fetching them.

        Raises:
            Refusal: the object ends before.
        """
        self._check(count)
        self._cursor += count
        self._skipped += count

    def _fetch(self, count: int) -> None:
        self._check(count)
        start = self.position
        if start + count - self._skipped > self._limit:
            raise Refusal(f"more than {self._limit} bytes of structure")
        stop = min(self._nbytes, start + max(count, self._ahead))
        kept = self._buffer[self._cursor :]
        self._buffer = kept + self._store.get(self.name, start + len(kept), stop)
        self._start, self._cursor = start, 0

    def _check(self, count: int) -> None:
        left = self._nbytes - self.position
        if count > left:
            raise Refusal(f"{count} bytes are announced but only {left} are left of {self._nbytes}")
