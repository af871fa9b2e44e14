"""Files with the same content, and vectors that are equal, in a dataset."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from metrix.data.catalogue import Catalogue
from metrix.data.shards import find_member, image_status
from metrix.messages import count, first_few


class Copy(NamedTuple):
    """An image (or vector) with the content of another one, which comes first in the catalogue."""

    path: str
    other: str
    same_class: bool


def find_copies(catalogue: Catalogue) -> list[Copy]:
    """Images whose file has the content of an earlier one; equal vectors. Nothing of what is in memory as pixels."""
    groups: dict[int, dict[str, int]] = defaultdict(dict)  # paths with a position each, by the size of the file
    if catalogue.root is None and catalogue.vectors is None:
        return []
    for position, path in enumerate(catalogue.paths):
        size = 0 if catalogue.vectors is not None else image_status(catalogue.file(position)).size
        groups[size].setdefault(path, position)
    copies = []
    for files in groups.values():
        first: dict[bytes, str] = {}
        for path, position in files.items() if len(files) > 1 else ():
            other = first.setdefault(_digest(catalogue, position), path)
            if other != path:
                same = bool(catalogue.labels[files[other]] == catalogue.labels[position])
                copies.append(Copy(path, other, same))
    return copies


def describe_copies(copies: Sequence[Copy], noun: str) -> list[str]:
    """Notes on copies: in another class, where one of the two labels must be wrong, and in the same."""
    notes, like = [], "with the same content as" if noun == "image" else "equal to"
    across = sorted(f"{one.path} and {one.other}" for one in copies if not one.same_class)
    if across:
        notes.append(f"{count(len(across), noun)} {like} one of another class: {first_few(across)}")
    within = sorted(f"{one.path} and {one.other}" for one in copies if one.same_class)
    if within:
        notes.append(f"{count(len(within), noun)} {like} another of its class: {first_few(within)}")
    return notes


def _digest(catalogue: Catalogue, position: int) -> bytes:
    if catalogue.vectors is not None:
        return hashlib.sha256(catalogue.vectors[position].tobytes()).digest()
    return digest_file(catalogue.file(position))


def digest_file(path: Path) -> bytes:
    """SHA-256 of an image file, or of a member of a tar file."""
    if member := find_member(path):
        return hashlib.sha256(member[0].read(member[1])).digest()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.digest()
