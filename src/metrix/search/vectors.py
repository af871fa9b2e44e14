"""Vectors (n, d) in one file or several, one after another, memory-mapped: nothing is read but what is used."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metrix.errors import DataError

CONVERTED_ROWS = 65_536  # of half precision, converted at a time
GIVEN_BACK_FROM = 2**30  # bytes of a file whose pages a process does not keep, once rows here and there are read


class MappedVectors:
    """Vectors of one or more arrays, in float32 or float16; what is read is float32.

    >>> vectors = MappedVectors([np.eye(2, dtype=np.float32), np.ones((1, 2), np.float16)])
    >>> vectors.shape, vectors[np.array([2, 0])].tolist()
    ((3, 2), [[1.0, 1.0], [1.0, 0.0]])
    """

    def __init__(self, parts: Sequence[NDArray[np.floating]]) -> None:
        self.parts = list(parts)
        self._ends = np.cumsum([len(part) for part in self.parts])

    @classmethod
    def open(cls, paths: Sequence[Path]) -> MappedVectors:
        """The vectors of .npy files of one dimension.

        Raises:
            FileNotFoundError: one is missing.
            DataError: one is damaged, or of another dimension.
        """
        parts: list[NDArray[np.floating]] = []
        for path in paths:
            try:
                part = np.load(path, mmap_mode="r", allow_pickle=False)
            except FileNotFoundError:
                raise
            except Exception as error:  # damaged headers are parsed as Python, with all kinds of exceptions
                raise DataError(f"{path}: expected vectors, got a damaged file ({error}); build it anew") from error
            same = not parts or part.shape[1:] == parts[0].shape[1:]
            if part.ndim != 2 or part.dtype not in (np.float32, np.float16) or not same:
                raise DataError(
                    f"{path}: expected vectors (n, d) in float32 or float16, got an array of shape {part.shape} and "
                    f"type {part.dtype}; build the index anew"
                )
            parts.append(part)
        return cls(parts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return len(self), int(self.parts[0].shape[1])

    @property
    def nbytes(self) -> int:
        """The size of the files."""
        return sum(part.nbytes for part in self.parts)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Some vectors; a slice of one file in float32 is a view."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            pieces = [part[max(start - first, 0) : max(stop - first, 0)] for first, part in self._starts()]
            pieces = [piece for piece in pieces if len(piece)] or [self.parts[0][:0]]
            return np.asarray(pieces[0] if len(pieces) == 1 else np.concatenate(pieces), dtype=np.float32)
        found = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        part_of = np.searchsorted(self._ends, rows, side="right")
        for number, (first, part) in enumerate(self._starts()):
            here = np.flatnonzero(part_of == number)
            if len(here):
                found[here] = part[rows[here] - first]
                _give_back(part)
        return found

    def bounds(self) -> Iterator[tuple[int, int]]:
        """The first row of each block, and the one after its last."""
        for first, part in self._starts():
            rows = max(1, len(part)) if part.dtype == np.float32 else CONVERTED_ROWS
            for at in range(0, len(part), rows):
                yield first + at, first + min(at + rows, len(part))

    def blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """The first row of a block and its vectors, over all: files in float32 as they are, others converted."""
        for first, part in self._starts():
            if part.dtype == np.float32:
                yield first, np.asarray(part, dtype=np.float32)
                continue
            for at in range(0, len(part), CONVERTED_ROWS):
                yield first + at, np.asarray(part[at : at + CONVERTED_ROWS], dtype=np.float32)

    def _starts(self) -> Iterator[tuple[int, NDArray[np.floating]]]:
        first = 0
        for part in self.parts:
            yield first, part
            first += len(part)


def _give_back(part: NDArray[np.floating]) -> None:
    """Leave the pages of a large file to the system's cache alone, which has them until memory is short."""
    mapped = getattr(part, "_mmap", None)
    if mapped is not None and part.nbytes >= GIVEN_BACK_FROM and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
