"""Embeddings of a part in blocks, each a file, until the part is complete.

An interrupted embedding therefore continues where it was, and several processes can each embed a share of the blocks.
A block also says which of its images could not be read, and have no embedding.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metrix.errors import DataError
from metrix.files import lock
from metrix.runs.output import write_output

BLOCK = 256  # images embedded at a time, and rows of a file
STALLED = 120.0  # seconds without a new block after which other processes are taken for dead


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _is_sound(content: bytes) -> bool:
    return len(content) > 32 and _checksum(content[:-32]) == content[-32:]


class EmbeddingBlocks:
    """Embeddings of `rows` images as files of a folder, one per block; a block's file is complete or absent.

    A file is an array of NumPy with the embeddings, then JSON with the rows that could not be read and why, if there
    are any, then the SHA-256 of both.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.total = folder, rows
        self.count = -(-rows // BLOCK)
        self._drop_damaged()

    def rows(self, number: int) -> range:
        """The images of a block."""
        return range(number * BLOCK, min((number + 1) * BLOCK, self.total))

    def file(self, number: int) -> Path:
        """The file of a block."""
        return self.folder / f"{number:08d}.npy"

    def has(self, number: int) -> bool:
        """Whether a block is embedded."""
        return self.file(number).is_file()

    @property
    def missing(self) -> list[int]:
        """The blocks that are not embedded yet."""
        return [number for number in range(self.count) if not self.has(number)]

    def write(self, number: int, vectors: NDArray[np.float32], broken: Mapping[int, str] | None = None) -> None:
        """Write the embeddings of a block; `broken` are the rows without one, each with the reason."""
        self.folder.mkdir(parents=True, exist_ok=True)

        array = io.BytesIO()  # written to a file, np.save does not notice a disk that is full at its last bytes
        np.save(array, vectors)
        content = array.getvalue() + (json.dumps(list(broken.items())).encode() if broken else b"")
        write_output(self.file(number), lambda path: path.write_bytes(content + _checksum(content)))

    def read(self, number: int) -> NDArray[np.float32]:
        """The embeddings of a block, of the rows that could be read; `DataError` if its file is damaged."""
        return self._read(number)[0]

    def broken(self) -> dict[int, str]:
        """The rows that could not be read, of the blocks that are embedded, each with the reason."""
        return {row: reason for n in range(self.count) if self.has(n) for row, reason in self._read(n)[1].items()}

    def _read(self, number: int) -> tuple[NDArray[np.float32], dict[int, str]]:
        content = self.file(number).read_bytes()
        if not _is_sound(content):
            raise DataError(f"{self.file(number)} is damaged: it has another checksum; repeat the command")
        file = io.BytesIO(content[:-32])
        vectors: NDArray[np.float32] = np.load(file, allow_pickle=False)
        rest = file.read()
        return vectors, dict(json.loads(rest)) if rest else {}

    def _drop_damaged(self) -> None:
        """Delete blocks of an interrupted embedding that have another checksum; they are embedded again."""
        for number in range(self.count) if self.folder.is_dir() else ():
            if self.has(number) and not _is_sound(self.file(number).read_bytes()):
                self.file(number).unlink(missing_ok=True)

    def read_all(self) -> NDArray[np.float32]:
        """The embeddings of all blocks as one array (rows, d)."""
        first = self.read(0)
        vectors = np.empty((self.total, first.shape[1]), dtype=np.float32)
        for number in range(self.count):
            rows = self.rows(number)
            vectors[rows.start : rows.stop] = self.read(number)
        return vectors

    def remove(self) -> None:
        """Delete all blocks."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold a lock, so that one process at a time assembles the blocks."""
        path = self.folder.with_name(f"{self.folder.name}.lock")
        with lock(path):
            yield
            with suppress(OSError):  # an open file cannot be removed on Windows
                path.unlink()

    def wait_for_others(self, complete: Callable[[], bool]) -> None:
        """Wait until other processes have written the missing blocks, or `complete`, or they seem to have died."""
        missing, since = len(self.missing), time.monotonic()
        while missing and time.monotonic() - since < STALLED and not complete():
            time.sleep(0.2)
            now = len(self.missing)
            if now != missing:
                missing, since = now, time.monotonic()


class BlocksInMemory(EmbeddingBlocks):
    """Blocks kept in memory, for folders that cannot be written."""

    def __init__(self, rows: int) -> None:
        self.held: dict[int, tuple[NDArray[np.float32], dict[int, str]]] = {}
        super().__init__(Path(), rows)

    def _drop_damaged(self) -> None:
        """Nothing is damaged in memory."""

    def has(self, number: int) -> bool:
        """Whether a block is embedded."""
        return number in self.held

    def write(self, number: int, vectors: NDArray[np.float32], broken: Mapping[int, str] | None = None) -> None:
        """Keep the embeddings of a block."""
        self.held[number] = vectors, dict(broken or {})

    def _read(self, number: int) -> tuple[NDArray[np.float32], dict[int, str]]:
        return self.held[number]
