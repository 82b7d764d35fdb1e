"""`Arrivals`: proof that every rank has come to a step, before any rank starts a collective that it could not leave.

A framework's collective blocks for ever, or for its own half hour, when a rank is absent, and a rank that leaves it by
force spoils the next collective of the training loop. So the ranks first sign in at the key-value store through which
the framework itself has started.

Promises: all ranks agree whether a step takes place, whatever the moment at which one of them loses patience. A step
that one rank gives up is void: all that wait in it raise together, naming the absent ranks, and those that come later
take part in the next one, so nothing needs repair before the next try. It does not protect the collective that
follows: a rank that dies in there is the framework's to notice.

Costs: three requests per rank and step, then polling; the store keeps about 100 bytes per step.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from flexstore.errors import FlexstoreError, GroupError, GroupTimeoutError
from flexstore.groups.failures import absence, mismatch


class RendezvousStore(Protocol):
    """What is needed of the framework's store; the calls of one rank take effect in order, each atomically."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes:
        """The value; blocks until there is one."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to a 64-bit counter, 0 when new, and return the sum; a decimal text that was set counts too."""
        ...


_DIGEST = 1 << 20
_VERDICT = 1 << 60
_OPEN, _IN_DOUBT, _GIVEN_UP = range(3)

_GRACE = 60.0
"""Seconds that a rank which gives up may take to find out who is absent, before the others take it for dead."""

_rounds: WeakKeyDictionary[RendezvousStore, Counter[str]] = WeakKeyDictionary()
"""Rounds entered, per store, group and rank: they belong to the ranks, so all group objects over the same ranks share
them, and they end with the store."""


@dataclass(frozen=True, slots=True)
class _Tally:
    """A round's counter: 20 bits of arrivals, 40 bits that sum the digests of step names, then the verdict.

    One word, because only what is read by one ``add`` is seen at one instant.
    """

    arrived: int
    digests: int
    verdict: int

    @classmethod
    def of(cls, word: int) -> _Tally:
        return cls(word % _DIGEST, word % _VERDICT // _DIGEST, word // _VERDICT)

    def settled(self, size: int) -> bool:
        return self.verdict == _GIVEN_UP or (self.verdict == _OPEN and self.arrived == size)


class Arrivals:
    """One rank's arrivals at the steps of one group.

    Args:
        store: the same for all ranks; it tells groups apart by ``ranks``.
        ranks: the group's ranks as the store's users number them, fewer than 2^20.
        rank: this rank's index in ``ranks``.
        timeout: seconds after which a rank gives a step up.
    """

    def __init__(self, store: RendezvousStore, ranks: Sequence[int], rank: int, timeout: float) -> None:
        self._store = store
        self._size = len(ranks)
        self._rank = rank
        self._timeout = timeout
        self._prefix = "flexstore/" + hashlib.blake2b(repr(list(ranks)).encode(), digest_size=8).hexdigest()

    def arrive(self, step: str) -> None:
        """Return once every rank has arrived (collective).

        Raises:
            GroupTimeoutError: some rank did not arrive in time; all that did raise it.
            GroupError: the ranks arrived at steps of different names, or the store does not answer.
        """
        try:
            while not self._enter(step):
                pass
        except FlexstoreError:
            raise
        except Exception as error:
            raise GroupError(
                "the store through which the ranks meet does not answer",
                rank=self._rank,
                step=step,
                hint="it lives in one of the processes; look in the logs for the one that has ended",
            ) from error

    def _enter(self, step: str) -> bool:
        """Take part in the next round; False if it had been given up before this rank came."""
        entered = _rounds.setdefault(self._store, Counter())
        entered[f"{self._prefix}/{self._rank}"] += 1
        number = entered[f"{self._prefix}/{self._rank}"]
        digest = zlib.crc32(step.encode()) % _DIGEST
        self._store.set(self._mark(self._rank), str(number))
        self._store.set(self._name(self._rank, number), step)
        first = self._add(number, 1 + digest * _DIGEST)
        tally = self._await(first, number, step)
        if tally.verdict == _GIVEN_UP:
            if first.verdict == _OPEN:
                raise self._absence(number, step)
            return False
        if tally.digests != self._size * digest:
            raise self._mismatch(number)
        return True

    def _await(self, tally: _Tally, number: int, step: str) -> _Tally:
        deadline = time.monotonic() + self._timeout
        gave_up = False
        pauses = _pauses(self._size)
        while not tally.settled(self._size):
            if time.monotonic() > deadline:
                if gave_up:
                    raise absence(step, self._rank, self._timeout, ())
                gave_up = True
                self._give_up(number)
                deadline = time.monotonic() + _GRACE
            time.sleep(next(pauses))
            tally = self._add(number, 0)
        return tally

    def _give_up(self, number: int) -> None:
        """Decide, if no other rank does, whether the round is void: whether the doubt came before the last arrival."""
        if self._store.add(f"{self._round(number)}/judges", 1) > 1:
            return
        if self._add(number, _IN_DOUBT * _VERDICT).arrived == self._size:
            self._add(number, -_IN_DOUBT * _VERDICT)
            return
        absent = [rank for rank in range(self._size) if self._store.add(self._mark(rank), 0) < number]
        self._store.set(f"{self._round(number)}/absent", json.dumps(absent))
        self._add(number, (_GIVEN_UP - _IN_DOUBT) * _VERDICT)

    def _absence(self, number: int, step: str) -> GroupTimeoutError:
        absent = json.loads(self._store.get(f"{self._round(number)}/absent"))
        return absence(step, self._rank, self._timeout, absent)

    def _mismatch(self, number: int) -> GroupError:
        steps = [self._store.get(self._name(rank, number)).decode() for rank in range(self._size)]
        return mismatch(steps, self._rank)

    def _add(self, number: int, amount: int) -> _Tally:
        return _Tally.of(self._store.add(self._round(number), amount))

    def _round(self, number: int) -> str:
        return f"{self._prefix}/round/{number}"

    def _mark(self, rank: int) -> str:
        """Holds the number of the rank's last round."""
        return f"{self._prefix}/rank/{rank}"

    def _name(self, rank: int, number: int) -> str:
        """Holds the name of the rank's step; two in turn, as no rank is two rounds ahead of one that still reads."""
        return f"{self._prefix}/step/{rank}/{number % 2}"


def _pauses(size: int) -> Iterator[float]:
    """Seconds between two looks at a counter: few at first, later enough that ``size`` ranks do not flood the store."""
    pause, longest = 0.001, 0.05 + size * 1e-4
    while True:
        yield pause
        pause = min(2 * pause, longest)
