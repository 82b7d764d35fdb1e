"""`Coordinator`: named steps in which all ranks succeed together or fail together.

Promises: if any rank's part of a step fails, every rank raises the same error, naming the rank and the step; none is
left waiting. What cannot be pickled is such an error too. It does not undo what the other ranks have done in the step,
and a rank that dies without a word is noticed only by the group's timeout.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from flexstore.errors import FlexstoreError, InvalidStateError, RankFailedError
from flexstore.groups.base import ProcessGroup
from flexstore.groups.failures import first_failure, summary
from flexstore.groups.wire import pack, unpack

T = TypeVar("T")


class Coordinator:
    """Runs the steps of one story over a group."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    def step(self, name: str, fn: Callable[[], T]) -> list[T]:
        """Call ``fn`` on every rank (collective).

        Args:
            name: the step, equal on all ranks.
            fn: this rank's part. It must not call the group itself: a rank that fails would leave the others in there.

        Returns:
            The result of every rank, in rank order; each is pickled on its way.

        Raises:
            FlexstoreError: a rank raised it; its class is kept and ``rank`` and ``step`` are filled in. If several
                ranks failed it is the lowest rank's, with the others as notes.
            RankFailedError: a rank raised anything else, or its result cannot be pickled. On that rank the original is
                its ``__cause__``, on all it carries the original traceback as a note.
            GroupTimeoutError: a rank never arrived.
        """
        if self.size == 1:
            return [self._alone(name, fn)]
        failure: FlexstoreError | None = None
        try:
            payload = pack((False, fn()))
        except Exception as error:
            failure = self._described(name, error)
            payload = _pack_error(failure)
        except BaseException as interrupt:
            # The others are told as far as they are listening; what interrupts this rank goes on whatever happens.
            with suppress(Exception):
                self.group.all_gather(name, _pack_error(self._described(name, interrupt)))
            raise
        return self._settle(name, self.group.all_gather(name, payload), failure)

    def local(self, name: str, fn: Callable[[], T]) -> T:
        """Call ``fn`` on every rank (collective); its own result, which does not travel. Errors as for `step`."""
        results: list[T] = []
        self.step(name, lambda: results.append(fn()))
        return results[0]

    def on_coordinator(self, name: str, fn: Callable[[], T]) -> T:
        """Call ``fn`` on rank 0 only (collective); its result on every rank. Errors as for `step`."""
        results: list[Any] = self.step(name, fn if self.group.rank == 0 else _nothing)
        result: T = results[0]
        return result

    def _alone(self, name: str, fn: Callable[[], T]) -> T:
        """A step of one rank: nothing travels."""
        try:
            return fn()
        except Exception as error:
            failure = self._described(name, error)
            raise failure from failure.__cause__

    def _described(self, name: str, error: BaseException) -> FlexstoreError:
        if isinstance(error, FlexstoreError):
            return error.located(rank=self.group.rank, step=name)
        failure = RankFailedError(summary(error), rank=self.group.rank, step=name)
        failure.__cause__ = error
        failure.add_note("".join(traceback.format_exception(error)))
        return failure

    def _settle(self, name: str, payloads: list[bytes], own: FlexstoreError | None) -> list[Any]:
        results: list[Any] = []
        failures: dict[int, FlexstoreError] = {}
        for rank, payload in enumerate(payloads):
            failed, content = self._unpack(name, rank, payload)
            if failed:
                failures[rank] = content
            results.append(content)
        if own is not None:
            failures[self.group.rank] = own  # with its traceback and cause, which do not travel
        if failures:
            raise first_failure(failures)
        return results

    def _unpack(self, name: str, rank: int, payload: bytes) -> tuple[bool, Any]:
        try:
            outcome: tuple[bool, Any] = unpack(payload)
        except Exception as error:
            failure = RankFailedError(f"its result cannot be unpickled: {summary(error)}", rank=rank, step=name)
            failure.__cause__ = error
            return True, failure
        return outcome


def _nothing() -> None:
    return None


def _pack_error(error: FlexstoreError) -> bytes:
    try:
        payload = pack((True, error))
        unpack(payload)
    except Exception:
        # A plug-in's error may carry anything; its words always travel.
        return pack((True, RankFailedError(summary(error), rank=error.rank, step=error.step)))
    return payload


def check_same_arguments(given: Sequence[Mapping[str, object]]) -> None:
    """Refuse a call in which the ranks passed different values of an argument that must be equal.

    Args:
        given: per rank, argument name → value.

    Raises:
        InvalidStateError: naming the argument, two values and their ranks; the same on every rank.
    """
    for rank, arguments in enumerate(given):
        for name, value in arguments.items():
            if value != given[0][name]:
                raise InvalidStateError(
                    f"{name} is {given[0][name]!r} on rank 0 and {value!r} on rank {rank}",
                    rank=rank,
                    hint="all ranks must pass the same",
                )
