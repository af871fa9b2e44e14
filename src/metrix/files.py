"""Where generated files are kept, and how they are written: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def cache_folder() -> Path:
    """The folder of generated files: `METRIX_CACHE`, else `metrix` in the user's cache folder."""
    if own := os.environ.get("METRIX_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "metrix"


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when the block ends well.

    >>> with atomic_file(Path("index.json")) as file:  # doctest: +SKIP
    ...     file.write(b"{}")
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold a lock file, so that of several processes one builds and the others wait for it.

    The lock ends with the process, also when it is killed. Where the system has no file locks, nothing
    is held: the atomic rename still keeps the result whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
