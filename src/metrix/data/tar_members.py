"""The files in a tar file, found by reading its headers one after another; nothing is unpacked.

The formats are those that tar, Python and WebDataset write: ustar, GNU and pax, uncompressed. What a tar file can hold
beside plain files (links, devices, sparse files, names that lead out of it) is never read but listed as skipped. A tar
file that ends early or has a damaged header is an error, since what follows could not be found.

The label of a file is the text of its `KEY.cls`, or `label`, `class` or `cls` in its `KEY.json`, as in shards of
WebDataset, and otherwise the folder that it is in.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from metrix.data.paths import is_unicode, leaves_root
from metrix.errors import DataError
from metrix.messages import count

BLOCK = 512
MOST_BYTES = 1 << 29  # of a file, which is read at once
MOST_EXTENDED = 1 << 20  # bytes of a header with a long name
MOST_LABEL = 1 << 16  # bytes of a file with the label of another
UNREAD = 1 << 20  # bytes after the end mark from which on they are no padding
LABELS = (".cls", ".json")
LABEL_KEYS = ("label", "class", "cls")

ReadAt = Callable[[int, int], bytes]  # so many bytes from an offset on


class Member(NamedTuple):
    """A file in a tar file, and where its bytes are."""

    name: str
    offset: int
    size: int
    label: str | None  # None: nothing says what class it is of


@dataclass
class Listing:
    """The files in a tar file by name, what is not read with the reason, and remarks on the whole."""

    members: list[Member] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Header(NamedTuple):
    name: bytes
    kind: bytes
    size: int
    sparse: bool
    start: int  # of the content
    end: int  # where the next header is


def list_members(read: ReadAt, size: int, path: Path) -> Listing:
    """The files in a tar file, without those that are labels of others.

    Args:
        read: reads from the file.
        size: of the file, in bytes.
        path: of the file, for errors.

    Raises:
        DataError: it is compressed, not a tar file, or damaged.
    """
    found = Listing()
    files: dict[str, tuple[int, int]] = {}
    labels: dict[str, str] = {}
    offset, headers, repeated = 0, 0, 0
    while offset < size:
        header = _read_header(read, offset, size, path, headers)
        if header is None:
            break
        offset, headers = header.end, headers + 1
        name = posixpath.normpath(header.name.decode("utf-8", "surrogateescape"))
        if header.kind == b"5" or _is_hidden(name):
            continue
        if reason := _refuse(header, name):
            found.skipped.append((name if is_unicode(name) else ascii(name), reason))
        elif (suffix := posixpath.splitext(name)[1].lower()) in LABELS:
            if header.size <= MOST_LABEL and (label := _parse_label(suffix, read(header.start, header.size))):
                labels[_key(name)] = label
        else:
            repeated += name in files
            files[name] = (header.start, header.size)
    else:
        found.notes.append("has no end mark: it may have been cut short")
    if size - offset > UNREAD:
        found.notes.append(f"has {size - offset:,} bytes after its end mark, which are not read")
    if repeated:
        found.notes.append(f"has {count(repeated, 'file')} again under the same name; the last one counts")
    for name in sorted(files):
        folder = posixpath.basename(posixpath.dirname(name))
        found.members.append(Member(name, *files[name], labels.get(_key(name)) or folder or None))
    return found


def _read_header(read: ReadAt, offset: int, size: int, path: Path, number: int) -> _Header | None:
    """The header of a member, with what extended headers before it say; None at the end mark."""
    long_name, records = b"", dict[bytes, bytes]()
    while True:
        block = read(offset, BLOCK)
        if len(block) < BLOCK:
            raise _damaged(path, offset, number, "it ends within a header")
        if not block.strip(b"\0"):
            return None
        _require_checksum(block, path, offset, number)
        kind, start = block[156:157], offset + BLOCK
        length = _parse_number(block[124:136])
        if kind not in b"LKxgX":
            break
        if not 0 <= length <= MOST_EXTENDED:
            raise _damaged(path, offset, number, f"a name of {length:,} bytes")
        content = read(start, length)
        if len(content) < length:
            raise _damaged(path, offset, number, "it ends within a name")
        if kind == b"L":
            long_name = content.rstrip(b"\0")
        elif kind in b"xX":
            records |= _parse_records(content)
        offset = start + _round_up(length)
    if b"size" in records:
        length = int(records[b"size"]) if records[b"size"].isdigit() else -1
    sparse = kind == b"S" or any(key.startswith(b"GNU.sparse") for key in records)
    more = kind == b"S" and block[482:483] != b"\0"
    while more:  # the map of a sparse file goes on in blocks of its own
        more = read(start, BLOCK)[504:505] not in (b"\0", b"")
        start += BLOCK
    content_length = 0 if kind in b"123456" else length
    end = start + _round_up(content_length)
    if length < 0 or end > size:
        raise _damaged(path, offset, number, "it ends within a member")
    name = records.get(b"path") or long_name or _read_name(block)
    if kind == b"\0" and name.endswith(b"/"):  # how the oldest tar writes a folder
        kind = b"5"
    return _Header(name, kind, length, sparse, start, end)


def _read_name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _refuse(header: _Header, name: str) -> str:
    """Why a member is not read; empty for a plain file."""
    if header.kind in (b"1", b"2"):
        return "a link"
    if header.sparse:
        return "a sparse file"
    if header.kind not in (b"0", b"\0", b"7"):
        return "not a plain file"
    if not is_unicode(name):
        return "its name is not text in UTF-8"
    if leaves_root(name) or b".." in header.name.split(b"/"):
        return "its name leads out of the tar file"
    if header.size > MOST_BYTES:
        return f"more than {MOST_BYTES:,} bytes"
    return ""


def _require_checksum(block: bytes, path: Path, offset: int, number: int) -> None:
    given = _parse_number(block[148:156])
    if given == sum(block) - sum(block[148:156]) + 8 * 32:
        return
    if number == 0 and offset == 0:
        packed = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}.get(block[:2])
        raise DataError(
            f"{path}: expected an uncompressed tar file, got one compressed by {packed}, which has no random access; "
            "decompress it"
            if packed
            else f"{path}: expected a tar file, got something else"
        )
    raise _damaged(path, offset, number, "a header has another checksum")


def _damaged(path: Path, offset: int, number: int, what: str) -> DataError:
    return DataError(f"{path} is damaged at byte {offset:,}, after {count(number, 'member')}: {what}; copy it again")


def _parse_number(digits: bytes) -> int:
    """A number in octal digits or, if it is large, in binary; -1 if it is neither."""
    if digits[:1] == b"\x80":
        return int.from_bytes(digits[1:], "big")
    text = digits.split(b"\0", 1)[0].strip()
    try:
        return int(text or b"0", 8) if not text.startswith(b"-") else -1
    except ValueError:
        return -1


def _parse_records(content: bytes) -> dict[bytes, bytes]:
    """The records `LENGTH KEY=VALUE` of a pax header; what does not have this form ends them."""
    records: dict[bytes, bytes] = {}
    start = 0
    while start < len(content):
        digits, space, _ = content[start : start + 20].partition(b" ")
        if not space or not digits.isdigit() or int(digits) <= len(digits) + 1:
            break
        key, equals, value = content[start + len(digits) + 1 : start + int(digits) - 1].partition(b"=")
        if equals:
            records[key] = value
        start += int(digits)
    return records


def _parse_label(suffix: str, content: bytes) -> str:
    try:
        value = content.decode() if suffix == ".cls" else json.loads(content)
    except (ValueError, RecursionError):
        return ""
    if isinstance(value, dict):
        value = next((value[key] for key in LABEL_KEYS if key in value), "")
    return str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _key(name: str) -> str:
    """What an image and its label have in common: the path up to the first dot of the file's name."""
    folder, file = posixpath.split(name)
    return posixpath.join(folder, file.partition(".")[0])


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part != ".." for part in name.split("/"))


def _round_up(length: int) -> int:
    return -(-length // BLOCK) * BLOCK
