"""Images in columns of Parquet and Arrow tables, read where they are: `photos.parquet/image/12` names one by its row.

An Arrow file is mapped. Of a Parquet file, small row groups are read one at a time, and those that were read last are
kept; large ones, of which a single image would cost reading all, are unpacked once into the cache folder.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metrix.data.member_index import ImageStatus
from metrix.errors import DataError
from metrix.files import cache_folder, describe_failure, lock, mark_used, warn_not_cached, write_atomically

PARQUET, ARROW = ".parquet", ".arrow"
SUFFIXES = (PARQUET, ARROW)
BYTES, PATH = "bytes", "path"  # fields of an image in tables of Hugging Face datasets
LARGE_GROUP = 16_000_000  # bytes of a row group from which on its images are unpacked
KEPT_GROUPS = 128_000_000  # bytes of row groups that a process keeps
ROWS_AT_ONCE = 64
_numbers = itertools.count()  # one for each open column


class ImageColumn(Protocol):
    """The encoded images of a column; those of rows without an image are empty."""

    sizes: NDArray[np.int64]  # bytes of each image

    def read(self, row: int) -> bytes:
        """The bytes of an image."""
        ...


class ImageTable:
    """A Parquet or Arrow file with images; threads, and processes that are forked, may read from it at once."""

    def __init__(self, path: str, status: ImageStatus) -> None:
        self.path, self.status = path, status
        self._columns: dict[str, ImageColumn] = {}

    def stat(self, name: str) -> ImageStatus:
        """The size of an image, named COLUMN/ROW, and when the table was changed.

        Raises:
            FileNotFoundError: there is no such row or column.
        """
        column, row = self._find(name)
        return ImageStatus(int(column.sizes[row]), self.status.mtime_ns)

    def read(self, name: str) -> bytes:
        """The bytes of an image, named COLUMN/ROW; none if the row has no image.

        Raises:
            FileNotFoundError: there is no such row or column.
        """
        column, row = self._find(name)
        return column.read(row)

    def column(self, name: str) -> ImageColumn:
        """The images of a column.

        Raises:
            FileNotFoundError: there is none of this name with images.
            DataError: the table is damaged.
        """
        import pyarrow as pa

        found = self._columns.get(name)
        if found is None:
            kind = ParquetImages if self.path.lower().endswith(PARQUET) else ArrowImages
            try:
                found = kind(self.path, name, self.status)
            except (KeyError, pa.ArrowNotImplementedError):
                raise FileNotFoundError(f"{self.path} has no column {name} of images") from None
            except pa.ArrowException as error:
                raise DataError(f"{self.path} is damaged: {error}") from error
            self._columns[name] = found
        return found

    def _find(self, name: str) -> tuple[ImageColumn, int]:
        column, _, row = name.rpartition("/")
        found = self.column(column) if row.isdecimal() and row.isascii() else None
        if found is None or int(row) >= len(found.sizes):
            raise FileNotFoundError(f"{self.path} has no image {name}")
        return found, int(row)


def select_bytes(images: Any) -> Any:
    """The encoded images of an array of pyarrow, of binary values or of structures with a field `bytes`.

    Raises:
        KeyError: there are none.
    """
    import pyarrow.compute as pc
    from pyarrow import types

    if types.is_struct(images.type):
        if images.type.get_field_index(BYTES) < 0:
            raise KeyError(BYTES)
        images = pc.struct_field(images, BYTES)
    if not is_binary(images.type):
        raise KeyError(BYTES)
    return images


def is_binary(kind: Any) -> bool:
    """Whether values of a type of pyarrow are bytes."""
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


class ArrowImages:
    """Images of an Arrow file, which is mapped: nothing is read but what is asked for."""

    def __init__(self, path: str, name: str, status: ImageStatus) -> None:
        chunks = open_arrow(path).column(name).chunks
        self._chunks = [select_bytes(chunk) for chunk in chunks]
        self._ends = np.cumsum([len(chunk) for chunk in self._chunks], dtype=np.int64)
        self.sizes = _concatenate(map(_measure, self._chunks))

    def read(self, row: int) -> bytes:
        """The bytes of an image."""
        return _pick(self._chunks.__getitem__, self._ends, row)


def open_arrow(path: str | os.PathLike[str]) -> Any:
    """The table of an Arrow file, as a stream or with an index at its end; its columns are mapped, not read."""
    import pyarrow as pa

    mapped = pa.memory_map(os.fspath(path))
    try:
        return pa.ipc.open_stream(mapped).read_all()
    except pa.ArrowInvalid:
        mapped.seek(0)
        return pa.ipc.open_file(mapped).read_all()


class ParquetImages:
    """Images of a Parquet file, in small row groups or unpacked."""

    def __init__(self, path: str, name: str, status: ImageStatus) -> None:
        import pyarrow.parquet as pq

        self._path, self._name, self._number = path, name, next(_numbers)
        self._file = pq.ParquetFile(path, pre_buffer=False)
        about = self._file.metadata
        groups = [about.row_group(g) for g in range(about.num_row_groups)]
        self._ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        if self._file.schema_arrow.get_field_index(name) < 0:
            raise KeyError(name)
        large = any(_group_size(group, name) > LARGE_GROUP for group in groups)
        self.sizes, self._unpacked = _index_images(path, name, status, unpack=large, rows=about.num_rows)
        self._starts = np.cumsum(self.sizes) - self.sizes if large else np.empty(0, np.int64)

    def read(self, row: int) -> bytes:
        """The bytes of an image."""
        if self._unpacked is not None:
            start = int(self._starts[row])
            return self._unpacked[start : start + int(self.sizes[row])].tobytes()
        return _pick(self._read_group, self._ends, row)

    def _read_group(self, group: int) -> Any:
        return _groups.get((self._number, group), lambda: self._decode_group(group))

    def _decode_group(self, group: int) -> Any:
        import pyarrow as pa

        try:
            found = self._file.read_row_group(group, columns=[self._name], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self._path} is damaged in row group {group}: {error}") from error
        return select_bytes(found.column(0).combine_chunks())


def _pick(images_of: Callable[[int], Any], ends: NDArray[np.int64], row: int) -> bytes:
    """The bytes of a row of arrays that follow one another and end at these rows."""
    place = int(np.searchsorted(ends, row, side="right"))
    found = images_of(place)[row - (int(ends[place - 1]) if place else 0)].as_buffer()
    return b"" if found is None else bytes(found)


def _group_size(group: Any, name: str) -> int:
    """Bytes of a column of a row group, decompressed."""
    columns = (group.column(c) for c in range(group.num_columns))
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema.partition(".")[0] == name)


class _RowGroups:
    """The row groups of Parquet files that were read last in this process; one is read at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._alone = threading.Lock()

    def get(self, key: tuple[int, int], read: Callable[[], Any]) -> Any:
        """The encoded images of a row group, read unless they are kept."""
        with self._alone:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            images = self._kept[key] = read()
            while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > KEPT_GROUPS:
                self._kept.popitem(last=False)
        return images

    def forget(self) -> None:
        """Start anew in a forked process, which does not have the thread that may hold the lock."""
        self._alone = threading.Lock()


_groups = _RowGroups()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_groups.forget)


def _index_images(
    path: str, name: str, status: ImageStatus, *, unpack: bool, rows: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8] | None]:
    """The size of each image of a Parquet file and, if they are unpacked, all of them one after another, mapped.

    The file is read once, some rows at a time; what was found is kept in the cache folder.
    """
    key = hashlib.sha256(repr((os.path.realpath(path), name, *status)).encode("utf-8", "surrogateescape")).hexdigest()
    stem = cache_folder() / "tables" / key[:32]
    sizes_file, images_file = stem.with_suffix(".npy"), stem.with_suffix(".images") if unpack else None
    try:
        with lock(stem.with_suffix(".lock")):
            known = _open_index(sizes_file, images_file, rows)
            if known is None:
                _write_index(path, name, sizes_file, images_file)
                known = _open_index(sizes_file, images_file, rows)
    except OSError as error:
        if unpack:
            raise DataError(
                f"{path}: expected row groups of at most {LARGE_GROUP // 1_000_000} MB, or room to unpack the images "
                f"in the cache folder {cache_folder()}, which cannot be written ({describe_failure(error)}); "
                "METRIX_CACHE sets another, and pyarrow.parquet.write_table(table, path, row_group_size=100) writes "
                "small row groups"
            ) from error
        warn_not_cached("indexes of images in Parquet files", error)
        known = _concatenate(map(_measure, scan_images(path, name))), None
    if known is None:
        raise DataError(f"{path}: the images in {stem.parent} cannot be read back after writing them; check the disk")
    return known


def _open_index(
    sizes_file: Path, images_file: Path | None, rows: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8] | None] | None:
    """What the cache has of a column; None if that is not all."""
    try:
        sizes = np.load(sizes_file, allow_pickle=False)
        if sizes.shape != (rows,) or sizes.dtype != np.int64:
            return None
        mark_used(sizes_file)
        if images_file is None:
            return sizes, None
        total = int(sizes.sum())
        if images_file.stat().st_size != total:
            return None
        mark_used(images_file)
        return sizes, np.memmap(images_file, np.uint8, "r") if total else np.empty(0, np.uint8)
    except (OSError, ValueError, EOFError):
        return None


def _write_index(path: str, name: str, sizes_file: Path, images_file: Path | None) -> None:
    sizes: list[NDArray[np.int64]] = []

    def unpack(temporary: Path) -> None:
        with temporary.open("wb") as file:
            for images in scan_images(path, name):
                sizes.append(_measure(images))
                for image in images:
                    if image.is_valid:
                        file.write(image.as_buffer())

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.save(file, _concatenate(sizes))

    if images_file is None:
        sizes += [_measure(images) for images in scan_images(path, name)]
    else:
        write_atomically(images_file, unpack)
    write_atomically(sizes_file, save)


def _measure(images: Any) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    return np.asarray(pc.binary_length(images).fill_null(0), dtype=np.int64)


def _concatenate(sizes: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *sizes])


def scan_images(path: str, name: str) -> Iterator[Any]:
    """The encoded images of a column of a Parquet file, some rows at a time; pages are read as they are needed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=[name], use_threads=False):
                yield select_bytes(batch.column(0))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is damaged: {' '.join(str(error).split())}") from error
