"""Queries of many clients through the network as one batch.

Images are decoded in a few threads. One thread takes whatever is ready, runs the network and the search once for all of
it, and goes on with what arrived meanwhile: alone, a query waits for nothing; under load, batches grow by themselves.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metrix.errors import MetrixError
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics

T = TypeVar("T")  # a prepared query
R = TypeVar("R")  # its answer


class QueueFullError(MetrixError):
    """As many queries wait as the limits allow."""


class ClosedError(MetrixError):
    """The service is shutting down."""


@dataclass(eq=False)
class _Waiting(Generic[T, R]):
    query: T
    answer: Future[R]
    since: float = field(default_factory=time.perf_counter)


class Batcher(Generic[T, R]):
    """Answers queries in batches, in one thread.

    Args:
        answer: gives the answers, or an exception in place of one, to a list of prepared queries.
        limits: `queue` bounds the queries that are worked on, `batch` those that go together.
        metrics: receives batch sizes and times.
        threads: that prepare queries; as many as there are cores by default.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[T]], Sequence[R | Exception]],
        limits: Limits,
        metrics: Metrics,
        threads: int | None = None,
    ) -> None:
        self._answer, self._limits, self._metrics = answer, limits, metrics
        self._ready: queue.SimpleQueue[_Waiting[T, R] | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="metrix-decode")
        self._lock = threading.Lock()
        self._pending, self._closed = 0, False
        self._worker = threading.Thread(target=self._work, name="metrix-batches", daemon=True)
        self._worker.start()

    @property
    def alive(self) -> bool:
        """Whether queries are answered."""
        return self._worker.is_alive() and not self._closed

    def reserve(self) -> Future[R]:
        """A place in the queue, for `submit`; cancel it to give the place back.

        Raises:
            QueueFullError: as many queries as the limits allow are worked on.
            ClosedError: the service is shutting down.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the service is shutting down; try another instance")
            if self._pending >= self._limits.queue:
                self._metrics.refused.inc()
                raise QueueFullError(f"{self._pending} queries are waiting already; try again in a moment")
            self._pending += 1
            self._metrics.pending.set(self._pending)
        place: Future[R] = Future()
        place.add_done_callback(self._leave)
        return place

    def submit(self, place: Future[R], prepare: Callable[[], T]) -> Future[R]:
        """Prepare a query in a thread and answer it with the next batch, into the place that was reserved."""
        try:
            self._pool.submit(self._prepare, place, prepare)
        except RuntimeError:  # the pool was shut down between `reserve` and here
            _fail(place, ClosedError("the service is shutting down; try another instance"))
        return place

    def submit_ready(self, place: Future[R], query: T) -> Future[R]:
        """Answer a query that needs no preparation."""
        self._ready.put(_Waiting(query, place))
        return place

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._pool.shutdown(wait=True)
        self._ready.put(None)
        self._worker.join()

    def _leave(self, _: Future[R]) -> None:
        with self._lock:
            self._pending -= 1
            self._metrics.pending.set(self._pending)

    def _prepare(self, place: Future[R], prepare: Callable[[], T]) -> None:
        if place.cancelled():
            return
        start = time.perf_counter()
        try:
            query = prepare()
        except Exception as error:
            _fail(place, error)
            return
        self._metrics.decoding.observe(time.perf_counter() - start)
        self._ready.put(_Waiting(query, place))

    def _work(self) -> None:
        while True:
            first = self._ready.get()
            batch = [first]
            with suppress(queue.Empty):
                while len(batch) < self._limits.batch and batch[-1] is not None:
                    batch.append(self._ready.get_nowait())
            wanted = [one for one in batch if one is not None and one.answer.set_running_or_notify_cancel()]
            if wanted:
                self._answer_batch(wanted)
            if batch[-1] is None:
                return

    def _answer_batch(self, batch: Sequence[_Waiting[T, R]]) -> None:
        now = time.perf_counter()
        self._metrics.batch_size.observe(len(batch))
        for one in batch:
            self._metrics.waiting.observe(now - one.since)
        answers: Sequence[Any]
        try:
            answers = self._answer([one.query for one in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for one, found in zip(batch, answers, strict=True):
            if isinstance(found, Exception):
                one.answer.set_exception(found)
            else:
                one.answer.set_result(found)


def _fail(place: Future[Any], error: Exception) -> None:
    if place.set_running_or_notify_cancel():
        place.set_exception(error)
