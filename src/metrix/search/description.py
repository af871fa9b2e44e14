"""The description of an index in a folder: which model made its vectors, and where they are.

`description.json` is replaced in one step, so it always points to a complete generation of files.
"""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from metrix.errors import DataError, InvalidInput
from metrix.files import write_json

FORMAT = "metrix.index"
VERSION = 3
FILE = "description.json"
SEVERAL_FILES = ("vectors", "items", "sketch")  # keys of `place` with a list of names
LONGEST_NAME = 255  # bytes of the name of a file
ROUNDING = 1e-6  # below 1, of the cosines of vectors that only differ by rounding


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class VectorEngine(_Strict):
    """What ran the network, and how far its vectors are from the exact ones (`torch`) on some of the images."""

    name: str = "torch"
    file: str | None = None  # of the exported network, if it was one
    smallest_cosine: float | None = None  # None: not measured
    largest_difference: float | None = None  # of any entry

    @property
    def is_exact(self) -> bool:
        """Whether its vectors are the exact ones, up to rounding."""
        return self.name == "torch" or (self.smallest_cosine is not None and self.smallest_cosine >= 1 - ROUNDING)


class Fingerprint(_Strict):
    """The model that made the vectors: vectors of another one cannot be compared with them."""

    digest: str  # SHA-256 of the weights
    view: str  # how an image becomes the network's input
    dim: int = Field(ge=1)
    run: str | None = None  # the folder of the run, where it was when the index was built
    engine: VectorEngine = VectorEngine()
    compatible_with: str | None = None  # digest of the model whose indexes its vectors may query

    def may_be_queried_by(self, other: Fingerprint) -> bool:
        """Whether vectors of another model, trained to be compatible with this one, may query its vectors."""
        return other.compatible_with == self.digest and other.dim == self.dim

    def require(self, other: Fingerprint) -> None:
        """An error if vectors of the other model cannot be compared with those of this one."""
        for name, mine, its in (
            ("dimension", self.dim, other.dim),
            ("model", self.digest[:12], other.digest[:12]),
            ("view", self.view, other.view),
        ):
            if mine != its:
                raise InvalidInput(
                    f"{name}: expected {mine}, of the model that the index was built with"
                    f"{f' ({self.run})' if self.run else ''}, got {its}{f' ({other.run})' if other.run else ''}; "
                    "search with that model, or build the index anew"
                )

    def require_engine(self, other: VectorEngine) -> None:
        """An error if vectors by the other engine do not belong in one index with those of this one."""
        if self.engine.name != other.name and not (self.engine.is_exact and other.is_exact):
            raise InvalidInput(
                f"engine: expected {self.engine.name}, which made the vectors of the index, got {other.name}, whose "
                "vectors differ; use the same engine, or build the index anew"
            )


class Threshold(_Strict):
    """A similarity above which two images count as the same thing, and what it was chosen for."""

    similarity: float
    low: float
    high: float
    target: Literal["precision", "recall", "far"]
    wanted: float
    precision: float
    recall: float
    far: float


class Calibration(_Strict):
    """The numbers that make probabilities of similarities: see `metrix.search.calibration`."""

    votes: float
    centroid: float
    bias: float
    slope: float
    offset: float
    k: int = Field(ge=1)  # neighbours that vote


class OpenSet(_Strict):
    """From which probability on a query is of an enrolled class, what that was chosen for, and on which items."""

    calibration: Calibration
    probability: float = Field(ge=0, le=1)  # of being of any enrolled class; below it, a query is unknown
    target: Literal["false_accept", "false_reject"]
    wanted: float
    false_accept: float  # share of the queries of no enrolled class that it accepts
    false_reject: float  # share of those of an enrolled class that it rejects
    items: int = Field(ge=0)  # enrolled
    classes: int = Field(ge=0)


class BeforeUpgrade(_Strict):
    """What an index had before its queries went through another model, to take that back."""

    model: Fingerprint  # that made the vectors of the items
    threshold: Threshold | None = None
    open_set: OpenSet | None = None


class IndexAdapter(_Strict):
    """The map from vectors of the model that queries go through to those of the model that made the items."""

    kind: str
    file: str  # in the folder of the index
    pairs: int = Field(ge=0)  # images that it was fitted on
    measured: dict[str, Any] = {}  # on held-out pairs: see `metrix.retrieve.adapter_measures`
    mapped: int = Field(default=0, ge=0)  # images that were added through it
    before: BeforeUpgrade

    @field_validator("file")
    @classmethod
    def _plain_name(cls, file: str) -> str:
        if PurePosixPath(file).name != file or "\\" in file:
            raise ValueError(f"file leads out of the index: {file!r}")
        return file


class Description(_Strict):
    """What an index says of itself."""

    format: str = FORMAT
    version: int = VERSION
    generation: int = Field(default=1, ge=1)
    store: Literal["faiss", "milvus"] = "faiss"
    kind: Literal["exact", "hnsw", "ivf", "sq8", "ivf-pq"] = "exact"
    place: dict[str, str | int | list[str]] = {}  # files, or address and collection
    dim: int = Field(ge=1)
    columns: dict[str, Literal["text", "integer", "number", "boolean"]] = {}
    count: int = Field(ge=0)  # items
    skipped: int = Field(default=0, ge=0)  # images that could not be read
    root: str | None = None  # the folder that ids are paths below
    relative_root: str | None = None  # the same, seen from the index: both may move together
    relative_run: str | None = None  # the folder of the model's run, seen from the index
    follow_links: bool = False  # images may be outside the root, through symbolic links
    data: str | None = None  # the embedded dataset that the images are of, if they are not files
    model: Fingerprint | None = None  # that queries go through
    adapter: IndexAdapter | None = None  # where another one made the items
    threshold: Threshold | None = None
    open_set: OpenSet | None = None
    recall: float | None = None  # measured recall of an approximate index against exact search

    @property
    def model_of_items(self) -> Fingerprint | None:
        """The model that made the vectors."""
        return self.model if self.adapter is None else self.adapter.before.model

    @property
    def examples(self) -> str:
        """What the items are, as tables call them: images, or vectors that a network was trained on."""
        return "images" if self.root is not None or self.data is not None else "vectors"

    @field_validator("place")
    @classmethod
    def _plain_names(cls, place: dict[str, str | int | list[str]]) -> dict[str, str | int | list[str]]:
        for key, several in (*((key, True) for key in SEVERAL_FILES), ("codes", False), ("lists", False)):
            if key not in place:
                continue
            names = place[key] if several else [place[key]]
            if not isinstance(names, list) or not names:
                raise ValueError(f"{key}: expected names of files, got {names!r}")
            for name in names:
                if not isinstance(name, str) or PurePosixPath(name).name != name or "\\" in name:
                    raise ValueError(f"{key} leads out of the index: {name!r}")
                if "\0" in name or len(os.fsencode(name)) > LONGEST_NAME:
                    raise ValueError(f"{key}: expected a name that a file can have, got {name[:80]!r}")
        return place

    def write(self, folder: Path) -> None:
        """Replace the description of a folder, in one step."""
        run = None if self.model is None else self.model.run
        seen = {"relative_root": _relative(self.root, folder), "relative_run": _relative(run, folder)}
        write_json(folder / FILE, {**self.model_dump(), **seen})

    @classmethod
    def read(cls, folder: Path) -> Description:
        """The description of a folder; anything but a sound one is one clear error."""
        path = folder / FILE
        if not path.is_file():
            if (folder / "manifest.json").is_file():
                raise DataError(
                    f"{folder}: expected an index of version {VERSION}, got an earlier one; build the index anew"
                )
            what = "a folder without one" if folder.is_dir() else "a file" if folder.exists() else "nothing there"
            raise DataError(f"{folder}: expected an index, a folder with {FILE}, got {what}; build one: metrix index")
        try:
            content: Any = json.loads(path.read_bytes())
            json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair could not be written again
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: expected JSON, got a damaged file ({error}); build the index anew") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"{path}: expected the description of an index (format {FORMAT!r}), got something else")
        if content.get("version") != VERSION:
            raise DataError(
                f"{path}: expected version {VERSION}, got {content.get('version')!r}; build the index anew, or use the "
                "metrix that wrote it"
            )
        try:
            found = cls.model_validate(content)
            return found._located(folder)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DataError(
                f"{path}: {where}: {first['msg']}; the description is damaged, build the index anew"
            ) from None

    def _located(self, folder: Path) -> Description:
        """The same with images and run where they are as seen from the index, if they are there."""
        root, run = (
            None if place is None or not os.path.isdir(folder / place) else str((folder / place).resolve())
            for place in (self.relative_root, self.relative_run)
        )
        changed: dict[str, Any] = {} if root is None else {"root": root}
        if run is not None and self.model is not None:
            changed["model"] = self.model.model_copy(update={"run": run})
        return self.model_copy(update=changed)


def _relative(place: str | None, folder: Path) -> str | None:
    try:
        return None if place is None else Path(os.path.relpath(place, folder)).as_posix()
    except ValueError:  # on another drive of Windows
        return None


def read_info(folder: Path) -> dict[str, Any]:
    """What an index says of itself, for people and scripts, without opening its store."""
    description = Description.read(folder)
    files = [
        folder / str(name) for key in (*SEVERAL_FILES, "codes", "lists") for name in _names(description.place.get(key))
    ]
    changed = (folder / FILE).stat().st_mtime
    return {
        "index": str(folder),
        **description.model_dump(),
        "bytes": sum(file.stat().st_size for file in files if file.is_file()),
        "changed": datetime.fromtimestamp(changed, timezone.utc).isoformat(timespec="seconds"),
        "age_seconds": max(0.0, time.time() - changed),
    }


def _names(value: Any) -> list[Any]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)
