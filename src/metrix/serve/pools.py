"""Threads for work that would hold up the event loop: a pool for each kind of work, so that none can starve another."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from metrix.errors import MetrixError

T = TypeVar("T")


class BusyError(MetrixError):
    """All threads of a pool are taken, and as much waits for them as may."""


class StuckError(MetrixError):
    """Work that took longer than it may, such as reading a file of a drive that does not answer."""


class Pool:
    """A few threads with a bounded queue.

    The threads end with the process, whatever they wait for: a file that hangs must not keep the service from stopping.

    Args:
        name: of the threads.
        threads: started when they are needed.
        waiting: calls that may wait for a thread.
        seconds: that a call may take; None for any time. While all threads are busy with calls that take
            longer, others are refused at once.
    """

    def __init__(self, name: str, threads: int, waiting: int = 256, seconds: float | None = None) -> None:
        self.name, self.threads, self.waiting, self.seconds = name, threads, waiting, seconds
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._since: dict[int, float] = {}  # when the call of each busy thread began
        self._started, self._closed = 0, False

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call in one of the threads.

        Raises:
            BusyError: too many calls are waiting.
            StuckError: it took longer than `seconds`.
        """
        done = asyncio.wrap_future(self.submit(lambda: call(*arguments)))
        try:
            return await asyncio.wait_for(done, self.seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise StuckError(f"no answer after {self.seconds:g} s") from None

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have something called in one of the threads; it is not called if the future is cancelled before."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise BusyError(f"{self.name}: the service is shutting down")
            if self._calls.qsize() >= self.waiting:
                raise BusyError(f"{self.name}: {self.waiting} calls are waiting already; try again in a moment")
            if self._all_stuck():
                raise BusyError(f"{self.name}: what was asked for before does not answer; try again later")
            self._calls.put((future, call))
            if self._started < self.threads and len(self._since) + self._calls.qsize() > self._started:
                self._started += 1
                threading.Thread(target=self._work, args=(self._started,), name=self.name, daemon=True).start()
        return future

    def close(self) -> None:
        """Take no more calls; threads end after what they are doing."""
        with self._lock:
            self._closed = True
            for _ in range(self._started):
                self._calls.put(None)

    def _all_stuck(self) -> bool:
        if self.seconds is None or len(self._since) < self.threads:
            return False
        return time.monotonic() - max(self._since.values()) > self.seconds

    def _work(self, number: int) -> None:
        while (taken := self._calls.get()) is not None:
            future, call = taken
            if not future.set_running_or_notify_cancel():
                continue
            with self._lock:
                self._since[number] = time.monotonic()
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                del future, call, taken  # a result may be large, and the next call may come late
                with self._lock, suppress(KeyError):
                    del self._since[number]
