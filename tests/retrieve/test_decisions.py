"""The table of decisions: what it holds, who writes to it at once, and what takes it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix import data
from metrix.errors import DataError, InvalidInput
from metrix.retrieve.decisions import DecisionFile, choose_decisions_file, write_manifest
from metrix.retrieve.image_lists import list_images
from metrix.retrieve.relabel import relabel_from
from metrix.search import Index

HOSTILE = "\"><script>alert(1)</script>,;'=1+1"


@pytest.fixture
def index(own_index: Path) -> Index:
    return Index.open(own_index)


def label_of(folder: Path, one: str) -> object:
    return Index.open(folder).get([one]).columns["label"][0].as_py()


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_lines_say_who_when_and_what_was_before(index: Index, own_index: Path, tmp_path: Path) -> None:
    path = choose_decisions_file(own_index)
    assert path == own_index.parent / "photos.labels.csv"
    file = DecisionFile(path)
    assert file.read() == {}
    made, before = file.add(index, "kind 0/1.jpg", "relabel", " kind 1 ", who="anna")
    assert (made.old, made.new, made.who, before) == ("kind 0", "kind 1", "anna", None)
    file.add(index, "kind 0/2.jpg", "keep", who="anna")
    again, before = DecisionFile(path).add(index, "kind 0/1.jpg", "class", HOSTILE, who="ben\n=x")
    assert (again.old, again.new, again.who) == ("kind 0", HOSTILE, "ben =x")
    assert before == made
    file.add(index, "kind 0/3.jpg", "duplicate", of="kind 0/4.jpg")
    lines = lines_of(path)
    assert [(one["id"], one["old"], one["new"], one["decision"], one["of"]) for one in lines] == [
        ("kind 0/1.jpg", "kind 0", "kind 1", "relabel", ""),
        ("kind 0/2.jpg", "kind 0", "kind 0", "keep", ""),
        ("kind 0/1.jpg", "kind 0", HOSTILE, "class", ""),
        ("kind 0/3.jpg", "kind 0", "", "duplicate", "kind 0/4.jpg"),
    ]
    assert all(one["label"] == one["new"] and one["when"].endswith("+00:00") for one in lines)
    assert {one: made.new for one, made in file.read().items()} == {
        "kind 0/2.jpg": "kind 0",
        "kind 0/1.jpg": HOSTILE,
        "kind 0/3.jpg": None,
    }
    undone, before = file.add(index, "kind 0/1.jpg", "undo")
    assert (undone.old, undone.new, before) == (HOSTILE, "kind 0", again)
    assert "kind 0/1.jpg" not in file.read()
    assert len(path.read_text("utf-8").splitlines()) == 6  # nothing is ever taken out


def test_relabel_takes_it_also_twice_and_after_an_undo(index: Index, own_index: Path) -> None:
    file = DecisionFile(choose_decisions_file(own_index))
    file.add(index, "kind 0/1.jpg", "relabel", "kind 1")
    file.add(index, "kind 0/2.jpg", "class", "new")
    file.add(index, "kind 1/0.jpg", "delete")
    file.add(index, "kind 1/1.jpg", "duplicate", of="kind 1/2.jpg")
    file.add(index, "kind 2/0.jpg", "keep")
    file.add(index, "kind 2/1.jpg", "relabel", "kind 0")
    file.add(index, "kind 2/1.jpg", "undo")
    assert relabel_from(index, file.path).items == 4
    assert relabel_from(Index.open(own_index), file.path).items == 0
    found = Index.open(own_index)
    assert len(found) == 16
    assert label_of(own_index, "kind 0/1.jpg") == "kind 1"
    assert label_of(own_index, "kind 0/2.jpg") == "new"
    assert label_of(own_index, "kind 2/1.jpg") == "kind 2"
    assert found.find(["kind 1/0.jpg", "kind 1/1.jpg"]).tolist() == [-1, -1]
    file.add(found, "kind 0/2.jpg", "undo")  # after it was applied
    assert relabel_from(found, file.path).items == 1
    assert label_of(own_index, "kind 0/2.jpg") == "kind 0"


@pytest.mark.parametrize("saved", [lambda text: text.replace(",", ";"), lambda text: f"\ufeff{text}"])
def test_a_table_that_a_spreadsheet_saved_takes_more(index: Index, tmp_path: Path, saved: Any) -> None:
    file = DecisionFile(tmp_path / "d.csv")
    file.add(index, "kind 0/1.jpg", "relabel", "kind 1")
    file.path.write_text(saved(file.path.read_text("utf-8")), "utf-8")
    file.add(index, "kind 0/2.jpg", "class", "a,b;c")
    assert {one: made.new for one, made in DecisionFile(file.path).read().items()} == {
        "kind 0/1.jpg": "kind 1",
        "kind 0/2.jpg": "a,b;c",
    }


def test_one_of_two_duplicates_stays(index: Index, tmp_path: Path) -> None:
    file = DecisionFile(tmp_path / "d.csv")
    file.add(index, "kind 0/1.jpg", "duplicate", of="kind 0/2.jpg")
    with pytest.raises(InvalidInput, match=r"expected an item that stays, got 'kind 0/1\.jpg', which is to go"):
        file.add(index, "kind 0/2.jpg", "duplicate", of="kind 0/1.jpg")
    assert list(file.read()) == ["kind 0/1.jpg"]


def test_items_without_a_label_get_one(index: Index, own_index: Path) -> None:
    index.set_columns(["kind 0/1.jpg"], {"label": [None]})
    file = DecisionFile(choose_decisions_file(own_index))
    file.add(index, "kind 0/1.jpg", "accept", "kind 2")
    assert relabel_from(index, file.path).items == 1
    index.set_columns(["kind 0/1.jpg"], {"label": ["kind 1"]})
    with pytest.raises(DataError, match=r"got others: kind 0/1\.jpg is 'kind 1'"):
        relabel_from(index, file.path)


def test_it_is_a_manifest_of_what_has_a_label(index: Index, indexed: Path, own_index: Path) -> None:
    inside, outside = indexed / "decided.csv", choose_decisions_file(own_index)
    for path in (inside, outside):
        file = DecisionFile(path)
        file.add(index, "kind 0/1.jpg", "relabel", "kind 1")
        file.add(index, "kind 0/2.jpg", "keep")
        file.add(index, "kind 0/3.jpg", "delete")
        file.add(index, "kind 0/4.jpg", "class", "kind 9")
        file.add(index, "kind 0/4.jpg", "undo")
        file.add(index, "kind 1/4.jpg", "relabel", "kind 0")
    reported = data.check(str(inside))
    assert any("2 images are left out that were deleted" in note for note in reported.notes)
    catalogue = data.open(str(inside)).catalogue
    named = {path: catalogue.class_names[k] for path, k in zip(catalogue.paths, catalogue.labels, strict=True)}
    assert named == {
        "photos/kind 0/1.jpg": "kind 1",
        "photos/kind 0/2.jpg": "kind 0",
        "photos/kind 1/4.jpg": "kind 0",
    }
    inside.unlink()
    listed = list_images([outside], indexed / "photos")
    assert sorted(zip(listed.ids, listed.columns["label"].to_pylist(), strict=True)) == [
        ("kind 0/1.jpg", "kind 1"),
        ("kind 0/2.jpg", "kind 0"),
        ("kind 1/4.jpg", "kind 0"),
    ]


def test_a_manifest_of_everything_with_decisions_applied(index: Index, indexed: Path, tmp_path: Path) -> None:
    file = DecisionFile(tmp_path / "d.csv")
    file.add(index, "kind 0/1.jpg", "relabel", "kind 1")
    file.add(index, "kind 0/3.jpg", "delete")
    assert write_manifest(index, file.read(), indexed / "all.csv") == 17
    catalogue = data.open(str(indexed / "all.csv")).catalogue
    named = {path: catalogue.class_names[k] for path, k in zip(catalogue.paths, catalogue.labels, strict=True)}
    (indexed / "all.csv").unlink()
    assert len(named) == 17
    assert named["photos/kind 0/1.jpg"] == "kind 1"
    assert named["photos/kind 2/5.jpg"] == "kind 2"
    assert "photos/kind 0/3.jpg" not in named


def test_crop_boxes_stay(tmp_path: Path) -> None:
    vectors = np.eye(3)
    index = Index.build(vectors, ["a.jpg#1,2,3,4", "a.jpg#5,6,7,8", "b.jpg"], columns={"label": ["x", "y", "x"]})
    file = DecisionFile(tmp_path / "d.csv")
    file.add(index, "a.jpg#1,2,3,4", "keep")
    file.add(index, "a.jpg#5,6,7,8", "keep")
    file.add(index, "b.jpg", "keep")
    lines = lines_of(file.path)
    assert [(one["path"], one["x_1"], one["y_2"]) for one in lines] == [
        ("a.jpg", "1", "4"),
        ("a.jpg", "5", "8"),
        ("b.jpg", "", ""),
    ]
    assert relabel_from(index_in(tmp_path, index), file.path).items == 0
    from metrix.data.layouts import manifest

    assert len(manifest.read(file.path)) == 3


def index_in(folder: Path, index: Index) -> Index:
    index.save(folder / "own.index")
    return Index.open(folder / "own.index")


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    index = Index.build(np.eye(40), columns={"label": ["x"] * 40})
    files = [DecisionFile(tmp_path / "d.csv") for _ in range(4)]

    def work(number: int) -> None:
        for one in range(number, 40, 4):
            files[number].add(index, str(one), "relabel", f"by {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one: made.new for one, made in files[0].read().items()} == {str(n): f"by {n % 4}" for n in range(40)}


def test_a_killed_writer_leaves_what_was_confirmed(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np\nfrom pathlib import Path\nfrom metrix.search import Index\n"
        "from metrix.retrieve.decisions import DecisionFile\n"
        "index = Index.build(np.eye(200), columns={'label': ['x'] * 200})\nfile = DecisionFile(Path(sys.argv[1]))\n"
        "for n in range(200):\n    file.add(index, str(n), 'keep')\n    print(n, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path / "d.csv"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    confirmed = [int(process.stdout.readline()) for _ in range(12)]
    process.kill()
    confirmed += [int(line) for line in process.stdout.read().split()]
    process.stdout.close()
    process.wait()
    file = DecisionFile(tmp_path / "d.csv")
    kept = file.read()
    assert set(map(str, confirmed)) <= kept.keys()
    index = Index.build(np.eye(200), columns={"label": ["x"] * 200})
    file.add(index, "199", "keep")
    assert file.read().keys() == kept.keys() | {"199"}


@pytest.mark.parametrize("label", ["", "  ", "x" * 201, "a\nb", "a\x1b[2J", "a\u202eb", None])
def test_labels_that_are_none(label: str | None, index: Index, tmp_path: Path) -> None:
    file = DecisionFile(tmp_path / "d.csv")
    with pytest.raises(InvalidInput, match="label: expected 1 to 200 printable"):
        file.add(index, "kind 0/1.jpg", "relabel", label)
    assert not file.path.exists()


def test_mistakes(index: Index, tmp_path: Path) -> None:
    file = DecisionFile(tmp_path / "d.csv")
    for arguments, said in (
        (("no.jpg", "keep"), "expected an item of the index, got 'no.jpg'"),
        (("kind 0/1.jpg", "kep"), "did you mean 'keep'"),
        (("kind 0/1.jpg", "duplicate"), "of: expected another item"),
        (("kind 0/1.jpg", "undo"), "expected an item with a decision"),
    ):
        with pytest.raises(InvalidInput, match=said):
            file.add(index, *arguments)
    with pytest.raises(InvalidInput, match="of: expected another item"):
        file.add(index, "kind 0/1.jpg", "duplicate", of="kind 0/1.jpg")
    with pytest.raises(InvalidInput, match=r"ends in \.csv"):
        DecisionFile(tmp_path / "d.parquet")
    (tmp_path / "other.csv").write_text("path,label\na,b\n")
    with pytest.raises(DataError, match="expected a table of decisions"):
        DecisionFile(tmp_path / "other.csv").add(index, "kind 0/1.jpg", "keep")
    assert (tmp_path / "other.csv").read_text() == "path,label\na,b\n"
    header = "id,path,old,new,label,of,who,when,decision\n"
    (tmp_path / "bad.csv").write_text(f"{header}kind 0/1.jpg,a,x,y,y,,me,now,perhaps\n")
    with pytest.raises(DataError, match="unknown decision 'perhaps'"):
        DecisionFile(tmp_path / "bad.csv").read()
    with pytest.raises(DataError, match="unknown decision 'perhaps'"):
        relabel_from(index, tmp_path / "bad.csv")


@pytest.mark.skipif(os.name != "posix", reason="folders without the right to write")
def test_a_folder_that_cannot_be_written(index: Index, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        DecisionFile(Path("/proc/labels/d.csv")).add(index, "kind 0/1.jpg", "keep")
