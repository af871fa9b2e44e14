"""Ctrl-C and SIGTERM end a run after the step under way, with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from metrix.errors import MetrixError


class Interrupted(MetrixError):  # noqa: N818 - nothing went wrong
    """A run was asked to end; it is complete up to its last checkpoint."""

    said_by_all = False  # of several processes, the first one says it

    def __init__(self, signum: int, run: Path) -> None:
        begun = (run / "config.yaml").exists()
        hint = f"go on with --resume {run}" if begun else "nothing was trained yet"
        super().__init__(f"interrupted by {signal.Signals(signum).name}; {hint}")
        self.signum, self.run = signum, run

    @property
    def exit_code(self) -> int:
        """128 + the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signum


class Requests:
    """Which signal asked to end, if any; it is obeyed at once, but within `noted` only when looked at."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.signum: int | None = None
        self.patient = False  # a launcher passes on what the terminal has already sent: one request comes twice
        self._waits = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """A first request waits for `obey`; a second one does not."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def share(self, largest: Callable[[int], int]) -> None:
        """Make a request to one process one to all of them; `largest` is taken over the processes."""
        self.signum = largest(self.signum or 0) or None

    def obey(self) -> None:
        """End if asked to."""
        if self.signum is not None:
            raise Interrupted(self.signum, self.run)

    def hear(self, signum: int, frame: FrameType | None) -> None:
        """The signal handler."""
        at_once = not self._waits or (self.signum is not None and not self.patient)
        self.signum = signum
        if at_once:
            self.obey()


@contextmanager
def end_requests(run: Path) -> Iterator[Requests]:
    """Hear SIGINT and SIGTERM instead of dying of them."""
    requests = Requests(run)
    before = {}
    for signum in (signal.SIGINT, signal.SIGTERM):
        try:
            before[signum] = signal.signal(signum, requests.hear)
        except ValueError:  # not in the main thread: the caller's handlers stay
            break
    try:
        yield requests
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
