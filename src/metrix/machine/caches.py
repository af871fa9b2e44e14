"""What metrix keeps in its cache folder: how large it is, when it was last used, and how to delete it safely.

Everything there can be computed again. Only entries that metrix made are touched, known by their names; links are never
followed, and what a process has open or is building stays. An entry is renamed before it is deleted, so that a half
deleted one is never used.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, unknown_choice
from metrix.files import cache_folder, is_temporary, lock

DAY = 86400.0
_PRUNED = ".pruned-"


@dataclass(frozen=True)
class CacheKind:
    """A folder of the cache; `line` says what is in it, and `pattern` what the names of its entries look like."""

    line: str
    pattern: str


KINDS: dict[str, CacheKind] = {
    "images": CacheKind("decoded, resized photos (--cache disk)", r"[0-9a-f]{32}(\.building)?"),
    "activations": CacheKind("of frozen networks (--freeze-to, --views)", r"activations-[0-9a-f]{20}"),
    "decoded": CacheKind("which photos can be read, and their sizes", r"[0-9a-f]{32}\.json"),
    "members": CacheKind("indexes of tar files in folders that are read-only", r"[0-9a-f]{32}\.members"),
    "tables": CacheKind(
        "indexes of images in Parquet files, and those of large row groups", r"[0-9a-f]{32}\.(npy|images)"
    ),
    "glyphs": CacheKind("the drawn characters of glyphs and glyphs-mini", r"glyphs(-mini)?-.+\.npz"),
    "pools": CacheKind("embeddings of unlabelled images (metrix suggest)", r"[0-9a-f]{32}"),
    "maps": CacheKind("t-SNE maps of metrix explore and serve", r"[0-9a-f]{32}\.npy"),
}


@dataclass(frozen=True)
class CacheEntry:
    """A file or a folder of the cache."""

    kind: str
    path: Path
    size: int  # bytes on disk
    used: float  # seconds since 1970

    @property
    def days_unused(self) -> float:
        """How long ago it was last used."""
        return max(0.0, (time.time() - self.used) / DAY)


@dataclass(frozen=True)
class Pruned:
    """What was deleted, or would be, and what had to stay."""

    deleted: tuple[CacheEntry, ...]
    kept: tuple[tuple[CacheEntry, str], ...]  # with the reason

    @property
    def size(self) -> int:
        """Bytes of what was deleted."""
        return sum(entry.size for entry in self.deleted)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "bytes": self.size,
            "deleted": [{"path": str(one.path), "kind": one.kind, "bytes": one.size} for one in self.deleted],
            "kept": [{"path": str(one.path), "kind": one.kind, "reason": reason} for one, reason in self.kept],
        }


def list_cache(kinds: Iterable[str] = ()) -> list[CacheEntry]:
    """The entries of the cache folder, of some kinds or of all; nothing else that may be there."""
    chosen = list(kinds) or list(KINDS)
    for name in chosen:
        if name not in KINDS:
            raise unknown_choice("kind of cached files", name, KINDS)
    return [entry for name in chosen for entry in _entries(name)]


def _entries(kind: str) -> Iterator[CacheEntry]:
    folder = cache_folder() / kind
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        ours = re.fullmatch(KINDS[kind].pattern, path.name) or path.name.startswith(_PRUNED) or is_temporary(path)
        if ours and not path.is_symlink():
            with suppress(FileNotFoundError):  # another process was faster
                yield CacheEntry(kind, path, *_measure(path))


def _measure(path: Path) -> tuple[int, float]:
    """Bytes on disk, and when the entry was last read or written."""
    size, used = 0, 0.0
    for file in _files(path):
        with suppress(FileNotFoundError):
            status = file.lstat()
            size += getattr(status, "st_blocks", -(-status.st_size // 512)) * 512
            used = max(used, status.st_mtime, status.st_atime)
    return size, used or path.lstat().st_mtime


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for place, _, names in os.walk(path):
        yield from (Path(place) / name for name in names)


def prune_cache(
    kinds: Sequence[str] = (),
    *,
    unused_days: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Delete cached files.

    Args:
        kinds: names of `KINDS`; all by default
        unused_days: only what was not used for so many days
        max_bytes: only as much, the longest unused first, as it takes until the rest is no larger than this
        dry_run: delete nothing, and say what would be deleted
    """
    if unused_days is not None and unused_days < 0:
        raise InvalidInput(f"unused_days: expected a number of days ≥ 0, got {unused_days:g}")
    if max_bytes is not None and max_bytes < 0:
        raise InvalidInput(f"max_bytes: expected a number of bytes ≥ 0, got {max_bytes}")
    entries = sorted(list_cache(kinds), key=lambda entry: entry.used)
    left, chosen = sum(entry.size for entry in entries), []
    for entry in entries:
        old = unused_days is None or entry.days_unused >= unused_days
        if old and (max_bytes is None or left > max_bytes):
            chosen.append(entry)
            left -= entry.size
    in_use = find_open_files(cache_folder())
    deleted: list[CacheEntry] = []
    kept: list[tuple[CacheEntry, str]] = []
    for entry in chosen:
        reason = "in use by a process" if _is_open(entry.path, in_use) else "" if dry_run else _delete(entry)
        if reason:
            kept.append((entry, reason))
        else:
            deleted.append(entry)
    return Pruned(tuple(deleted), tuple(kept))


def _is_open(path: Path, in_use: set[str]) -> bool:
    real = os.path.realpath(path)
    return any(name == real or name.startswith(real + os.sep) for name in in_use)


def _delete(entry: CacheEntry) -> str:
    """Delete an entry; returns why it had to stay, or nothing."""
    path = entry.path
    with ExitStack() as stack:
        if entry.kind in ("images", "pools") and not path.name.startswith("."):
            own = path.with_name(f"{path.name.partition('.')[0]}.lock")
            try:
                stack.enter_context(lock(own, wait=False))
            except BlockingIOError:
                return "being built by a process"
            except OSError as error:
                return str(error)
        doomed = path.with_name(f"{_PRUNED}{secrets.token_hex(4)}")
        try:
            path.rename(doomed)
        except FileNotFoundError:
            return ""  # another process was faster
        except OSError as error:
            return error.strerror or str(error)
    if doomed.is_dir():
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink(missing_ok=True)
    return "could not be deleted completely" if doomed.exists() else ""


def find_open_files(folder: Path) -> set[str]:
    """Files below a folder that a process of this user has open or mapped, as far as the system tells (Linux does)."""
    below = os.path.realpath(folder) + os.sep
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.update(name for name in map(os.readlink, (process / "fd").iterdir()) if name.startswith(below))
        with suppress(OSError):
            for line in (process / "maps").read_text("utf-8", errors="replace").splitlines():
                name = line.partition("/")[2]
                if name and f"/{name}".startswith(below):
                    found.add(f"/{name}")
    return found


def summarise_cache() -> dict[str, Any]:
    """The cache folder with the number, size and last use of each kind of entries; plain values, ready for JSON."""
    folder, entries = cache_folder(), list_cache()
    kinds = {}
    for name in KINDS:
        own = [entry for entry in entries if entry.kind == name]
        kinds[name] = {
            "entries": len(own),
            "bytes": sum(entry.size for entry in own),
            "days_unused": round(min(entry.days_unused for entry in own), 1) if own else None,
        }
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return {
        "folder": str(folder),
        "exists": folder.is_dir(),
        "writable": os.access(there, os.W_OK),
        "free_bytes": shutil.disk_usage(there).free,
        "bytes": sum(entry.size for entry in entries),
        "kinds": kinds,
    }
