"""Ctrl-C and SIGTERM end a run after the step under way, with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from metrix.errors import MetrixError


class Interrupted(MetrixError):  # noqa: N818 - nothing went wrong
    """A run was asked to end; it is complete up to its last checkpoint."""

    def __init__(self, signum: int, run: Path) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}; go on with --resume {run}")
        self.signum, self.run = signum, run

    @property
    def exit_code(self) -> int:
        """128 + the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signum


class Requests:
    """Which signal asked to end, if any."""

    signum: int | None = None


@contextmanager
def end_requests() -> Iterator[Requests]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one is obeyed at once."""
    requests = Requests()
    before = {}

    def note(signum: int, frame: FrameType | None) -> None:
        if requests.signum is not None:
            raise KeyboardInterrupt
        requests.signum = signum

    for signum in (signal.SIGINT, signal.SIGTERM):
        try:
            before[signum] = signal.signal(signum, note)
        except ValueError:  # not in the main thread: the caller's handlers stay
            break
    try:
        yield requests
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
