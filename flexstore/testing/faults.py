"""`FaultyStore`: a store that fails at a chosen operation, or whose process dies there.

To sweep all faults of a story, run it once over a `RecordingStore` and count; then run it once per operation ``k`` and
``when`` over ``FaultyStore(inner, fail_at=k, when=when, dead=True)``, and look at ``inner`` as the next process would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from flexstore.backends.base import Store
from flexstore.errors import StoreError
from flexstore.testing.recording import RecordingStore, Result, Verb

When: TypeAlias = Literal["before", "after"]


class InjectedFault(StoreError):
    """What a `FaultyStore` raises unless it is told otherwise."""


class FaultyStore(RecordingStore):
    """A `RecordingStore` that fails.

    Operations are counted from 1 in the order in which they begin, over all threads.

    Args:
        inner: the wrapped store.
        fail_at: the operation that fails; None: none, yet.
        when: ``"before"``: nothing of the operation happens; ``"after"``: it happens and its reply is lost.
        dead: all later operations fail, too, as if the process had ended; uploads under way stay unfinished. Their
            `Upload.abort` is still passed on: it frees memory, and readers cannot tell.
        verbs: count, and fail, only these; all if empty.
        error: makes the exception from a message.
    """

    def __init__(
        self,
        inner: Store,
        fail_at: int | None = None,
        *,
        when: When = "before",
        dead: bool = False,
        verbs: tuple[Verb, ...] = (),
        error: Callable[[str], Exception] = InjectedFault,
    ) -> None:
        super().__init__(inner)
        self._fail_at = fail_at
        self._when = when
        self._dead = dead
        self._verbs = verbs
        self._error = error
        self._begun = 0
        self._has_failed = False

    @property
    def has_failed(self) -> bool:
        """True once the fault was injected."""
        return self._has_failed

    def perform(self, verb: Verb, name: str, action: Callable[[], Result], nbytes: Callable[[Result], int]) -> Result:
        """See `RecordingStore.perform`."""
        number, fails = self._begin(verb)
        if fails and self._when == "before":
            raise self._error(f"injected fault before operation {number}, {verb} {name!r}")
        result = super().perform(verb, name, action, nbytes)
        if fails:
            raise self._error(f"injected fault after operation {number}, {verb} {name!r}")
        return result

    def _begin(self, verb: Verb) -> tuple[int, bool]:
        """Number an operation, and decide whether it fails."""
        with self._lock:
            if self._dead and self._has_failed:
                raise self._error(f"the process died before this {verb}")
            if self._verbs and verb not in self._verbs:
                return self._begun, False
            self._begun += 1
            fails = self._begun == self._fail_at
            self._has_failed |= fails
            return self._begun, fails
