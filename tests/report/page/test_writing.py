"""A page and its files on disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metrix.errors import InvalidInput
from tests.report.page.pages import a_page


def test_all_files_are_written_whole_and_named(tmp_path: Path) -> None:
    written = a_page("words").write(tmp_path / "new" / "report.html")
    folder = tmp_path / "new" / "report-files"
    assert written == [tmp_path / "new" / "report.html", tmp_path / "new" / "report.md", folder]
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["gallery.csv", "gallery.png", *(f"words-2.{kind}" for kind in ("csv", "png", "svg")), "words.csv"]
    text = (tmp_path / "new" / "report.md").read_text("utf-8")
    for address in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / "new" / address).is_file(), address
    elsewhere = tmp_path / "figures"
    a_page().write(tmp_path / "other.html", elsewhere)
    assert (elsewhere / "gallery.png").is_file()
    assert "(figures/gallery.png)" in (tmp_path / "other.md").read_text("utf-8")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"ends in \.html"):
        a_page().write(tmp_path / "report.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written, because of"):
        a_page().write(tmp_path / "file" / "report.html")
