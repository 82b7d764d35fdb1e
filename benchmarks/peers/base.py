"""What is measured of every program: a durable save, and a load into memory that exists already."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

from benchmarks.states import Arrays


class Peer(ABC):
    """One program. Lives in a process of its own."""

    @abstractmethod
    def hold(self, arrays: Arrays) -> None:
        """Take the state over; what is not needed is dropped, so that memory is counted once."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write it to a fresh directory; durable on return."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Read it back into the memory that is held."""

    @abstractmethod
    def arrays(self) -> Arrays:
        """What is held, as numpy arrays, for the check after a load."""

    def clear(self) -> None:
        """Overwrite what is held, so that a load has something to do."""
        for array in self.arrays().values():
            array[...] = -1


def fsync_tree(path: Path) -> None:
    """Make everything below a directory durable, for programs that do not do it themselves."""
    for folder, _, files in os.walk(path):
        for name in [*(os.path.join(folder, f) for f in files), folder]:
            fd = os.open(name, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
