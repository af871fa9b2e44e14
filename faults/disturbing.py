"""Processes that are killed, asked to end, or whose writes fail, at a chosen point.

Commands run in forked processes, in which all modules are loaded already. What happens to them is counted in memory that
all processes of a job share: changes of the file system (files opened for writing, renamed, removed; folders made) and,
where a C compiler is at hand, single writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

SECONDS = 600.0  # in which a command has to end, on a machine that is busy with other things too
CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
AGENT = 5.0  # seconds after which the others are asked to end when a process was lost
SHIM = "METRIX_FAILING_WRITES"  # the path of the preloaded library, in the environment


class Disturbance(NamedTuple):
    """What happens to the processes of a job.

    kind    none; kill (all processes); kill one (the last one: rank 1, or a worker); term (SIGTERM to all);
            fail (a change fails), write (a write fails, or with error 0 writes only half); limit (no file may become
            longer than `at` bytes: a short write, then EFBIG); full (a disk of `at` bytes)
    at      number of the change or write, or bytes
    after   seconds, in place of a number
    """

    kind: str = "none"
    at: int = 0
    after: float = 0.0
    error: int = 0

    @property
    def fails(self) -> bool:
        """Whether something fails, but no process is ended."""
        return self.kind in ("fail", "write", "limit", "full")

    def __str__(self) -> str:
        named = errno.errorcode.get(self.error, "half of it")
        what = {"fail": f"change fails with {named}", "write": f"write ends with {named}"}.get(self.kind, self.kind)
        return f"{what} at {self.at}" if self.at else f"{what} after {self.after:.3f} s"


class Ended(NamedTuple):
    """How a command ended."""

    codes: list[int]  # of each process; negative: the signal
    errors: str
    changes: int  # of the file system
    writes: int
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether any process ended with another code than 0."""
        return any(self.codes)


class Shared:
    """Numbers that all processes of a job see: changes, writes, and the processes themselves."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4096)
        self.numbers = (ctypes.c_long * 64).from_buffer(self.memory)

    def join(self) -> None:
        """Enter this process among those of the job."""
        self.numbers[2] += 1
        self.numbers[2 + self.numbers[2]] = os.getpid()

    @property
    def processes(self) -> list[int]:
        """The processes that have entered, in order."""
        return list(self.numbers[3 : 3 + self.numbers[2]])

    def signal(self, number: int, processes: list[int]) -> None:
        """Send a signal, to this process last."""
        for process in sorted(processes, key=lambda one: one == os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def load_shim() -> Any:
    """The preloaded library that lets writes fail; None without one."""
    path = os.environ.get(SHIM)
    return ctypes.CDLL(path) if path else None


def preload_shim(again: list[str]) -> None:
    """Start the program again with the library preloaded, if it can be compiled; `again` are its arguments."""
    compiler = shutil.which("cc")
    if SHIM in os.environ or compiler is None or not sys.platform.startswith("linux"):
        return
    with tempfile.TemporaryDirectory(prefix="chaos") as folder:  # execve keeps it: see remove_shim
        library = Path(folder) / "failing_writes.so"
        source = Path(__file__).with_name("failing_writes.c")
        built = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], capture_output=True)
        if built.returncode == 0:
            environment = {**os.environ, "LD_PRELOAD": str(library), SHIM: str(library)}
            os.execve(sys.executable, [sys.executable, "-m", "faults", "chaos", *again], environment)


@contextlib.contextmanager
def remove_shim() -> Iterator[None]:
    """Remove the folder of the preloaded library, if there is one, at the end of the block."""
    try:
        yield
    finally:
        if path := os.environ.get(SHIM):
            shutil.rmtree(Path(path).parent, ignore_errors=True)


def start(folder: Path, command: list[str], processes: int, disturbance: Disturbance) -> Ended:
    """Run a command in forked processes and disturb it; `folder` is where it writes."""
    shared, began = Shared(), time.monotonic()
    said, saying = os.pipe()  # no file, which a limit on the length of files would cut short
    address = _free_port() if processes > 1 else 0
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.setsid()
                if processes > 1:
                    os.environ |= _as_torchrun(rank, processes, address)
                os.close(said)
                _run_command(folder, saying, command, disturbance, shared)
            os._exit(70)  # not reached
        children.append(child)
    os.close(saying)
    os.set_blocking(said, False)
    codes: dict[int, int] = {}
    text, lost = b"", 0.0
    deadline, pending = began + SECONDS, disturbance.after
    while len(codes) < processes:
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
        passed = time.monotonic()
        if pending and passed > began + pending:
            pending = 0.0
            _disturb(disturbance.kind, shared, children)
        if codes and any(codes.values()):  # as torchrun does
            lost = lost or passed
            if passed > lost + AGENT:
                lost = passed
                for child in children:
                    if child not in codes:
                        os.kill(child, signal.SIGTERM)
        if passed > deadline:
            text += f"\nno end after {SECONDS:g} s".encode()
            shared.signal(signal.SIGKILL, [*shared.processes, *children])
        text += _read_now(said)
        time.sleep(0.001)
    if disturbance.kind != "kill one":  # a worker that outlives its parent finishes its cell
        shared.signal(signal.SIGKILL, [p for p in shared.processes if p not in children])
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # loader processes
    text += _read_now(said)
    os.close(said)
    ended, seconds = [codes[child] for child in children], time.monotonic() - began
    return Ended(ended, text.decode(errors="replace"), shared.numbers[0], shared.numbers[1], seconds)


def _read_now(pipe: int) -> bytes:
    """What is in a pipe at the moment."""
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, 2**20)
    return b""


def _disturb(kind: str, shared: Shared, children: list[int] | None = None) -> None:
    everyone = list(dict.fromkeys([*(children or ()), *shared.processes]))
    if kind == "kill one":
        shared.signal(signal.SIGKILL, everyone[-1:])
    elif kind == "term":
        for leader in children or everyone:  # with the loader processes
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGTERM)
    else:
        shared.signal(signal.SIGKILL, everyone)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _as_torchrun(rank: int, processes: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    more = {"GROUP_RANK": 0, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "chaos"}
    return {name: str(value) for name, value in (numbers | more).items()}


def _run_command(folder: Path, stream: int, command: list[str], disturbance: Disturbance, shared: Shared) -> None:
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.environ["METRIX_CACHE"] = str(folder / "cache")
    shared.join()
    _watch_changes(f"{folder}/", disturbance, shared)
    if disturbance.kind == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (disturbance.at, disturbance.at))
    if (shim := load_shim()) is not None:
        at = disturbance.at if disturbance.kind == "write" else 0
        counter = ctypes.byref(shared.numbers, ctypes.sizeof(ctypes.c_long))
        shim.failing_writes_arm(f"{folder}/".encode(), counter, ctypes.c_long(at), disturbance.error)
    fork_workers(shared)
    from metrix.cli import app

    sys.argv = ["metrix", *command]
    _run_to_exit(app.main)


def _run_to_exit(action: Callable[[], object]) -> NoReturn:
    """Run what a forked process is for, and end the process with the exit code that Python would give it."""
    code = 1
    try:
        action()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:  # never back into the code that forked
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _watch_changes(root: str, disturbance: Disturbance, shared: Shared) -> None:
    """Count changes below a folder, and disturb the one that was chosen."""
    ends = disturbance.kind in ("kill", "kill one", "term")

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        path = os.fspath(arguments[0])
        if not isinstance(path, str) or not path.startswith(root):
            return
        if disturbance.kind == "fail" and event in ("os.remove", "os.rmdir"):  # neither needs room
            return
        shared.numbers[0] += 1
        if shared.numbers[0] != disturbance.at:
            return
        if disturbance.kind == "fail":
            raise OSError(disturbance.error, os.strerror(disturbance.error), path)
        if ends:
            _disturb(disturbance.kind, shared)

    sys.addaudithook(watch)


def fork_workers(shared: Shared) -> None:
    """Let `metrix reproduce` fork its workers, which otherwise spend seconds on importing torch."""
    from metrix.reproduce import running, worker

    class ForkedWorker:
        """As much of `subprocess.Popen` as a grid needs."""

        def __init__(self, command: Any, *, env: dict[str, str], **_: Any) -> None:
            pipes = [os.pipe() for _ in range(3)]
            self.pid = os.fork()
            if self.pid == 0:
                os.setsid()
                for number, (read, write) in enumerate(pipes):
                    os.dup2(read if number == 0 else write, number)
                    os.close(read)
                    os.close(write)
                sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
                shared.join()
                os.environ |= env
                _run_to_exit(worker.serve)
            self.stdin = os.fdopen(pipes[0][1], "w", encoding="utf-8")
            self.stdout = os.fdopen(pipes[1][0], encoding="utf-8")
            self.stderr = os.fdopen(pipes[2][0], encoding="utf-8")
            for number, (read, write) in enumerate(pipes):
                os.close(read if number == 0 else write)
            self.code: int | None = None

        def poll(self) -> int | None:
            if self.code is None:
                done, status = os.waitpid(self.pid, os.WNOHANG)
                self.code = os.waitstatus_to_exitcode(status) if done else None
            return self.code

        def wait(self) -> int:
            while self.poll() is None:
                time.sleep(0.002)
            assert self.code is not None
            return self.code

        def send_signal(self, number: int) -> None:
            os.kill(self.pid, number)

    class Replacement:
        """The module `subprocess`, seen from the grid."""

        PIPE, Popen = subprocess.PIPE, ForkedWorker

    running.subprocess = Replacement  # type: ignore[assignment]
    running.UPDATE_EVERY = 0.01
