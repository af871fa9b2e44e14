"""The index of the members of a tar file: where each one is, in a file beside it that is mapped, not loaded.

A line of JSON says what the file is and of which state of the tar file; then follow rows, sorted by a hash of the name,
the names, and JSON with the labels and what was skipped. The file is `photos-000.tar.members` beside the tar file or,
where that cannot be written, in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.data.tar_members import Listing, Member, ReadAt, list_members
from metrix.files import cache_folder, mark_used, warn_not_cached, write_atomically

SUFFIX = ".members"
FORMAT = 1
HEADER = 256  # bytes
ROW = np.dtype(
    [("key", "<u8"), ("offset", "<i8"), ("size", "<i8"), ("start", "<i8"), ("length", "<i4"), ("label", "<i4")]
)


class ImageStatus(NamedTuple):
    """The size of an image, or of a file with many, in bytes, and when the file was last changed."""

    size: int
    mtime_ns: int


class MemberIndex:
    """The members of a tar file, by their names."""

    def __init__(self, content: bytes | mmap.mmap) -> None:
        about = json.loads(content[:HEADER])
        self._content = content
        self.of = ImageStatus(*about["of"])
        self._names = HEADER + about["members"] * ROW.itemsize
        self._rest = self._names + about["names"]
        self._checksum = int(about["crc32"])
        if about["format"] != FORMAT or len(content) != self._rest + about["rest"]:
            raise ValueError("another format, or cut short")
        self._rows: NDArray[np.void] = np.frombuffer(content, ROW, about["members"], HEADER)
        self._keys = self._rows["key"]

    def is_sound(self) -> bool:
        """Whether the checksum is right."""
        return zlib.crc32(memoryview(self._content)[HEADER:]) == self._checksum

    def find(self, name: str) -> tuple[int, int] | None:
        """Where the bytes of a member start, and how many there are; None if there is no such member."""
        wanted = name.encode("utf-8", "surrogateescape")
        key = np.uint64(_hash(wanted))
        row = int(np.searchsorted(self._keys, key))
        while row < len(self._keys) and self._keys[row] == key:
            _, offset, size, start, length, _ = self._rows[row].item()
            if self._content[self._names + start : self._names + start + length] == wanted:
                return offset, size
            row += 1
        return None

    def list(self) -> Listing:
        """All members by name, what was skipped, and remarks on the tar file."""
        rest = json.loads(self._content[self._rest :])
        names = self._content[self._names : self._rest]
        members = [
            Member(names[start : start + length].decode(), offset, size, None if label < 0 else rest["labels"][label])
            for _, offset, size, start, length, label in self._rows.tolist()
        ]
        return Listing(sorted(members), [(name, reason) for name, reason in rest["skipped"]], rest["notes"])


def open_member_index(path: str, status: ImageStatus, read: ReadAt) -> MemberIndex:
    """The index of the members of a tar file in a certain state, made anew if there is none of that state.

    Args:
        path: of the tar file.
        status: its size, and when it was changed.
        read: reads from it.

    Raises:
        DataError: it is not a tar file, or damaged.
    """
    beside = Path(f"{path}{SUFFIX}")
    name = hashlib.sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    cached = cache_folder() / "members" / f"{name}{SUFFIX}"
    for file in (beside, cached):
        known = _open(file, status)
        if known is not None:
            if file == cached:
                mark_used(file)
            return known
    content = _compose(list_members(read, status.size, Path(path)), status)
    failure: OSError | None = None
    for file in (beside, cached):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, lambda temporary: temporary.write_bytes(content))
            return _open(file, status) or MemberIndex(content)
        except OSError as error:
            failure = error
    assert failure is not None
    warn_not_cached("indexes of tar files", failure)
    return MemberIndex(content)


def _open(file: Path, status: ImageStatus) -> MemberIndex | None:
    """The index in a file; None if there is none, or one of another state of the tar file, or a damaged one."""
    try:
        with file.open("rb") as opened:
            found = MemberIndex(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.of == status and found.is_sound() else None


def _compose(listing: Listing, status: ImageStatus) -> bytes:
    """The content of an index file."""
    labels = {label: number for number, label in enumerate(dict.fromkeys(one.label for one in listing.members))}
    labels.pop(None, None)
    numbers: dict[str | None, int] = {None: -1, **{label: n for n, label in enumerate(labels)}}
    names = [one.name.encode() for one in listing.members]
    rows = np.empty(len(names), ROW)
    rows["key"] = [_hash(name) for name in names]
    rows["offset"] = [one.offset for one in listing.members]
    rows["size"] = [one.size for one in listing.members]
    rows["length"] = [len(name) for name in names]
    rows["start"] = np.cumsum(rows["length"], dtype=np.int64) - rows["length"]
    rows["label"] = [numbers[one.label] for one in listing.members]
    rows = np.sort(rows, order="key")
    text = b"".join(names)
    rest = json.dumps({"labels": list(labels), "skipped": listing.skipped, "notes": listing.notes}).encode()
    body = rows.tobytes() + text + rest
    about = {
        "format": FORMAT,
        "of": status,
        "members": len(names),
        "names": len(text),
        "rest": len(rest),
        "crc32": zlib.crc32(body),
    }
    return json.dumps(about).encode().ljust(HEADER - 1) + b"\n" + body


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
