from __future__ import annotations

import json
from pathlib import Path

import pytest

from metrix.train.presets import preset
from tests.command_line import Metrix


@pytest.fixture(autouse=True)
def _mini(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small glyphs, few of them in a batch."""
    small = preset("glyphs").with_values({"data": "glyphs-mini", "train_classes": 8, "batch_size": 16, "dim": 8})
    monkeypatch.setattr("metrix.experiments.demo.preset", lambda name: small)


def test_both_sides_are_told(metrix: Metrix, tmp_path: Path) -> None:
    printed = metrix("demo", "--steps", "2", "--seeds", "2", "-o", tmp_path / "demo")
    assert printed.code == 0, printed.err
    for word in ("Recall@1", "Recall@4", "alignment", "uniformity", "utilization", "±", "significant"):
        assert word in printed.out
    read_again = metrix("demo", "--steps", "2", "--seeds", "2", "-o", tmp_path / "demo", "--json")
    found = json.loads(read_again.out)
    assert len(found["measures"]["Recall@1"]["clean"]) == 2
    runs = [path.name for path in (tmp_path / "demo" / "2-steps").iterdir()]
    assert len([name for name in runs if "seed" in name]) == 4


def test_the_demo_ends_in_a_search(metrix: Metrix, tmp_path: Path) -> None:
    arguments = ("demo", "--steps", "2", "--seeds", "2", "-o", tmp_path / "demo")
    printed = metrix(*arguments)
    assert "never seen in training, among 1,464" in printed.out
    page = (tmp_path / "demo" / "search.html").read_text()
    assert page.count("data:image/png") == 6
    built = (tmp_path / "demo" / "2-steps" / "characters.index" / "manifest.json").stat().st_mtime_ns
    searched = metrix(*arguments, "--json").json["search"]
    assert len(searched["neighbours"]) == 5
    assert metrix("search", searched["index"], "--id", searched["query"], "--json").json["queries"][0]["neighbours"][
        :5
    ] == [*searched["neighbours"]]
    assert (tmp_path / "demo" / "2-steps" / "characters.index" / "manifest.json").stat().st_mtime_ns == built
