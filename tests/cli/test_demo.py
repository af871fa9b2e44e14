from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from metrix.train.presets import preset
from tests.command_line import Metrix
from tests.report.markup import checked


@pytest.fixture(autouse=True)
def _mini(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small glyphs, few of them in a batch."""
    small = preset("glyphs").with_values({"data": "glyphs-mini", "train_classes": 8, "batch_size": 16, "dim": 8})
    monkeypatch.setattr("metrix.experiments.demo.preset", lambda name: small)


def test_both_sides_are_told(metrix: Metrix, tmp_path: Path) -> None:
    printed = metrix("demo", "--steps", "2", "--seeds", "2", "-o", tmp_path / "demo")
    assert printed.code == 0, printed.err
    assert "which is not enrolled" in printed.out
    assert "none of the index" in printed.out
    for word in ("Recall@1", "Recall@4", "alignment", "uniformity", "utilization", "±", "significant"):
        assert word in printed.out
    read_again = metrix("demo", "--steps", "2", "--seeds", "2", "-o", tmp_path / "demo", "--json")
    found = json.loads(read_again.out)
    assert len(found["measures"]["Recall@1"]["clean"]) == 2
    runs = [path.name for path in (tmp_path / "demo" / "2-steps").iterdir()]
    assert len([name for name in runs if "seed" in name]) == 4


def test_the_demo_ends_in_a_report_and_a_search(metrix: Metrix, tmp_path: Path) -> None:
    arguments = ("demo", "--steps", "2", "--seeds", "2", "-o", tmp_path / "demo")
    printed = metrix(*arguments)
    assert printed.code == 0, printed.err
    assert "never seen in training, among 1,464" in printed.out
    for name in ("report.html", "search.html", "metrix explore", "metrix search"):
        assert name in printed.out
    page = checked((tmp_path / "demo" / "search.html").read_text("utf-8"))
    assert len([image for image in page.all("img") if image["alt"].startswith("query")]) == 12
    assert len(page.all("img")) == 12 * 6
    assert "right" in page.text
    built = (tmp_path / "demo" / "2-steps" / "characters.index" / "description.json").stat().st_mtime_ns
    found = metrix(*arguments, "--json").json
    assert found["pages"] == [str(tmp_path / "demo" / name) for name in ("report.html", "search.html")]
    searched = found["search"]
    assert len({one["query"].partition("/")[0] for one in searched["queries"]}) == 12  # of different classes
    first = searched["queries"][0]
    again = metrix("search", searched["index"], "--id", first["query"], "--json").json["queries"][0]["neighbours"]
    assert [one["id"] for one in again[:5]] == [one["id"] for one in first["neighbours"]]
    similarities = [one["similarity"] for one in first["neighbours"]]
    assert [one["similarity"] for one in again[:5]] == pytest.approx(similarities, abs=1e-6)  # one query, or twelve
    assert (tmp_path / "demo" / "2-steps" / "characters.index" / "description.json").stat().st_mtime_ns == built

    report = checked((tmp_path / "demo" / "report.html").read_text("utf-8"))
    assert found["conclusion"] in report.text.replace("\n", " ")
    assert "Everything below the first section is of the first seed" in report.text
    headings = [words for where, words in report.words if where == "h2"]
    assert headings[0] == "Clean against Metrix"
    assert {"Training", "Metrics", "Classes", "Retrieved images", "Embedding map"} <= set(headings)
    assert "Overview" not in headings  # what one seed says is no conclusion
    with (tmp_path / "demo" / "report-files" / "seeds.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    clean = found["measures"]["Recall@1"]["clean"]
    assert float(rows[1][1]) == pytest.approx(sum(clean) / 2)
