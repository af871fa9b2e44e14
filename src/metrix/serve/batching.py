"""Queries of many clients through the network as one batch.

Images are decoded in a few threads. A thread takes whatever is ready, runs the network and the search once for all of
it, and goes on with what arrived meanwhile: alone, a query waits for nothing; under load, batches grow by themselves.
Queries that take long (filters, re-ranking) have a thread of their own, so that the others do not wait for them.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metrix.errors import MetrixError
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics
from metrix.serve.pools import BusyError, Pool

T = TypeVar("T")  # a prepared query
R = TypeVar("R")  # its answer

Answer = Callable[[Sequence[T], Callable[[int], bool]], Iterable[tuple[int, Any]]]


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
    """Answers queries in batches, in one thread for quick and one for costly ones.

    Args:
        answer: gives places in a list of prepared queries with their answers, or an exception in place of one, as they
            are found. It is also given a function to call with the place of a query right before it is worked on, which
            says whether the answer is still wanted.
        limits: `queue` bounds the queries that are worked on, `batch` those that go together, `waiting` the bytes of
            uploads.
        metrics: receives batch sizes and times.
        costly: whether a prepared query takes long.
        threads: that prepare queries; as many as there are cores by default.
    """

    def __init__(
        self,
        answer: Answer[T],
        limits: Limits,
        metrics: Metrics,
        costly: Callable[[T], bool] = lambda _: False,
        threads: int | None = None,
    ) -> None:
        self._answer, self._limits, self._metrics, self._costly = answer, limits, metrics, costly
        self._pool = Pool("metrix-decode", threads or os.cpu_count() or 1, waiting=limits.queue)
        self._lock = threading.Lock()
        self._pending, self._bytes, self._closed = 0, 0, False
        self._preparing, self._prepared = 0, threading.Condition(self._lock)
        self._lanes: list[queue.SimpleQueue[_Waiting[T, R] | None]] = [queue.SimpleQueue(), queue.SimpleQueue()]
        self._workers = [
            threading.Thread(target=self._work, args=(lane,), name=name, daemon=True)
            for lane, name in zip(self._lanes, ("metrix-batches", "metrix-costly"), strict=True)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def alive(self) -> bool:
        """Whether queries are answered."""
        return all(worker.is_alive() for worker in self._workers) and not self._closed

    @property
    def pending(self) -> int:
        """Queries that wait or are worked on."""
        return self._pending

    def reserve(self, size: int = 0) -> Future[R]:
        """A place in the queue for a query with an upload of so many bytes; cancel it to give the place back.

        Raises:
            QueueFullError: as many queries, or as many bytes of uploads, as the limits allow are worked on.
            ClosedError: the service is shutting down.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the service is shutting down; try another instance")
            if self._pending >= self._limits.queue:
                self._metrics.refused.inc()
                raise QueueFullError(f"{self._pending} queries are waiting already; try again in a moment")
            if size and self._bytes and self._bytes + size > self._limits.waiting:
                self._metrics.refused.inc()
                raise QueueFullError(f"uploads of {self._bytes:,} bytes are waiting already; try again in a moment")
            self._pending += 1
            self._bytes += size
            self._metrics.pending.set(self._pending)
            self._metrics.uploads.set(self._bytes)
        place: Future[R] = Future()
        place.add_done_callback(lambda _: self._leave(size))
        return place

    def submit(self, place: Future[R], prepare: Callable[[], T]) -> Future[R]:
        """Prepare a query in a thread and answer it with the next batch, into the place that was reserved."""
        with self._lock:
            self._preparing += 1
        try:
            self._pool.submit(lambda: self._prepare(place, prepare))
        except BusyError:  # it is being closed
            self._end_preparing()
            _fail(place, ClosedError("the service is shutting down; try another instance"))
        return place

    def submit_ready(self, place: Future[R], query: T) -> Future[R]:
        """Answer a query that needs no preparation."""
        self._lanes[self._costly(query)].put(_Waiting(query, place))
        return place

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._prepared.wait_for(lambda: self._preparing == 0)
        self._pool.close()
        for lane in self._lanes:
            lane.put(None)
        for worker in self._workers:
            worker.join()

    def _leave(self, size: int) -> None:
        with self._lock:
            self._pending -= 1
            self._bytes -= size
            self._metrics.pending.set(self._pending)
            self._metrics.uploads.set(self._bytes)

    def _end_preparing(self) -> None:
        with self._lock:
            self._preparing -= 1
            self._prepared.notify_all()

    def _prepare(self, place: Future[R], prepare: Callable[[], T]) -> None:
        try:
            if place.cancelled():
                return
            start = time.perf_counter()
            query = prepare()
            self._metrics.decoding.observe(time.perf_counter() - start)
            self.submit_ready(place, query)
        except Exception as error:
            _fail(place, error)
        finally:
            self._end_preparing()

    def _work(self, lane: queue.SimpleQueue[_Waiting[T, R] | None]) -> None:
        while True:
            first = lane.get()
            batch = [first]
            with suppress(queue.Empty):
                while len(batch) < self._limits.batch and batch[-1] is not None:
                    batch.append(lane.get_nowait())
            wanted = [one for one in batch if one is not None and not one.answer.cancelled()]
            if wanted:
                self._answer_batch(wanted)
            if batch[-1] is None:
                return

    def _answer_batch(self, batch: Sequence[_Waiting[T, R]]) -> None:
        now = time.perf_counter()
        self._metrics.batch_size.observe(len(batch))
        for one in batch:
            self._metrics.waiting.observe(now - one.since)
        try:
            begin: Callable[[int], bool] = lambda n: batch[n].answer.set_running_or_notify_cancel()  # noqa: E731
            for n, found in self._answer([one.query for one in batch], begin):
                if isinstance(found, Exception):
                    batch[n].answer.set_exception(found)
                else:
                    batch[n].answer.set_result(found)
        except Exception as error:
            failed = error
        else:
            failed = ClosedError("the index was replaced; ask again")
        for one in batch:
            if not one.answer.done():
                _fail(one.answer, failed)


def _fail(place: Future[Any], error: Exception) -> None:
    if place.running() or place.set_running_or_notify_cancel():
        place.set_exception(error)
