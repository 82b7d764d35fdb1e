"""The error tree. Every error flexstore raises on purpose derives from `FlexstoreError`.

Each error also derives from the builtin that a caller would expect, is picklable (it crosses ranks), and carries what
it knows about the place as attributes: ``key``, ``box``, ``rank``, ``file``, ``step``. The message says what happened,
``hint`` what to do next.

    FlexstoreError
     ├── InvalidStateError             ValueError         the caller's state cannot be described
     │    ├── KeyCollisionError                           two values under one name (D16)
     │    ├── TilingError                                 saved boxes leave holes or overlap
     │    └── ReplicaMismatchError                        one box, different bytes on two ranks (E13)
     ├── UnsupportedValueError         TypeError          a leaf that is neither tensor nor plain value (R4)
     ├── StateMismatchError            ValueError         a strict load found missing, unexpected or mismatched names
     ├── UnknownKeyError               KeyError           the checkpoint has no tensor of that name
     ├── StoreError                    OSError            a storage operation failed
     │    ├── ObjectNotFoundError      FileNotFoundError
     │    └── ObjectExistsError        FileExistsError
     ├── CheckpointError
     │    ├── CheckpointNotFoundError  FileNotFoundError  nothing published under that URL
     │    ├── CheckpointExistsError    FileExistsError    something is published there already
     │    ├── CorruptCheckpointError   ValueError         bytes are not what was written, or were never valid
     │    └── UnsupportedVersionError  ValueError         written by a newer format version
     ├── GroupError                    RuntimeError
     │    ├── RankFailedError                             a foreign exception on some rank, told to all ranks
     │    └── GroupTimeoutError        TimeoutError       a rank never arrived at a step (L5, D24)
     └── PluginError                   ValueError
          ├── UnknownPluginError       KeyError           no strategy or backend of that name
          ├── DuplicatePluginError                        the name is taken
          └── MissingDependencyError   ImportError        known, but its package is not installed
"""

from __future__ import annotations

from typing import Any, Self

_FIELDS = ("key", "box", "rank", "file", "step")


class FlexstoreError(Exception):
    """Root of the tree.

    Args:
        message: what happened, one sentence.
        key: name of the tensor concerned.
        box: the region concerned, in the tensor's global coordinates (half-open).
        rank: the rank on which it happened.
        file: name of the object in the store.
        step: the collective step in which it happened.
        hint: what the user can do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        box: object | None = None,
        rank: int | None = None,
        file: str | None = None,
        step: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.box = box
        self.rank = rank
        self.file = file
        self.step = step
        self.hint = hint

    def __str__(self) -> str:
        known = [f"{name}={getattr(self, name)}" for name in _FIELDS if getattr(self, name) is not None]
        place = f" [{', '.join(known)}]" if known else ""
        return f"{self.message}{place}" + (f"\n  hint: {self.hint}" if self.hint else "")

    def located(self, **fields: Any) -> Self:
        """Fill in places that are still unknown (never overwrites), and return self."""
        for name, value in fields.items():
            if name not in _FIELDS:
                raise TypeError(f"unknown place {name!r}")
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(cls: type[FlexstoreError], message: str, fields: dict[str, Any]) -> FlexstoreError:
    error = cls(message)
    error.__dict__.update(fields)
    return error


class InvalidStateError(FlexstoreError, ValueError):
    """The caller's state cannot be described."""


class KeyCollisionError(InvalidStateError):
    """Two different values would be stored under one name."""


class TilingError(InvalidStateError):
    """The saved boxes of a tensor leave holes or overlap."""


class ReplicaMismatchError(InvalidStateError):
    """Ranks that hold the same box of the same tensor hold different bytes."""


class UnsupportedValueError(FlexstoreError, TypeError):
    """A leaf of the state is neither a tensor nor a plain value."""


class StateMismatchError(FlexstoreError, ValueError):
    """A strict load cannot be satisfied; carries the full lists."""

    def __init__(
        self,
        message: str,
        *,
        missing: tuple[str, ...] = (),
        unexpected: tuple[str, ...] = (),
        mismatched: tuple[str, ...] = (),
        **fields: Any,
    ) -> None:
        super().__init__(message, **fields)
        self.missing = missing
        self.unexpected = unexpected
        self.mismatched = mismatched


class UnknownKeyError(FlexstoreError, KeyError):
    """The checkpoint has no tensor of that name."""


class StoreError(FlexstoreError, OSError):
    """A storage operation failed."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The store has no object of that name."""


class ObjectExistsError(StoreError, FileExistsError):
    """A create-only put found the object already there."""


class CheckpointError(FlexstoreError):
    """Something is wrong with a checkpoint as a whole."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """Nothing is published under the URL."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """Something is published under the URL already and ``overwrite`` was not given."""


class CorruptCheckpointError(CheckpointError, ValueError):
    """Stored bytes are not what was written, or are not a valid checkpoint at all."""


class UnsupportedVersionError(CheckpointError, ValueError):
    """The checkpoint was written by a format version that this library does not know."""


class GroupError(FlexstoreError, RuntimeError):
    """A collective step failed."""


class RankFailedError(GroupError):
    """An exception that is not flexstore's own ended a step on some rank; all ranks are told."""


class GroupTimeoutError(GroupError, TimeoutError):
    """Some ranks never arrived at a step.

    ``absent`` lists them.
    """

    def __init__(self, message: str, *, absent: tuple[int, ...] = (), **fields: Any) -> None:
        super().__init__(message, **fields)
        self.absent = absent


class PluginError(FlexstoreError, ValueError):
    """A strategy or backend cannot be used."""


class UnknownPluginError(PluginError, KeyError):
    """No plugin of that name."""


class DuplicatePluginError(PluginError):
    """A plugin of that name exists already and ``replace`` was not given."""


class MissingDependencyError(PluginError, ImportError):
    """The plugin is known but a package it needs is not installed."""
