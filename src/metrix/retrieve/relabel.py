"""Rename, merge and remove classes of an index by a table of decisions; vectors stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metrix.data.layouts import decided
from metrix.data.layouts.manifest import BOX, infer_types, read_cell, read_history
from metrix.errors import DataError, InvalidInput, unknown_choice
from metrix.messages import first_few
from metrix.retrieve.decisions import read_label
from metrix.search import LABEL, Index

COLUMNS = (*decided.COLUMNS, *BOX)


@dataclass
class _Item:
    """What a table says about one item: its label at last, and all that it may have before."""

    new: str | None
    before: set[str | None] = field(default_factory=set)
    removed: bool = False  # deleted, or a duplicate


@dataclass(frozen=True)
class Relabelled:
    """What a table changed."""

    items: int  # that have another label now, or are gone
    absent: tuple[str, ...]  # classes that the index did not have: renamed before, or misspelt

    @property
    def caution(self) -> str:
        """A sentence on classes that the index did not have; empty if it had all."""
        return "" if not self.absent else f"no item has the label {first_few(self.absent)}: renamed before, or misspelt"


def relabel_from(index: Index, path: Path) -> Relabelled:
    """Set labels by a table, all at once.

    A line has an `id` (or `path`) and `new` (or `label`), for an item, or `old` and `new`, for all items of a class:
    two classes with the same `new` become one, and an empty `new` takes the label away. Lines for items come before
    those for classes, later lines before earlier ones. `who` and `when` are ignored. The same table can be applied
    again. In a table of decisions of `metrix label`, items that were deleted or are duplicates are taken out of the
    index, after labels are set.

    Raises:
        DataError: the table has other columns, contradicts itself, or speaks of other labels than the index has.
        InvalidInput: an item is not in the index.
    """
    items, classes = _read_decisions(index, path)
    gone = [one for one, item in items.items() if item.removed]
    gone = [one for one, row in zip(gone, index.find(gone).tolist(), strict=True) if row >= 0] if gone else []
    items = {one: item for one, item in items.items() if not item.removed}
    rows = index.require_known(list(items)) if items else ()
    wanted = dict(zip([int(row) for row in rows], items.values(), strict=True))
    ids: list[Any] = []
    labels: list[str | None] = []
    seen: set[str | None] = set()
    contradicted: list[str] = []
    for some, batch in index.store.scan():
        now = batch.columns[LABEL].to_pylist() if LABEL in index.columns else [None] * len(batch)
        for row, one, value in zip(some.tolist(), batch.ids.to_pylist(), now, strict=True):
            label = None if value is None else str(value)
            seen.add(label)
            if row in wanted:
                item = wanted[row]
                if item.before and label not in {*item.before, item.new}:
                    contradicted.append(f"{one} is {label!r}")
                new = item.new
            else:
                new = classes.get(label, label) if label is not None else None
            if new != label:
                ids.append(one)
                labels.append(new)
    if contradicted:
        raise DataError(
            f"{path}: expected items with the labels in the column 'old', got others: {first_few(contradicted)}; leave "
            "out 'old' to set them anyway"
        )
    # where the table was applied before, the new names are there in place of the old ones
    absent = [old for old, new in classes.items() if old not in seen]
    missing = [old for old in absent if classes[old] not in seen]
    if missing:
        raise DataError(f"{path}: expected classes of the index in the column 'old', got {first_few(missing)}")
    if ids:
        index.set_columns(ids, {LABEL: labels})
    if gone:
        index.delete(gone)
    return Relabelled(len(ids) + len(gone), tuple(absent))


def _read_decisions(index: Index, path: Path) -> tuple[dict[Any, _Item], dict[str, str | None]]:
    """What the table says about items, by id, and about classes, by old name."""
    table = read_history(path)
    for name in table:
        if name not in COLUMNS:
            raise DataError(f"{path}: {unknown_choice('column', name, COLUMNS)}")
    target = "new" if "new" in table else LABEL
    key = "id" if "id" in table else "path"
    if target not in table or not {key, "old"} & table.keys():
        raise DataError(
            f"{path}: expected columns id and label, or old and new, got {first_few(list(table), 10) or 'none'}"
        )
    count = len(table[target])
    keys, olds, news, kinds = (_texts(table, name, count) for name in (key, "old", target, decided.DECISION))
    _check_labels(path, olds, news, _texts(table, LABEL, count) if LABEL in table else news)
    named = iter(infer_types([one for one in keys if one])) if not index.store.ids_are_text else None
    items: dict[Any, _Item] = {}
    classes: dict[str, str | None] = {}
    for line, (one, old, new, kind) in enumerate(zip(keys, olds, news, kinds, strict=True), 1):
        if kind is not None and kind not in decided.DECISIONS:
            raise DataError(f"{path}, row {line}: {unknown_choice('decision', kind, decided.DECISIONS)}")
        if one:
            item = items.setdefault(one if named is None else next(named), _Item(new))
            item.new, item.removed = new, kind in decided.REMOVED
            # a decision says what the label was, also where it was none
            item.before |= {old, new} if old is not None or kind is not None else set()
        elif old is None:
            raise DataError(f"{path}, row {line}: expected an id, or an old class, got neither")
        elif classes.setdefault(old, new) != new:
            raise DataError(f"{path}, row {line}: expected one new name for {old!r}, got {classes[old]!r} and {new!r}")
    both = [new for old, new in classes.items() if new in classes and new != old and classes[new] != new]
    if both:
        raise DataError(
            f"{path}: expected new names that are not old ones, so that the table can be applied again, got "
            f"{first_few(both)} as both; apply several tables in turn, for a swap with a name in between"
        )
    return items, classes


def _check_labels(
    path: Path, olds: Sequence[str | None], news: Sequence[str | None], labels: Sequence[str | None]
) -> None:
    """An error if a new label cannot be read, or the columns `new` and `label` say different things."""
    for line, (old, new, label) in enumerate(zip(olds, news, labels, strict=True), 1):
        if new != label:
            raise DataError(f"{path}, row {line}: expected the same in 'new' and 'label', got {new!r} and {label!r}")
        if new is not None and new != old:
            try:
                read_label(new)
            except InvalidInput as error:
                raise DataError(f"{path}, row {line}: {error}") from None


def _texts(table: Mapping[str, Any], name: str, count: int) -> list[str | None]:
    return [_read_text(value) or None for value in table.get(name, [None] * count)]


def _read_text(value: Any) -> str:
    """A cell as text; integers with gaps, which a Parquet file has as floats, are integers."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else read_cell(value)
