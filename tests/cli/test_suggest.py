"""`metrix suggest`, as typed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.photos import draw_photo


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unlabelled")
    for c in range(4):
        for n in range(30, 33):
            draw_photo(c, n).save(folder / f"{c}-{n}.png")
    (folder / "[red]<b>.jpg").write_bytes(b"no image")
    draw_photo(3, 40).save(folder / "[red]<img src=x onerror=alert(1)>.png")
    return folder


def test_table_files_and_page_agree(metrix: Any, indexed: Path, unlabelled: Path, tmp_path: Path) -> None:
    index = indexed / "photos.index"
    table, page = tmp_path / "s.csv", tmp_path / "s.html"
    outcome = metrix("suggest", index, unlabelled, "-n", 4, "-o", table, "--html", page, "--threshold", 1)
    assert outcome.code == 0, outcome.err
    assert "4 images to label next, of 13" in outcome.out
    assert "strategy typical; compared with 18 labelled items" in outcome.out
    assert "1 skipped" in outcome.err
    lines = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    assert [line["rank"] for line in lines] == ["1", "2", "3", "4"]
    assert all(line["reason"] and Path(line["file"]).is_file() and line["nearest_label"] for line in lines)
    text = page.read_text("utf-8")
    assert text.count("data:image/") == 4 * 6  # each with the five labelled ones that are nearest
    assert "<img src=x" not in text
    found = metrix("suggest", index, unlabelled, "-n", 4, "--threshold", 1, "--json").json
    assert [one["id"] for one in found["suggestions"]] == [line["id"] for line in lines]
    assert metrix("suggest", index, unlabelled, "-n", 4, "-o", tmp_path / "s.json", "--threshold", 1).code == 0
    assert json.loads((tmp_path / "s.json").read_text("utf-8"))["suggestions"] == found["suggestions"]


def test_fewer_than_asked_for_are_said(metrix: Any, indexed: Path, unlabelled: Path) -> None:
    outcome = metrix("suggest", indexed / "photos.index", unlabelled, "-n", 50)
    assert outcome.code == 0, outcome.err
    assert "50 were asked for: all others are near-copies" in outcome.out


def test_a_list_of_paths_to_add(metrix: Any, indexed: Path, unlabelled: Path, tmp_path: Path) -> None:
    chosen = metrix(
        "suggest", indexed / "photos.index", unlabelled, "-n", 3, "--strategy", "coverage", "-o", tmp_path / "s.txt"
    )
    assert chosen.code == 0, chosen.err
    assert "--add" in chosen.err
    listed = (tmp_path / "s.txt").read_text("utf-8").splitlines()
    assert len(listed) == 3
    assert all(Path(one).is_file() for one in listed)


def test_mistakes(metrix: Any, refused: Any, indexed: Path, unlabelled: Path, tmp_path: Path) -> None:
    index = indexed / "photos.index"
    refused("suggest", index, unlabelled, "--strategy", "covrage", words=("did you mean 'coverage'?",))
    refused("suggest", index, unlabelled, "-o", tmp_path / "s.xls", words=(".csv, .json, .txt", "s.xls"))
    refused("suggest", index, unlabelled, "--html", tmp_path / "page", words=("ends in .html",))
    refused("suggest", index, words=("got neither", "unlabelled/"))
    refused("suggest", index, tmp_path / "no", words=("does not exist",))
    refused("suggest", tmp_path, unlabelled, words=("expected an index",))
    refused("suggest", index, unlabelled, "-o", tmp_path / "no" / "s.csv", words=("cannot be written",))
