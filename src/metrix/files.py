"""Files that metrix generates: where they are cached, atomic writes, and locks between processes."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import secrets
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from metrix.errors import InvalidInput, MetrixWarning

Stored = TypeVar("Stored")


def cache_folder() -> Path:
    """The folder of cached files: the variable `METRIX_CACHE` if it is set, else the user's cache folder.

    The user's cache folder is the platform's: `~/.cache/metrix` on Linux (or `$XDG_CACHE_HOME/metrix`),
    `~/Library/Caches/metrix` on macOS, `%LOCALAPPDATA%\\metrix\\Cache` on Windows. It may not exist yet.
    """
    if own := os.environ.get("METRIX_CACHE"):
        return Path(own).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("metrix", appauthor=False)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file such that it appears under its name complete, or not at all.

    A reader, or a crash at any moment, finds the previous content or the new one, never a part. The file gets
    the permissions of any new file (the umask decides). What a killed process left of the same file is deleted: see
    `remove_abandoned`.

    Args:
        path: the file to write; its folder must exist.
        write: called with a temporary path in the same folder, which it must create and fill.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_atomically(folder / "a.bin", lambda temporary: temporary.write_bytes(b"abc"))
    >>> [file.name for file in folder.iterdir()]
    ['a.bin']
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}-{_here()}-{os.getpid():x}")
    try:
        with temporary.open("wb") as file:
            permissions = os.fstat(file.fileno()).st_mode & 0o777
        write(temporary)
        if temporary.stat().st_mode & 0o777 != permissions:  # safetensors writes files for the owner only
            temporary.chmod(permissions)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    remove_abandoned(path)


def mark_used(path: Path) -> None:
    """Note on a cached file that it was used now, for `metrix cache prune`; systems may not note reading.

    As nothing is written again, this is also the moment to delete what killed processes left of this file.
    """
    with contextlib.suppress(OSError):
        os.utime(path)
    remove_abandoned(path)


_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(?:-(?P<where>[0-9a-f]{6})-(?P<process>[0-9a-f]+))?")


def is_temporary(path: Path) -> bool:
    """Whether a file has the name of one that `write_atomically` has not finished.

    >>> is_temporary(Path("run/.config.yaml.0a1b2c3d")), is_temporary(Path("run/config.yaml"))
    (True, False)
    """
    return _TEMPORARY.fullmatch(path.name) is not None


ABANDONED = 3600.0  # seconds after which an unfinished file that nobody has written to is that of a killed process


def remove_abandoned(path: Path) -> None:
    """Delete what killed processes left of earlier attempts to write this file.

    The name of an unfinished file says which process writes it: if that ended, the file is deleted at once. If it
    cannot be known (another machine or container shares the folder), the file is deleted once it is an hour old.
    """
    with contextlib.suppress(OSError):
        for other in path.parent.glob(f".{glob.escape(path.name)}.*"):
            _remove_if_abandoned(other, ABANDONED)


def remove_temporaries(folder: Path, older_than: float = 0.0) -> None:
    """Delete what killed processes left of `write_atomically` in a folder (not below it).

    Args:
        folder: may be missing.
        older_than: age in seconds from which on files are deleted whose writer may still run; 0 is for folders that
            no other process writes to.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        _remove_if_abandoned(path, older_than)


def _remove_if_abandoned(path: Path, older_than: float) -> None:
    """Delete an unfinished file whose writer has ended, or that is `older_than` seconds old."""
    matched = _TEMPORARY.fullmatch(path.name)
    with contextlib.suppress(OSError):
        if matched is None or not path.is_file():
            return
        ended = matched["where"] == _here() and not _is_running(int(matched["process"], 16))
        if ended or time.time() - path.stat().st_mtime >= older_than:
            path.unlink()


@functools.cache
def _here() -> str:
    """Six digits for where process numbers mean the same: this machine since it started, and this container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii"), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:6]


def _is_running(process: int) -> bool:
    """Whether a process of this machine may still run; True if that cannot be known."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's
        return True
    with contextlib.suppress(OSError):  # a zombie has ended, although nobody has asked how
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return state[:1] not in ([b"Z"], [b"X"])
    return True


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: object, indent: int | None = 2) -> None:
    """Write a JSON file in UTF-8, atomically; `indent=None` puts everything on one line."""
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=False) + "\n")


def parse_stored(kind: type[Stored], text: str, path: Path) -> Stored:
    """What metrix wrote to a file as JSON, as an instance of a dataclass or a pydantic model.

    Raises:
        InvalidInput: it is not what was written; the message names the file, the first value that is wrong, and why.

    >>> parse_stored(dict[str, int], '{"epoch": 3}', Path("progress.json"))
    {'epoch': 3}
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise InvalidInput(f"{path} is damaged: {where}{first['msg']}") from error


def describe_failure(error: Exception) -> str:
    """Why reading or writing a file failed, in the words of the system if it has some.

    >>> describe_failure(OSError(28, "No space left on device")), describe_failure(OSError("0 bytes written"))
    ('No space left on device', '0 bytes written')
    """
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def warn_not_cached(what: str, error: OSError) -> None:
    """Warn that something cannot be kept in the cache folder, and has to be computed again next time."""
    warnings.warn(
        f"{what} are not kept: the cache folder {cache_folder()} cannot be written ({describe_failure(error)}); "
        "METRIX_CACHE sets another",
        MetrixWarning,
        stacklevel=3,
    )


@contextlib.contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file while the block runs; other processes wait at the same lock.

    The operating system releases the lock when the process ends, also when it is killed. The (empty) lock file
    stays, and its folder is created if necessary.

    Args:
        path: the lock file.
        wait: if another process holds the lock, wait for it; False raises `BlockingIOError` instead.

    >>> import tempfile
    >>> with lock(Path(tempfile.mkdtemp()) / "images.lock"):
    ...     pass  # at most one process at a time is here
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(path)
    try:
        held.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise BlockingIOError(f"another process holds the lock {path}") from None
    try:
        yield
    finally:
        held.release()
