"""Classes are renamed, merged and removed by a table, all at once, and again without effect."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from metrix.errors import DataError, InvalidInput
from metrix.retrieve.classify import Classifier
from metrix.retrieve.relabel import relabel_from
from metrix.search import Index


def labels_of(index: Index) -> dict[str, str | None]:
    return {record["id"]: record["label"] for _, items in index.store.scan() for record in items.records()}


@pytest.fixture
def table(tmp_path: Path) -> Any:
    def write(*lines: str) -> Path:
        path = tmp_path / "labels.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


def test_rename_merge_remove_and_items_in_one_table_twice(own_index: Path, table: Any) -> None:
    index = Index.open(own_index)
    vectors = index.get(["kind 0/1.jpg"]).vectors
    decisions = table(
        "id,old,new,who,when",
        ",kind 0,wide,ann,2026-11-18",
        ",kind 1,wide,ann,2026-11-18",
        ",kind 2,,ann,2026-11-18",
        "kind 0/3.jpg,kind 0,special,bob,2026-11-18",
        "kind 2/1.jpg,,special,bob,2026-11-18",
    )
    assert relabel_from(index, decisions).items == 18
    found = labels_of(Index.open(own_index))
    assert Counter(found.values()) == {"wide": 11, None: 5, "special": 2}
    assert found["kind 0/3.jpg"] == found["kind 2/1.jpg"] == "special"
    assert (index.get(["kind 0/1.jpg"]).vectors == vectors).all()
    generation = Index.open(own_index).description.generation
    assert relabel_from(Index.open(own_index), decisions).items == 0
    assert Index.open(own_index).description.generation == generation  # nothing was written
    assert set(Classifier.fit(own_index).classes.names) == {"wide", "special"}


def test_later_lines_about_an_item_win(own_index: Path, table: Any) -> None:
    decisions = table("id,old,new", "kind 0/1.jpg,kind 0,a", "kind 0/1.jpg,a,b")
    for changed in (1, 0):
        assert relabel_from(Index.open(own_index), decisions).items == changed
        assert labels_of(Index.open(own_index))["kind 0/1.jpg"] == "b"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("old,new", "kind 0,a", "kind 9,b"), "expected classes of the index in the column 'old', got kind 9"),
        (("old,new", "kind 0,kind 1", "kind 1,kind 0"), "expected new names that are not old ones"),
        (("old,new", "kind 0,a", "kind 0,b"), "row 2: expected one new name for 'kind 0'"),
        (("id,old,new", "kind 0/1.jpg,kind 2,a"), "kind 0/1.jpg is 'kind 0'"),
        (("id,new", "kind 0/99.jpg,a"), "id: expected one of 18"),
        (("id,lable", "kind 0/1.jpg,a"), r"labels\.csv: unknown column 'lable'; did you mean"),
        (("id,new,label", "kind 0/1.jpg,a,b"), "row 1: expected the same in 'new' and 'label', got 'a' and 'b'"),
        (("old,new", "kind 0,a\x1b[2J"), "row 1: label: expected 1 to 200 printable characters"),
        (("old,new", f"kind 0,{'x' * 201}"), "row 1: label: expected 1 to 200 printable characters"),
        (("who,when", "ann,today"), "expected columns id and label, or old and new"),
        (("id,new", ",a"), "row 1: expected an id, or an old class, got neither"),
    ],
)
def test_mistakes_change_nothing(own_index: Path, table: Any, lines: tuple[str, ...], words: str) -> None:
    before = labels_of(Index.open(own_index))
    with pytest.raises((DataError, InvalidInput), match=words):
        relabel_from(Index.open(own_index), table(*lines))
    assert labels_of(Index.open(own_index)) == before


def test_a_parquet_table_has_integers_with_gaps_as_floats(tmp_path: Path) -> None:
    Index.build(np.eye(4), [1, 2, 3, 4], columns={"label": ["a", "a", "b", "b"]}).save(tmp_path / "own.index")
    columns = {"id": [3.0, None, None], "old": [None, "a", "b"], "new": ["c", None, "nan"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "labels.parquet")
    assert relabel_from(Index.open(tmp_path / "own.index"), tmp_path / "labels.parquet").items == 4
    assert labels_of(Index.open(tmp_path / "own.index")) == {1: None, 2: None, 3: "c", 4: None}


def test_a_table_that_cannot_be_read_is_one_error(own_index: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read: .*expected a table"):
            relabel_from(Index.open(own_index), path)


def test_the_command(metrix: Any, refused: Any, own_index: Path, table: Any) -> None:
    decisions = table("old,new", "kind 0,zero")
    outcome = metrix("index", "-o", own_index, "--relabel", decisions, "--json")
    assert outcome.code == 0, outcome.err
    assert (outcome.json["relabelled"], outcome.json["absent"]) == (6, [])
    assert Counter(labels_of(Index.open(own_index)).values())["zero"] == 6
    again = metrix("index", "-o", own_index, "--relabel", table("old,new", "kimd 1,zero", "kind 2,zero"))
    assert "6 items changed" in again.out
    assert "no item has the label kimd 1: renamed before, or misspelt" in again.err
    refused("index", "-o", own_index, "--relabel", decisions, "--delete", "a", words=("--delete and --relabel",))
