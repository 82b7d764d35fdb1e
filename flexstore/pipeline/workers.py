"""A few threads that share one queue of tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Task = TypeVar("Task")


class TaskQueue(Generic[Task]):
    """Tasks handed out in order, each to one worker, until they are used up or `stop` is called."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = iter(tasks)
        self._lock = threading.Lock()
        self._stopped = False

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._tasks)

    def stop(self) -> None:
        """Hand out no more."""
        with self._lock:
            self._stopped = True


def run_workers(tasks: Sequence[Task], work: Callable[[Iterator[Task]], None], count: int) -> None:
    """Run ``work`` on ``count`` threads (on the caller's own if one is enough), all fed from one queue.

    Args:
        tasks: to hand out.
        work: consumes the iterator that it is given; called once per thread.
        count: most threads.

    Raises:
        BaseException: the first error of a worker; the others end after the task they are at.
    """
    queue = TaskQueue(tasks)
    count = min(count, len(tasks))
    if count <= 1:
        work(queue)
        return

    def guarded() -> None:
        try:
            work(queue)
        except BaseException:
            queue.stop()
            raise

    with ThreadPoolExecutor(count, "flexstore-io") as pool:
        futures = [pool.submit(guarded) for _ in range(count)]
    for future in futures:
        future.result()
