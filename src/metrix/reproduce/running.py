"""Train the cells of a grid that are not finished, several side by side.

Each of `jobs` threads has a worker process of its own, which trains cell after cell. A cell whose worker
fails or dies is tried once more, from its last checkpoint, and then reported. Ctrl-C and SIGTERM are passed on
to the workers: each finishes its step and writes a checkpoint.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from metrix.errors import MetrixError
from metrix.messages import count
from metrix.reproduce.cells import Cell, Store

TRIES = 2
LOOK_EVERY = 0.2  # seconds between two looks at what runs
WORKER = (sys.executable, "-m", "metrix.reproduce.worker")


class Stopped(MetrixError):  # noqa: N818 - nothing went wrong
    """The grid was asked to end."""

    def __init__(self, signum: int, left: int) -> None:
        super().__init__(
            f"interrupted by {signal.Signals(signum).name}; {count(left, 'run')} left: "
            "give the same command again to go on from where each was"
        )
        self.exit_code = 128 + signum


@dataclass
class State:
    """How far a grid is; read by whoever draws it."""

    total: int
    reused: int
    waiting: deque[Cell]
    running: dict[str, tuple[Cell, float]] = field(default_factory=dict)  # by key: share of steps done
    done: list[Cell] = field(default_factory=list)
    failed: dict[str, tuple[Cell, str]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)


class Watcher:
    """Looks at the state every moment; the command line has one that draws."""

    def begin(self, state: State) -> None:
        """The grid starts."""

    def look(self, state: State) -> None:
        """A moment has passed."""

    def end(self, state: State) -> None:
        """All cells are finished or failed, or the grid was interrupted."""


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    jobs: int = 1,
    watcher: Watcher | None = None,
    command: Sequence[str] = WORKER,
) -> State:
    """Train what is not finished; the state at the end says what failed and why."""
    store.prepare()
    unfinished = [one for one in cells if store.results(one.key) is None]
    state = State(len(cells), len(cells) - len(unfinished), deque(unfinished))
    watcher = watcher or Watcher()
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
    """Threads that each keep one worker busy."""

    def __init__(self, state: State, store: Store, jobs: int, command: Sequence[str]) -> None:
        self.state, self.store, self.command = state, store, command
        self.jobs = max(1, min(jobs, len(state.waiting)))
        self.workers: list[_Worker] = []
        self.signum: int | None = None
        self.lock = threading.Lock()

    def work(self, watcher: Watcher) -> None:
        """Until nothing waits or a signal comes."""
        if not self.state.waiting:
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        in_main = threading.current_thread() is threading.main_thread()
        threads = [threading.Thread(target=self._one_after_another, daemon=True) for _ in range(self.jobs)]
        try:
            if in_main:
                for number in before:
                    signal.signal(number, self._hear)
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                watcher.look(self.state)
                time.sleep(LOOK_EVERY)
        finally:
            if in_main:
                for number, handler in before.items():
                    signal.signal(number, handler)
            for worker in self.workers:
                if any(thread.is_alive() for thread in threads):  # an error here, not there
                    worker.signal(signal.SIGTERM)
                worker.close()

    def _hear(self, signum: int, frame: FrameType | None) -> None:
        """Pass a signal on; the workers are in sessions of their own and do not hear it from a terminal."""
        self.signum = signum
        for worker in self.workers:
            worker.signal(signum)

    def _one_after_another(self) -> None:
        worker = None
        while self.signum is None:
            with self.lock:
                if not self.state.waiting:
                    return
                one = self.state.waiting.popleft()
                self.state.running[one.key] = (one, 0.0)
            for number in range(1, TRIES + 1):
                if worker is None or worker.ended:
                    worker = self._hired()
                self.store.note(one, tries=number, error=None)
                error, again = worker.train(self.store.place(one.key), lambda share, one=one: self._heard(one, share))
                if error is None or not again or self.signum is not None:
                    break
            if self.signum is not None and error is not None:
                return  # it stays among those that run: the next command goes on with it
            if error is not None:
                self.store.note(one, error=error)
            with self.lock:
                del self.state.running[one.key]
                if error is None:
                    self.state.done.append(one)
                else:
                    self.state.failed[one.key] = (one, error)

    def _hired(self) -> _Worker:
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        worker = _Worker(self.command, threads)
        self.workers.append(worker)
        if self.signum is not None:  # it came while the process began
            worker.signal(self.signum)
        return worker

    def _heard(self, one: Cell, share: float) -> None:
        self.state.running[one.key] = (one, share)


class _Worker:
    """A process that trains cells."""

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
        self.said: deque[str] = deque(maxlen=20)
        assert self.process.stderr is not None
        self.listener = threading.Thread(target=self.said.extend, args=(self.process.stderr,), daemon=True)
        self.listener.start()

    @property
    def ended(self) -> bool:
        """Whether the process is no more."""
        return self.process.poll() is not None

    def train(self, place: Path, heard: Any) -> tuple[str | None, bool]:
        """Train a cell: what went wrong, if anything, and whether to try again."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(str(place.absolute())) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._death(place), True
        for line in self.process.stdout:
            answer = json.loads(line)
            if "step" in answer:
                heard(answer["step"] / max(1, answer["of"]))
            elif "error" in answer:
                return str(answer["error"]), bool(answer["again"])
            else:
                return None, False
        return self._death(place), True

    def _death(self, place: Path) -> str:
        code = self.process.wait()
        self.listener.join()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        last = "".join(self.said).strip().splitlines()
        return f"its process {how}{': ' + last[-1] if last else ''} (log: {place / 'log.txt'})"

    def signal(self, signum: int) -> None:
        """Ask it to end."""
        if not self.ended:
            self.process.send_signal(signum)

    def close(self) -> None:
        """Nothing more to train: its input ends, and so does it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.listener.join()
        self.process.stdout.close()
        self.process.stderr.close()
