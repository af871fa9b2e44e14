"""The HTTP service on an index: its state, and the switch to a new one.

A request for neighbours is admitted (429 if too many wait), its image decoded in a thread, and then answered together
with all others that are ready. The index may be replaced or changed at any time: the service notices, opens the new
state and switches to it, and requests that began on the old one end on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from metrix.errors import MetrixError
from metrix.serve.batching import Batcher
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics
from metrix.serve.state import Neighbour, PendingQuery, ServedIndex, answer_queries, read_stamp

log = logging.getLogger("metrix.serve")


class Service:
    """An index that is served: its current state, the queue of queries, and the switch to a new state.

    Args:
        folder: the index.
        run: the run that it was built with, if it has moved.
        limits: on requests.
        poll: seconds between looks at whether the index was replaced.
    """

    def __init__(
        self, folder: Path, run: Path | None = None, limits: Limits | None = None, *, poll: float = 1.0
    ) -> None:
        self.folder, self.run, self.limits, self.poll = Path(folder), run, limits or Limits(), poll
        self.metrics = Metrics()
        self.current = ServedIndex(self.folder, run)
        self.batcher = self._start_batcher()
        self._switching = threading.Lock()
        self._describe()

    @property
    def ready(self) -> bool:
        """Whether queries are answered."""
        return self.batcher.alive

    def reload(self) -> ServedIndex:
        """Open the index anew and switch to it; if that fails, the current state stays.

        Raises:
            MetrixError: there is no sound index, or its model cannot be opened.
        """
        with self._switching:
            try:
                opened = ServedIndex(self.folder, self.run, self.current)
            except MetrixError:
                self.metrics.reloads.labels("failed").inc()
                raise
            self.current = opened  # the old one is let go with its last request
            self.metrics.reloads.labels("done").inc()
            self._describe()
            log.info("serving generation %d, %d items", opened.index.description.generation, len(opened.index))
            return opened

    async def watch(self) -> None:
        """Switch to a new state of the index whenever there is one, for ever."""
        seen = self.current.stamp
        while True:
            await asyncio.sleep(self.poll)
            stamp = read_stamp(self.folder)
            if stamp in (seen, self.current.stamp, (0, 0, 0)):
                continue
            seen = stamp
            await self.try_reload()

    async def try_reload(self) -> None:
        """Reload, and log what goes wrong."""
        try:
            await asyncio.to_thread(self.reload)
        except MetrixError as error:
            log.error("still serving the index as it was: %s", error)

    async def ask(self, place: Future[list[Neighbour]], start: Callable[[], object]) -> list[Neighbour]:
        """Start a query in its reserved place and wait for the answer, which goes with this task if it is given up."""
        start()
        return await asyncio.wrap_future(place)

    @contextlib.asynccontextmanager
    async def running(self, _: Any = None) -> AsyncIterator[None]:
        """Watch the index and listen to SIGHUP meanwhile; at the end, answer what waits and stop."""
        loop = asyncio.get_running_loop()
        if not self.batcher.alive:  # started again after an end
            self.batcher = self._start_batcher()
        tasks = {asyncio.create_task(self.watch())}

        def reload_on_signal() -> None:
            task = asyncio.create_task(self.try_reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        listens = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
        if listens:
            loop.add_signal_handler(signal.SIGHUP, reload_on_signal)
        try:
            yield
        finally:
            if listens:
                loop.remove_signal_handler(signal.SIGHUP)
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(self.batcher.close)

    def _start_batcher(self) -> Batcher[PendingQuery, list[Neighbour]]:
        return Batcher(lambda queries: answer_queries(queries, self.metrics), self.limits, self.metrics)

    def _describe(self) -> None:
        self.metrics.items.set(len(self.current.index))
        self.metrics.generation.set(self.current.index.description.generation)
