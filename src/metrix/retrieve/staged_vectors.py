"""Vectors of items by a new model, in portions beside an index, until there is one for each item.

INDEX/.replacing-DIGEST/        by the digest of the new model
    000001.arrow                ids, vectors, and what says that an image has not changed since
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrix.files import remove_temporaries, write_atomically

PREFIX = ".replacing-"
_DIM = b"metrix_dim"


class StagedVectors:
    """Vectors by id, in files that are complete or absent; those of images that have changed do not count."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder, self.dim = folder, dim
        self._vectors: list[NDArray[np.float32]] = []
        self._places: dict[str, tuple[int, int, str]] = {}  # id to portion, row and stamp
        if folder.is_dir():
            remove_temporaries(folder)
        for path in sorted(folder.glob("*.arrow")) if folder.is_dir() else ():
            self._read(path)

    def __len__(self) -> int:
        return len(self._places)

    def _read(self, path: Path) -> None:
        """Take over a portion; a damaged one is deleted, and its items are embedded again."""
        try:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            table.validate(full=True)
            if table.schema.metadata.get(_DIM) != str(self.dim).encode():
                raise ValueError("dimension")
            vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, self.dim)
            ids, stamps = table["id"].to_pylist(), table["stamp"].to_pylist()
        except Exception:  # damaged files have all kinds of exceptions
            path.unlink(missing_ok=True)
            return
        self._keep(ids, vectors, stamps)

    def _keep(self, ids: Sequence[str], vectors: NDArray[np.float32], stamps: Sequence[str]) -> None:
        number = len(self._vectors)
        self._vectors.append(vectors)
        self._places |= {one: (number, row, stamp) for row, (one, stamp) in enumerate(zip(ids, stamps, strict=True))}

    def has(self, one: str, stamp: str) -> bool:
        """Whether there is a vector of the image as it is now."""
        found = self._places.get(one)
        return found is not None and found[2] == stamp

    def add(self, ids: Sequence[str], vectors: NDArray[np.float32], stamps: Sequence[str]) -> None:
        """Write a portion."""
        self.folder.mkdir(parents=True, exist_ok=True)
        last = max((int(path.stem) for path in self.folder.glob("*.arrow") if path.stem.isdecimal()), default=0)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), self.dim)
        columns = {"id": pa.array(ids, pa.string()), "stamp": pa.array(stamps, pa.string()), "vector": column}
        table = pa.table(columns).replace_schema_metadata({_DIM: str(self.dim).encode()})

        def write(path: Path) -> None:
            with path.open("wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        write_atomically(self.folder / f"{last + 1:06d}.arrow", write)
        self._keep(ids, np.ascontiguousarray(vectors), stamps)

    def take(self, ids: Sequence[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Vectors (m, d) of some ids, and which of them (m,) they are of: those that there are."""
        there = np.array([n for n, one in enumerate(ids) if one in self._places], dtype=np.int64)
        found = np.empty((len(there), self.dim), np.float32)
        for row, n in enumerate(there.tolist()):
            number, place, _ = self._places[ids[n]]
            found[row] = self._vectors[number][place]
        return found, there

    def forget(self, ids: Sequence[str]) -> None:
        """Do without the vectors of some images, as of what they were before they changed."""
        for one in ids:
            self._places.pop(one, None)

    def remove(self) -> None:
        """Delete all portions, also those for other models."""
        self._vectors, self._places = [], {}
        for other in self.folder.parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                shutil.rmtree(other)
