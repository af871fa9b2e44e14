"""Train the unfinished cells of a grid, several in parallel.

Each of `jobs` threads keeps one worker process busy. A cell whose worker fails or dies is tried once more, from its
last checkpoint, and then reported as failed. Ctrl-C and SIGTERM are passed on to the workers, each of which finishes
its step and writes a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from metrix.errors import MetrixError
from metrix.experiments.cells import Cell, CellStore
from metrix.messages import count

TRIES = 2
UPDATE_EVERY = 0.2  # seconds
WORKER = (sys.executable, "-m", "metrix.reproduce.worker")


class Stopped(MetrixError):  # noqa: N818 - nothing went wrong
    """The grid was interrupted by a signal."""

    def __init__(self, signum: int, left: int) -> None:
        super().__init__(
            f"interrupted by {signal.Signals(signum).name}; {count(left, 'run')} left; "
            "run the same command again to resume"
        )
        self.exit_code = 128 + signum


@dataclass
class GridState:
    """The progress of a grid, read by its watcher."""

    total: int
    reused: int
    waiting: deque[Cell]
    running: dict[str, tuple[Cell, float]] = field(default_factory=dict)  # by key, with the share of steps done
    done: list[Cell] = field(default_factory=list)
    failed: dict[str, tuple[Cell, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # of the cells in `done`, by key
    began: float = field(default_factory=time.monotonic)


class GridWatcher:
    """Is told how a grid progresses and ignores it; the command line has a subclass that draws it."""

    def begin(self, state: GridState) -> None:
        """Called before the first cell is trained."""

    def update(self, state: GridState) -> None:
        """Called several times a second while cells are trained."""

    def end(self, state: GridState) -> None:
        """Called when all cells are finished or failed, or when the grid is interrupted."""


def run_cells(
    cells: Sequence[Cell],
    store: CellStore,
    jobs: int = 1,
    watcher: GridWatcher | None = None,
    command: Sequence[str] = WORKER,
) -> GridState:
    """Train the unfinished cells.

    Args:
        cells: All cells of the grid.
        store: Where cells are kept.
        jobs: How many to train in parallel.
        watcher: Is told about the progress.
        command: Starts a worker process.

    Returns:
        The final state, with the failed cells and their errors.

    Raises:
        Stopped: A signal ended the grid.
    """
    store.prepare()
    unfinished = [one for one in cells if store.results(one.key) is None]
    for one in cells:
        if one not in unfinished:
            store.drop_checkpoints(one.key)
    state = GridState(len(cells), len(cells) - len(unfinished), deque(unfinished))
    watcher = watcher or GridWatcher()
    crew = _Crew(state, store, jobs, command)
    try:
        watcher.begin(state)
        crew.work(watcher)
    finally:
        watcher.end(state)
        store.write_index()
    if crew.signum is not None:
        raise Stopped(crew.signum, len(state.waiting) + len(state.running))
    return state


class _Crew:
    """The threads of a grid; each keeps one worker process busy."""

    def __init__(self, state: GridState, store: CellStore, jobs: int, command: Sequence[str]) -> None:
        self.state, self.store, self.command = state, store, command
        self.jobs = max(1, min(jobs, len(state.waiting)))
        self.workers: list[_Worker] = []
        self.signum: int | None = None
        self.lock = threading.Lock()

    def work(self, watcher: GridWatcher) -> None:
        """Train until no cell is waiting or a signal arrives."""
        if not self.state.waiting:
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        in_main = threading.current_thread() is threading.main_thread()
        threads = [threading.Thread(target=self._train_waiting, daemon=True) for _ in range(self.jobs)]
        try:
            if in_main:
                for number in before:
                    signal.signal(number, self._pass_on)
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                watcher.update(self.state)
                time.sleep(UPDATE_EVERY)
        finally:
            if in_main:
                for number, handler in before.items():
                    signal.signal(number, handler)
            for worker in self.workers:
                if any(thread.is_alive() for thread in threads):  # an error in this thread: end the workers, too
                    worker.signal(signal.SIGTERM)
                worker.close()

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        """Pass a signal on to the workers, which run in sessions of their own and do not get it from the terminal."""
        self.signum = signum
        for worker in self.workers:
            worker.signal(signum)

    def _train_waiting(self) -> None:
        worker = None
        while self.signum is None:
            with self.lock:
                if not self.state.waiting:
                    return
                one = self.state.waiting.popleft()
                self.state.running[one.key] = (one, 0.0)
            began = time.monotonic()
            for number in range(1, TRIES + 1):
                if worker is None or worker.ended:
                    worker = self._start_worker()
                self.store.write_record(one, tries=number, error=None)
                error, again = worker.train(self.store.cell_folder(one.key), partial(self._set_share, one))
                if error is None or not again or self.signum is not None:
                    break
            if self.signum is not None and error is not None:
                return  # the cell stays in `running`: the next command resumes it
            seconds = time.monotonic() - began
            self.store.write_record(one, error=error, seconds=seconds)
            with self.lock:
                del self.state.running[one.key]
                if error is None:
                    self.state.seconds[one.key] = seconds
                    self.state.done.append(one)
                else:
                    self.state.failed[one.key] = (one, error)

    def _start_worker(self) -> _Worker:
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        worker = _Worker(self.command, threads)
        self.workers.append(worker)
        if self.signum is not None:  # it arrived while the process started
            worker.signal(self.signum)
        return worker

    def _set_share(self, one: Cell, share: float) -> None:
        self.state.running[one.key] = (one, share)


class _Worker:
    """A worker process, see `metrix.reproduce.worker`."""

    def __init__(self, command: Sequence[str], threads: int) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
        )
        self.errors: deque[str] = deque(maxlen=20)
        assert self.process.stderr is not None
        self.listener = threading.Thread(target=self.errors.extend, args=(self.process.stderr,), daemon=True)
        self.listener.start()

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def train(self, folder: Path, set_share: Callable[[float], None]) -> tuple[str | None, bool]:
        """Train the cell in a folder; return its error, if any, and whether to try again."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(str(folder.absolute())) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._describe_death(folder), True
        for line in self.process.stdout:
            answer = json.loads(line)
            if "step" in answer:
                set_share(answer["step"] / max(1, answer["of"]))
            elif "error" in answer:
                return str(answer["error"]), bool(answer["again"])
            else:
                return None, False
        return self._describe_death(folder), True

    def _describe_death(self, folder: Path) -> str:
        code = self.process.wait()
        self.listener.join()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        last = "".join(self.errors).strip().splitlines()
        return f"its process {how}{': ' + last[-1] if last else ''} (log: {folder / 'log.txt'})"

    def signal(self, signum: int) -> None:
        """Send a signal to the process if it still runs."""
        if not self.ended:
            self.process.send_signal(signum)

    def close(self) -> None:
        """Close the input of the process, which ends it, and wait for that."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.listener.join()
        self.process.stdout.close()
        self.process.stderr.close()
