"""Collections of Milvus: where they are, who owns them, how they are made and dropped.

A collection belongs to the folder of the index that made it. A copy of that folder can be searched, but neither changes
the collection nor drops it: that of the original would be lost. What tells both apart is the file `.owner`, which knows
its own number in the file system; moving a folder keeps that number, copying does not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from metrix.errors import DataError, InvalidInput, MetrixWarning
from metrix.extras import import_extra
from metrix.files import write_json
from metrix.search.items import Items
from metrix.search.settings import Settings

PREFIX = "milvus:"
PENDING = ".pending.json"  # the collection that is being filled
OWNER = ".owner"
TEXT_LENGTH = 65_535
INDEX_TYPES = {"exact": "FLAT", "hnsw": "HNSW", "ivf": "IVF_FLAT", "ivf-pq": "IVF_PQ"}
ONE_PROCESS = "milvus-lite lets one process at a time open a store: end others that have it open, or run a server"


def require_kind(kind: str, uri: str) -> None:
    """An error if Milvus at this address has no such kind of index."""
    local = "://" not in uri
    known = [name for name in INDEX_TYPES if not (local and name == "ivf-pq")]
    if kind not in known:
        where = "milvus-lite" if local else "Milvus"
        raise InvalidInput(f"kind: expected {', '.join(known)} with {where}, got {kind}; faiss has it, --store faiss")


def create_collection(
    folder: Path, uri: str, first: Items, kind: str, settings: Settings, count: int
) -> dict[str, Any]:
    """Make an empty collection for items like these; returns where it is. Nothing of an older one is touched."""
    from pymilvus import DataType

    require_kind(kind, uri)
    name = f"metrix_{uuid.uuid4().hex}"
    place: dict[str, Any] = {"uri": uri, "collection": name, "owner": own(folder), "next_row": 0, **settings.asked()}
    parameters: dict[str, Any] = {}
    if kind == "hnsw":
        parameters = {"M": settings.links, "efConstruction": 100}
    elif kind in ("ivf", "ivf-pq"):
        cells, place["probes"] = settings.cells_for(count)
        parameters = {"nlist": cells}
        if kind == "ivf-pq":
            parameters |= {"m": settings.code_bytes_for(first.dim), "nbits": 8}
    if parameters and "://" not in uri:
        parameters["params"] = json.dumps(parameters)  # milvus-lite reads them only there, a server one by one
    text = {"datatype": DataType.VARCHAR, "max_length": TEXT_LENGTH}
    types = {
        "text": text,
        "integer": {"datatype": DataType.INT64},
        "number": {"datatype": DataType.DOUBLE},
        "boolean": {"datatype": DataType.BOOL},
    }
    client = connect(uri, folder)
    write_json(folder / PENDING, place)
    try:
        with explained(uri):
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("row", DataType.INT64, is_primary=True)
            schema.add_field("id", **types["text" if pa.types.is_string(first.ids.type) else "integer"])
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=first.dim)
            schema.add_field("added", DataType.INT64)
            schema.add_field("removed", DataType.INT64)
            for n, column in enumerate(first.column_types.values()):
                schema.add_field(f"c{n}", **types[column])
                schema.add_field(f"has{n}", DataType.BOOL)
            index = client.prepare_index_params()
            index.add_index("vector", index_type=INDEX_TYPES[kind], metric_type="IP", params=parameters)
            client.create_collection(name, schema=schema, index_params=index)
    finally:
        with contextlib.suppress(Exception):
            client.close()
    return place


def drop_pending(folder: Path, current: str | None) -> None:
    """Remove the collection that a killed build left behind, if `current`, the one in use, is another."""
    path = folder / PENDING
    if not path.is_file():
        return
    try:
        place = json.loads(path.read_bytes())
        if place["collection"] != current and is_owner(folder, place):
            drop_collection(folder, place)
    except (ValueError, KeyError, TypeError, DataError):
        return  # the store is not there now; the note stays for the next time
    path.unlink(missing_ok=True)


def drop_replaced(folder: Path, place: Mapping[str, Any]) -> None:
    """Remove a collection that the description points to no more, unless another index owns it."""
    if is_owner(folder, place):
        drop_collection(folder, place)
        return
    warnings.warn(
        f"the collection {place.get('collection')} in {place.get('uri')} stays: {folder} is a copy of the index that "
        "made it",
        MetrixWarning,
        stacklevel=2,
    )


def drop_collection(folder: Path, place: Mapping[str, Any]) -> None:
    """Remove a collection."""
    client = connect(str(place["uri"]), folder)
    with contextlib.suppress(Exception):
        client.drop_collection(str(place["collection"]))
    with contextlib.suppress(Exception):
        client.close()


def own(folder: Path) -> str:
    """The mark of a folder, which its collections get; it is made once."""
    path = folder / OWNER
    mark = _read_mark(path)
    if mark is None:
        path.unlink(missing_ok=True)  # of a folder that this one is a copy of
        with path.open("w", encoding="utf-8") as file:
            mark = uuid.uuid4().hex
            json.dump({"mark": mark, "number": os.fstat(file.fileno()).st_ino}, file)
    return mark


def is_owner(folder: Path, place: Mapping[str, Any]) -> bool:
    """Whether the index in a folder made the collection, or was moved, and is not a copy of the one that did."""
    mark = _read_mark(folder / OWNER)
    return mark is not None and place.get("owner") == mark


def require_owner(folder: Path, place: Mapping[str, Any]) -> None:
    """An error if changing the collection would change that of another index."""
    if not is_owner(folder, place):
        raise InvalidInput(
            f"{folder}: expected the index that made the collection {place.get('collection')}, got a copy of it, which "
            "can be searched, not changed; change the original, or build an index of its own here"
        )


def _read_mark(path: Path) -> str | None:
    """The mark in a file; None if there is none, or the file is a copy."""
    try:
        content = json.loads(path.read_bytes())
        return str(content["mark"]) if content["number"] == path.stat().st_ino else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def address(store: str, folder: Path) -> str:
    """The URI in `milvus:URI`; a local path is kept relative to the index, so that both can move together.

    >>> address("milvus:http://host:19530", Path("photos.index"))
    'http://host:19530'
    """
    uri = store.removeprefix(PREFIX)
    if not uri:
        raise InvalidInput("store: expected milvus:PATH or milvus:http://HOST:PORT, got 'milvus:'")
    return uri if "://" in uri else Path(os.path.relpath(uri, folder)).as_posix()


def require_known_address(uri: str, folder: Path, given: str | None) -> None:
    """An error if a description leads to a server, or a file far away, that the user has not named.

    A description may come from a stranger: a local store is opened only in the folder that the index is in.
    """
    if given is not None and given.startswith(PREFIX):
        named = address(given, folder)
        if named == uri or ("://" not in uri and (folder / named).resolve() == (folder / uri).resolve()):
            return
        raise InvalidInput(f"--store: expected milvus:{uri}, where {folder} is, got {given}")
    if "://" not in uri and (folder / uri).resolve().is_relative_to(folder.resolve().parent):
        return
    raise InvalidInput(f"{folder}: its vectors are in Milvus at {uri}; if you trust it, give --store milvus:{uri}")


def connect(uri: str, folder: Path) -> Any:
    """A client of the store at an address."""
    client = import_extra("pymilvus").MilvusClient
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs a traceback before it raises
    if "://" in uri:
        with explained(uri):
            return client(uri, timeout=30)
    path = str((folder / uri).resolve())
    try:
        with explained(path):
            return client(path, timeout=30)
    except DataError as error:
        raise DataError(f"{error}; {ONE_PROCESS}") from error


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Errors of Milvus as ours, in one sentence."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        raise DataError(f"Milvus ({where}): {error.message or error}") from error
