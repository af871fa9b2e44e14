"""Decisions on the labels of an index, in a table that is written at once and never loses a line.

    decisions = DecisionFile(Path("photos.labels.csv"))
    decisions.add(index, "cats/1.jpg", "relabel", "dog", who="anna")

A line is added to the table under a lock, and the table replaced: whoever reads it, and a process that is killed, finds
all decisions that were confirmed. The last line of an item counts; `undo` takes the decision before it back.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from metrix.data.layouts.decided import COLUMNS, DECISIONS, REMOVED, UNDO, is_history
from metrix.data.layouts.manifest import BOX, OPTIONAL, read_csv
from metrix.errors import DataError, InvalidInput, unknown_choice
from metrix.files import describe_failure, lock
from metrix.messages import make_printable
from metrix.retrieve.image_lists import split_id
from metrix.runs.output import CannotWrite, write_csv
from metrix.search import LABEL, Index

MOST_TEXT = 200  # characters of a label, and of who decides


@dataclass(frozen=True)
class Decision:
    """A line of the table."""

    id: str
    old: str | None
    new: str | None
    decision: str
    of: str | None  # the item that it is a duplicate of
    who: str
    when: str


def choose_decisions_file(folder: Path) -> Path:
    """The table of an index by default: photos.labels.csv beside photos.index."""
    return folder.resolve().with_suffix(".labels.csv")


class DecisionFile:
    """A table of decisions; `path` need not exist."""

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != ".csv" or path.is_dir():
            raise InvalidInput(f"decisions: expected a file name that ends in .csv, got {path}")
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, Decision] = {}
        self._reading = threading.Lock()

    def read(self) -> dict[str, Decision]:
        """The last decision on each item that was not undone, as the table has them now, in the order of time.

        Raises:
            DataError: it is not a table of decisions.
        """
        with self._reading:
            try:
                status = self.path.stat()
            except FileNotFoundError:
                self._stamp, self._known = None, {}
                return {}
            except OSError as error:
                raise DataError(f"{self.path} cannot be read: {error.strerror}") from error
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            if stamp != self._stamp:
                self._known = {}
                for one in self._read_lines():
                    self._known.pop(one.id, None)
                    if one.decision != UNDO:
                        self._known[one.id] = one
                self._stamp = stamp
            return dict(self._known)

    def _read_lines(self) -> list[Decision]:
        table = read_csv(self.path)
        if not is_history(table) or not set(COLUMNS) <= table.keys():
            raise DataError(
                f"{self.path}: expected a table of decisions with the columns {', '.join(COLUMNS)}, got "
                f"{', '.join(table)}; choose another with --output"
            )
        names = ("id", "old", "new", "decision", "of", "who", "when")
        lines = list(zip(*(table[name] for name in names), strict=True))
        for row, line in enumerate(lines, 1):
            if line[3] not in DECISIONS:
                raise DataError(f"{self.path}, row {row}: {unknown_choice('decision', line[3], DECISIONS)}")
        return [
            Decision(one, old or None, new or None, kind, of or None, who, when)
            for one, old, new, kind, of, who, when in lines
        ]

    def add(
        self,
        index: Index,
        one: str,
        decision: str,
        label: str | None = None,
        *,
        of: str | None = None,
        who: str = "",
    ) -> tuple[Decision, Decision | None]:
        """Write a decision on an item; also gives the one that counted before, perhaps by someone else.

        Args:
            index: has the item.
            one: its id.
            decision: one of `DECISIONS`.
            label: the new one, of `accept`, `relabel` and `class`.
            of: the item that it is a `duplicate` of.
            who: decides.

        Raises:
            InvalidInput: there is no such item, the decision lacks its label, or it is a duplicate of an item to go.
            CannotWrite: the table cannot be written; then nothing was decided.
        """
        if decision not in DECISIONS:
            raise unknown_choice("decision", decision, DECISIONS)
        now = find_label_of(index, one)
        if decision == "duplicate" and (of is None or of == one or _row_of(index, of) < 0):
            raise InvalidInput(f"of: expected another item of the index, got {'none' if of is None else of[:200]!r}")
        with self._held():
            known = self.read()
            before = known.get(one)
            if decision == "duplicate" and of in known and known[of].decision in REMOVED:  # or neither would stay
                raise InvalidInput(
                    f"of: expected an item that stays, got {of[:200]!r}, which is to go: {known[of].decision}"
                )
            if decision == UNDO:
                if before is None:
                    raise InvalidInput(f"undo: expected an item with a decision, got {one[:200]!r}")
                made = Decision(one, before.new, before.old, UNDO, None, _tidy_name(who), _now())
            else:
                old = now if before is None else before.old
                new = old if decision == "keep" else None if decision in REMOVED else read_label(label)
                of = of if decision == "duplicate" else None
                made = Decision(one, old, new, decision, of, _tidy_name(who), _now())
            self._append(made, index)
        return made, before

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the table for writing; other processes and threads wait."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock(self.path.with_name(f".{self.path.name}.lock")))
            except OSError as error:
                raise CannotWrite(
                    f"{self.path} cannot be written: {describe_failure(error)}; choose another"
                ) from error
            yield

    def _append(self, made: Decision, index: Index) -> None:
        # written anew as a whole: a spreadsheet may have saved it with semicolons, or with a byte order mark
        table = read_csv(self.path) if self.path.exists() else {}
        header = list(table) or [*COLUMNS, *_box_columns(index)]
        name, box = split_id(made.id)
        values: dict[str, Any] = {**made.__dict__, LABEL: made.new, "path": path_beside(self.path, index, name)}
        values |= dict(zip(BOX, box, strict=True)) if box else {}
        line = ["" if values.get(column) is None else values[column] for column in header]
        write_csv(self.path, header, [*zip(*table.values(), strict=True), line])


def _box_columns(index: Index) -> Sequence[str]:
    """The columns of crop boxes, if items have some."""
    ids = (one for _, items in index.store.scan() for one in items.ids.to_pylist())
    return BOX if any(split_id(str(one))[1] for one in ids) else ()


def _row_of(index: Index, one: str) -> int:
    if index.store.ids_are_text:
        return int(index.find([one])[0])
    return int(index.find([int(one)])[0]) if re.fullmatch(r"-?[0-9]{1,18}", one) else -1


def find_label_of(index: Index, one: str) -> str | None:
    """The label of an item, None if it has none.

    Raises:
        InvalidInput: there is no such item.
    """
    row = _row_of(index, one)
    if row < 0:
        raise InvalidInput(f"id: expected an item of the index, got {one[:200]!r}")
    if LABEL not in index.columns:
        return None
    label = index.store.read_table(np.array([row]))[LABEL][0].as_py()
    return None if label is None else str(label)


def read_label(text: str | None) -> str:
    """A label that someone gave, without blanks around it.

    Raises:
        InvalidInput: it is empty, too long, or has characters that cannot be seen.
    """
    label = (text or "").strip()
    if not label or len(label) > MOST_TEXT or make_printable(label) != label or any(c in label for c in "\n\t\r"):
        raise InvalidInput(f"label: expected 1 to {MOST_TEXT} printable characters, got {label[:MOST_TEXT]!r}")
    return label


def write_manifest(index: Index, decided: Mapping[str, Decision], path: Path) -> int:
    """Write the labelled images of an index as a manifest, with decisions applied, and return how many there are.

    Columns of the index that a manifest knows (`split`, `sequence`, `category` …) are kept. Paths are relative to the
    folder of the manifest where the images are below it, else absolute.

    Raises:
        InvalidInput: the index is not of image files.
    """
    if index.description.root is None:
        raise InvalidInput(
            f"manifest: expected an index of image files, got one of {index.description.data or 'vectors'}"
        )
    kept = [name for name in index.columns if name in OPTIONAL and name not in BOX]
    boxes = _box_columns(index)
    rows: list[list[Any]] = []
    for _, items in index.store.scan():
        for record in items.records():
            made = decided.get(str(record["id"]))
            label = record.get(LABEL) if made is None else made.new
            if label is None or (made is not None and made.decision in REMOVED):
                continue
            name, box = split_id(str(record["id"]))
            crop = list(box or ("",) * 4) if boxes else []
            rows.append([path_beside(path, index, name), label, *(record[column] for column in kept), *crop])
    write_csv(path, ("path", LABEL, *kept, *boxes), rows)
    return len(rows)


def path_beside(file: Path, index: Index, name: str) -> str:
    """An image as a manifest has it: relative to the manifest's folder, or absolute if it is not below."""
    root = index.description.root
    if root is None:
        return name
    whole = Path(root) / name
    try:
        return whole.relative_to(file.resolve().parent).as_posix()
    except ValueError:
        return str(whole)


def _tidy_name(who: str) -> str:
    return " ".join(make_printable(who).split())[:MOST_TEXT]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
