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
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, MetrixError
from metrix.serve.answering import Found, PendingQuery, answer_queries
from metrix.serve.batching import Batcher
from metrix.serve.classes import read_classes
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics
from metrix.serve.pools import Pool
from metrix.serve.state import NOTHING, ServedIndex, read_stamp

LONGEST_PAUSE = 60.0  # seconds between attempts to open a state that could not be opened

log = logging.getLogger("metrix.serve")


@dataclass
class Watching:
    """What is known of the index on disk: when it was looked at, and since when another state could not be opened."""

    looked: float  # a time of time.monotonic(), as the next one
    behind: float | None = None
    failures: int = 0  # one after another
    checked: int = 0  # images that were looked for
    missing: int = 0  # of them


class Service:
    """An index that is served: its current state, the queue of queries, and the switch to a new state.

    Args:
        folder: the index.
        run: the run that it was built with, if it has moved.
        root: the folder of its images, if they have moved.
        store: of the index, as for `Index.open`.
        limits: on requests.
        poll: seconds between looks at whether the index was replaced.
        queries: whether images can be searched with and classified; without, no model is opened.
        dim: so many numbers of each vector; all by default.
        force_dim: take a prefix that the model was not trained for.
    """

    def __init__(
        self,
        folder: Path,
        run: Path | None = None,
        limits: Limits | None = None,
        *,
        root: Path | None = None,
        store: str | None = None,
        poll: float = 1.0,
        queries: bool = True,
        dim: int | None = None,
        force_dim: bool = False,
    ) -> None:
        self.folder, self.run, self.root, self.store, self.poll = Path(folder), run, root, store, poll
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self._queries, self._dim, self._force_dim = queries, dim, force_dim
        self.private: list[Path] = []  # other files that clients are not told the folders of
        self.current = self._open()
        self.batcher = self._start_batcher()
        self.watching = Watching(time.monotonic())
        # Ids and columns; images, whose files may hang; the state on disk; changes of it; whether images are there;
        # classes.
        self.items = Pool("metrix-items", 4)
        self.files = Pool("metrix-files", 8, seconds=self.limits.reading)
        self.disk = Pool("metrix-disk", 2, waiting=8)
        self.changes = Pool("metrix-changes", 1, waiting=8)
        self.looking = Pool("metrix-looking", 1, waiting=1)
        self.enrolling = Pool("metrix-enrolling", 1)
        self._switching = threading.Lock()
        self._describe()
        self._read_classes()

    def _open(self, before: ServedIndex | None = None) -> ServedIndex:
        """The state on disk."""
        places = self.run, self.root, self.store
        return ServedIndex(self.folder, self.limits, *places, before, self._queries, self._dim, self._force_dim)

    @property
    def ready(self) -> bool:
        """Whether queries are answered."""
        return self.batcher.alive

    @contextlib.contextmanager
    def holding(self) -> Iterator[ServedIndex]:
        """The current state, which stays open while the block runs."""
        with contextlib.ExitStack() as stack:
            state = self.current
            while not stack.enter_context(state.held()):  # replaced in this moment
                state = self.current
            yield state

    def reload(self) -> ServedIndex:
        """Switch to the index as it is on disk; if that fails, or nothing has changed, the current state stays.

        Raises:
            MetrixError: there is no sound index, or its model cannot be opened.
        """
        with self._switching:
            before = self.current
            if read_stamp(self.folder) == before.stamp:
                return before
            try:
                opened = self._open(before)
            except Exception:
                self.metrics.reloads.labels("failed").inc()
                raise
            self.current = opened
            before.retire()
            self.metrics.reloads.labels("done").inc()
            self._describe()
            self._read_classes()
            fields = {"generation": opened.index.description.generation, "items": len(opened.index)}
        log.info("switched to a new state of the index", extra={"fields": fields})
        self._count_missing()
        return opened

    async def watch(self) -> None:
        """Switch to a new state of the index whenever there is one, for ever, whatever happens."""
        pause, failed = self.poll, NOTHING
        while True:
            await asyncio.sleep(min(pause, LONGEST_PAUSE))
            try:
                stamp = await self.disk.run(read_stamp, self.folder)
                self.watching.looked = time.monotonic()
                if stamp == self.current.stamp:
                    pause = self.poll
                    self._set_current()
                    continue
                if stamp != failed:  # another state than the one that could not be opened: it deserves a new attempt
                    pause, failed = self.poll, stamp
                await self.try_reload()
                pause = self.poll if stamp == self.current.stamp else 2 * pause
            except Exception:
                log.exception("watching the index failed; going on")
                pause = 2 * pause

    async def try_reload(self) -> None:
        """Reload, and log and count what goes wrong."""
        try:
            await self.disk.run(self.reload)
            self._set_current()
        except Exception as error:
            now = self.watching
            now.behind, now.failures = now.behind or time.monotonic(), now.failures + 1
            self.metrics.behind.set(1)
            known = isinstance(error, MetrixError)
            log.error(
                f"still serving the index as it was: {error or type(error).__name__}",
                exc_info=None if known else error,
                extra={"fields": {"attempts": now.failures}},
            )

    def _set_current(self) -> None:
        self.watching.behind, self.watching.failures = None, 0
        self.metrics.behind.set(0)

    def describe_state(self) -> dict[str, Any]:
        """What is served and how old it is, for readiness probes."""
        now, state, watching = time.monotonic(), self.current, self.watching
        return {
            "ready": self.ready,
            "generation": state.index.description.generation,
            "age_seconds": round(now - state.opened_at, 1),
            "looked_seconds_ago": round(now - watching.looked, 1),
            "behind_seconds": None if watching.behind is None else round(now - watching.behind, 1),
            "failed_reloads": watching.failures,
            "images_checked": watching.checked,
            "images_missing": watching.missing,
        }

    def conceal(self, text: str) -> str:
        """A message without the folders of this machine, for clients."""
        made_by = self.current.index.description.model
        run = None if made_by is None else made_by.run
        hidden = {
            *self.private,
            self.folder.resolve(),
            self.folder,
            self.run,
            self.root,
            self.current.index.description.root,
            run,
        }
        for path in sorted((str(one) for one in hidden if one is not None), key=len, reverse=True):
            text = text.replace(path, Path(path).name)
        return text

    @contextlib.asynccontextmanager
    async def running(self, _: Any = None) -> AsyncIterator[None]:
        """Watch the index and listen to SIGHUP meanwhile; at the end, answer what waits and stop."""
        loop = asyncio.get_running_loop()
        if not self.batcher.alive:  # started again after an end
            self.batcher = self._start_batcher()
        tasks = {asyncio.create_task(self.watch())}
        self._count_missing()

        def reload_on_signal() -> None:
            log.info("asked to reload by SIGHUP")
            task = asyncio.create_task(self.try_reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        listens = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
        if listens:
            loop.add_signal_handler(signal.SIGHUP, reload_on_signal)
        try:
            yield
        finally:
            log.info("shutting down", extra={"fields": {"waiting": self.batcher.pending}})
            if listens:
                loop.remove_signal_handler(signal.SIGHUP)
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(self.batcher.close)

    def _start_batcher(self) -> Batcher[PendingQuery, Found]:
        return Batcher(
            lambda queries, begin: answer_queries(queries, begin, self.metrics),
            self.limits,
            self.metrics,
            costly=lambda query: query.options.are_costly,
        )

    def _describe(self) -> None:
        self.metrics.items.set(len(self.current.index))
        self.metrics.generation.set(self.current.index.description.generation)

    def _read_classes(self) -> None:
        """Read the classes of the current state, in a thread: until that is done, it answers all but /classify."""
        state = self.current

        def read() -> None:
            try:
                found = read_classes(state)
            except InvalidInput as error:  # no labels, or too few: /classify says so
                log.info(f"no classes: {error}")
            except Exception:
                log.exception("reading the classes of the index failed")
            else:
                if found is not None and state is self.current:
                    self.metrics.classes.set(len(found.classes))

        self.metrics.classes.set(0)
        if self._queries:
            self.enrolling.submit(read)

    def _count_missing(self) -> None:
        """Look for the images of the index, in a thread: a drive may be slow, or not answer."""

        def count() -> None:
            with self.holding() as state:
                checked, missing = state.count_missing()
                if state is not self.current:
                    return
                self.watching.checked, self.watching.missing = checked, missing
                self.metrics.missing.set(missing)
                if missing:
                    log.warning(
                        f"{missing:,} of {checked:,} images are not in {state.index.description.root}; "
                        "if they have moved, say where with --root"
                    )

        with contextlib.suppress(MetrixError):
            self.looking.submit(count)
