from __future__ import annotations

import json
from pathlib import Path

from metrix import data

from .conftest import Paint, damage


def test_a_sound_dataset_checks_out(photos: Path) -> None:
    report = data.check(photos, seed=3)
    dataset = data.open(photos, seed=3)
    assert report.ok
    assert report.layout == "folder"
    assert report.fingerprint == dataset.catalogue.fingerprint()
    assert report.parts == {part: data.PartSummary(9, 3, 3, 3.0, 3) for part in ("train", "test")}
    assert report.sizes[0] == (20, 16)
    assert report.sizes[2] == (22, 21)
    assert json.loads(json.dumps(report.to_dict()))["parts"]["train"]["images"] == 9


def test_check_tells_all_problems_instead_of_raising(photos: Path) -> None:
    damage(photos / "class1" / "0.png")
    (photos / "nothing").mkdir()
    report = data.check(photos, max_bad=0)
    assert not report.ok
    assert [b.path for b in report.broken] == ["class1/0.png"]
    assert len(report.problems) == 1  # a folder without images is no class
    assert "max_bad=0 allows 0" in report.problems[0]
    assert "1 folder has no images and is no class: nothing" in report.notes


def test_check_of_what_cannot_be_read_at_all(tmp_path: Path) -> None:
    assert "neither a built-in one" in data.check(tmp_path / "nowhere").problems[0]


def test_check_counts_what_has_no_answer(tmp_path: Path, paint: Paint) -> None:
    for path in (
        "train/a/1.png",
        "train/b/1.png",
        "train/b/2.png",
        "query/c/1.png",
        "query/d/1.png",
        "gallery/c/2.png",
        "gallery/e/1.png",
    ):
        paint(tmp_path / path)
    report = data.check(tmp_path, holdout=0)
    assert report.ok
    assert report.notes[:2] == (
        "1 training class with a single image, which has no positive pair",
        "1 query image without any image of the same class to find",
    )


def test_check_of_missing_files(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "a.png")
    (tmp_path / "list.csv").write_text("label,path\ncat,a.png\ndog,b.png\n")
    assert "1 of 2 images are not in" in data.check(tmp_path / "list.csv").problems[0]


def test_check_mentions_copies_in_other_classes(photos: Path) -> None:
    assert not any("same content" in note for note in data.check(photos).notes)
    (photos / "class5" / "copy.png").write_bytes((photos / "class1" / "0.png").read_bytes())
    (photos / "class1" / "copy.png").write_bytes((photos / "class1" / "0.png").read_bytes())  # in its own class
    report = data.check(photos)
    assert report.ok
    assert "1 image with the same content as one of another class: class5/copy.png and class1/0.png" in report.notes
