"""What ends a run after the current step, with a checkpoint: Ctrl-C, SIGTERM, images that can no longer be loaded."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from metrix.errors import DataError, MetrixError
from metrix.files import describe_failure


class Interrupted(MetrixError):  # noqa: N818 - nothing went wrong
    """A run was asked to end; it can be resumed from its last checkpoint."""

    on_every_rank = False  # of several processes, only rank 0 prints it

    def __init__(self, signum: int, run: Path) -> None:
        begun = (run / "config.yaml").exists()
        hint = (
            f"resume with --resume {run}, or end it there with --finish {run}" if begun else "nothing was trained yet"
        )
        super().__init__(f"interrupted by {signal.Signals(signum).name}; {hint}")
        self.signum, self.run = signum, run

    @property
    def exit_code(self) -> int:
        """128 + the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signum


class LoadingFailed(MetrixError):  # noqa: N818 - named after what happened
    """Images could not be loaded during training; the run can be resumed from its last checkpoint."""

    exit_code = 1

    def __init__(self, reason: str, run: Path) -> None:
        super().__init__(f"{reason}; resume with --resume {run}")


class WritingFailed(MetrixError):  # noqa: N818 - named after what happened
    """The folder of a run could not be written; the run can be resumed from its last checkpoint."""

    exit_code = 1

    def __init__(self, error: Exception, run: Path) -> None:
        begun = (run / "config.yaml").exists()
        hint = f"then resume with --resume {run}" if begun else "then start again"
        super().__init__(f"{run} cannot be written: {describe_failure(error)}; make room or give permission, {hint}")


_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.EFBIG}


@contextmanager
def report_failed_writes(run: Path) -> Iterator[None]:
    """Raise `WritingFailed` in place of the error of a full, read-only or failing disk."""
    from safetensors import SafetensorError

    def unwritable(error: BaseException | None) -> bool:
        if isinstance(error, OSError):
            return error.errno in _STORAGE
        return isinstance(error, SafetensorError) and "os error" in str(error)

    def say_nothing_twice(thread: threading.ExceptHookArgs) -> None:
        if not unwritable(thread.exc_value):  # TensorBoard's thread: it raises the error here, too
            before(thread)

    before, threading.excepthook = threading.excepthook, say_nothing_twice
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not unwritable(error):
            raise
        raise WritingFailed(error, run) from error
    finally:
        threading.excepthook = before


def describe_loading_failure(error: Exception) -> str | None:
    """What went wrong if an error comes from loading images, here or in a loader process; None if it does not."""
    text = str(error)
    if isinstance(error, DataError):
        return text
    if isinstance(error, RuntimeError) and text.startswith("Caught ") and "DataLoader worker process" in text:
        # torch wraps the error of a loader process, whose traceback ends with "module.Class: message"
        name, _, message = text.strip().splitlines()[-1].partition(": ")
        return message if name.startswith("metrix.") else None
    lost = isinstance(error, EOFError | ConnectionError | FileNotFoundError)  # its socket or shared memory is gone
    if lost or (isinstance(error, RuntimeError) and "DataLoader worker" in text):
        return "a process that loads the data was killed, for which the usual reason is too little memory"
    return None


def notice_dead_loaders_later() -> None:
    """Let the death of a loader process be noticed when the next batch is fetched, not in the middle of a step.

    torch installs a handler of SIGCHLD with the first loader process, which raises wherever the program happens to be:
    a checkpoint written there could be of half a step. The loader itself looks whether its processes live, too.
    """
    child = getattr(signal, "SIGCHLD", None)  # not on Windows
    if child is None or threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(child), "__module__", "").startswith("torch."):
        signal.signal(child, signal.SIG_DFL)


class StopRequests:
    """The signal that asked the run to end, if any: received by this process, and agreed on by all processes.

    A signal raises `Interrupted` at once; within `deferred`, the first one waits for `raise_if_agreed`, and a second
    one raises at once. With `sent_twice`, a second one waits too: a launcher forwards to its processes the Ctrl-C
    that the terminal has already sent them.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.signum: int | None = None
        self.agreed: int | None = None
        self.sent_twice = False
        self._deferred = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within this block, a request waits for `raise_if_agreed`."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def agree(self, largest: int) -> None:
        """Take the largest of the processes' signals, or 0, as the one that all of them obey."""
        self.agreed = largest or None

    def raise_if_agreed(self) -> None:
        """Raise `Interrupted` if all processes have agreed to end."""
        if self.agreed is not None:
            raise Interrupted(self.agreed, self.run)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """The signal handler."""
        at_once = not self._deferred or (self.signum is not None and not self.sent_twice)
        self.signum = signum
        if at_once:
            raise Interrupted(signum, self.run)


@contextmanager
def handle_signals(run: Path) -> Iterator[StopRequests]:
    """Turn SIGINT and SIGTERM into requests to end the run; other handlers are back after the block."""
    requests = StopRequests(run)
    before = {}
    for signum in (signal.SIGINT, signal.SIGTERM):
        try:
            before[signum] = signal.signal(signum, requests.handle)
        except ValueError:  # only the main thread may set handlers; elsewhere the caller's stay
            break
    try:
        yield requests
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
