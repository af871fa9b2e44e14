"""Images in tar files ("shards") and tables, read where they are: `photos-000.tar/cats/1.jpg` is the path of one.

A process keeps the files that it read last open, and its threads read from any place of them.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from metrix.data.image_tables import SUFFIXES as TABLES
from metrix.data.image_tables import ImageTable
from metrix.data.member_index import ImageStatus, open_member_index
from metrix.data.tar_members import Listing, ReadAt

SUFFIX = ".tar"
MOST_OPEN = 128  # shards and tables in a process, with two files each
_IN_FILE = re.compile(rf"({'|'.join(map(re.escape, (SUFFIX, *TABLES)))})(?=[/\\])", re.IGNORECASE)

PathText = str | os.PathLike[str]
Opened = TypeVar("Opened")


class NotRegularError(OSError):
    """A folder, a pipe or a device in the place of an image."""


class Shard:
    """An open tar file; threads, and processes that are forked, may read from it at the same time."""

    def __init__(self, path: str, status: ImageStatus) -> None:
        self.path, self.status = path, status
        number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, number)  # once nobody reads from it
        self._read = _reader(number)
        self._index = open_member_index(path, status, self._read)

    def find(self, name: str) -> tuple[int, int]:
        """Where the bytes of a member start, and how many there are.

        Raises:
            FileNotFoundError: there is no such member.
        """
        found = self._index.find(name)
        if found is None:
            raise FileNotFoundError(f"{self.path} has no member {name}")
        return found

    def stat(self, name: str) -> ImageStatus:
        """The size of a member, and when the shard was changed.

        Raises:
            FileNotFoundError: there is no such member.
        """
        return ImageStatus(self.find(name)[1], self.status.mtime_ns)

    def read(self, name: str) -> bytes:
        """The bytes of a member.

        Raises:
            FileNotFoundError: there is no such member.
        """
        offset, size = self.find(name)
        content = self._read(offset, size)
        if len(content) < size:
            raise OSError(f"{self.path} ends within {name}")
        return content

    def list(self) -> Listing:
        """All members by name, what was skipped, and remarks on the file."""
        return self._index.list()


def open_shard(path: PathText) -> Shard:
    """A tar file with the index of its members, which is made if there is none.

    Raises:
        OSError: there is no such file.
        DataError: it is not a tar file, or damaged.
    """
    return _shards.get(os.fspath(path))


def open_table(path: PathText) -> ImageTable:
    """A Parquet or Arrow file with images.

    Raises:
        OSError: there is no such file.
    """
    return _tables.get(os.fspath(path))


def find_member(path: PathText) -> tuple[Shard | ImageTable, str] | None:
    """The tar file or table that a path leads into, and the name of the image in it; None if none is on the way.

    Raises:
        DataError: the tar file is damaged.
    """
    text = os.fspath(path)
    for found in _IN_FILE.finditer(text):
        place = text[: found.end()]
        if os.path.isfile(place):
            name = text[found.end() + 1 :].replace(os.sep, "/")
            return (open_shard(place) if found[0].lower() == SUFFIX else open_table(place)), name
    return None


def image_status(path: PathText) -> ImageStatus:
    """Size and modification time of an image: a regular file, or in a tar file or table, which has that file's time.

    Raises:
        NotRegularError: it is a folder, a pipe or a device.
        OSError: there is none.
        DataError: the tar file or the table is damaged.
    """
    try:
        status = os.stat(path)
    except (NotADirectoryError, FileNotFoundError):
        member = find_member(path)
        if member is None:
            raise
        return member[0].stat(member[1])
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(f"{os.fspath(path)} is not a regular file")
    return ImageStatus(status.st_size, status.st_mtime_ns)


class _OpenFiles(Generic[Opened]):
    """The files that are open in this process: those that were used last."""

    def __init__(self, opener: Callable[[str, ImageStatus], Opened]) -> None:
        self._opener = opener
        self._open: OrderedDict[str, tuple[ImageStatus, Opened]] = OrderedDict()
        self._alone = threading.Lock()

    def get(self, path: str) -> Opened:
        found = os.stat(path)
        status = ImageStatus(found.st_size, found.st_mtime_ns)
        with self._alone:
            known = self._open.get(path)
            if known is not None and known[0] == status:
                self._open.move_to_end(path)
                return known[1]
        opened = self._opener(
            path, status
        )  # not under the lock: a dead network file system holds up its own files only
        with self._alone:
            self._open[path] = status, opened
            self._open.move_to_end(path)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return opened

    def forget(self) -> None:
        """Start anew in a forked process, which does not have the thread that may hold the lock."""
        self._alone = threading.Lock()


_shards = _OpenFiles(Shard)
_tables = _OpenFiles(ImageTable)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_shards.forget)
    os.register_at_fork(after_in_child=_tables.forget)


def _reader(number: int) -> ReadAt:
    """Reads from a place of an open file."""
    alone = threading.Lock()

    def read(offset: int, size: int) -> bytes:
        content = b""
        while len(content) < size:  # one call may give less than it is asked for
            more = read_once(offset + len(content), size - len(content))
            if not more:
                break
            content = content + more if content else more
        return content

    def read_once(offset: int, size: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(number, size, offset)
        with alone:  # Windows has one position for all who read
            os.lseek(number, offset, os.SEEK_SET)
            return os.read(number, size)

    return read
