from __future__ import annotations

import json
from pathlib import Path

import pytest

from metrix.experiments import all_methods as field
from metrix.experiments.methods import list_methods, list_runs
from metrix.train.presets import preset
from tests.command_line import Metrix


def test_the_list_is_a_table_or_json(metrix: Metrix) -> None:
    printed = metrix("methods")
    assert printed.code == 0, printed.err
    assert all(row.name in printed.out and row.reference in printed.out for row in list_methods())
    assert json.loads(metrix("methods", "--json").out) == [row.to_dict() for row in list_methods()]


def test_settings_of_runs_without_runs(metrix: Metrix) -> None:
    printed = metrix("methods", "--steps", "3", "-o", "somewhere")
    assert printed.code != 0
    assert "--steps, --output without --train" in printed.err


def test_trains_and_tells(metrix: Metrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = preset("glyphs").with_values({"data": "glyphs-mini", "batch_size": 16, "dim": 8})
    monkeypatch.setattr(field, "BASE", {"train_classes": 8})
    monkeypatch.setattr(field, "preset", lambda name: small)
    chosen = [e for e in list_runs() if e.name in ("proxy-synthesis", "triplet", "cls")]
    monkeypatch.setattr(field, "list_runs", lambda: chosen)
    options = ("methods", "--train", "--data", "glyphs-mini", "--steps", "2", "--seeds", "2", "-o", tmp_path / "all")
    printed = metrix(*options)
    assert printed.code == 0, printed.err
    for words in ("nearest neighbour in pixels", "proxy-synthesis embed", "triplet, clean", "±", "cls is left out"):
        assert words in printed.out
    found = json.loads(metrix(*options, "--json").out)
    assert [row["name"] for row in found["rows"]] == ["triplet", "proxy-synthesis"]
    assert all(len(row["recall@1"]) == 2 and row["seconds"] > 0 for row in found["rows"])


@pytest.mark.parametrize("method", ["imix", "mochi", "proxy-synthesis"])
def test_train_by_name(metrix: Metrix, tmp_path: Path, method: str) -> None:
    loss = "proxy-anchor" if method == "proxy-synthesis" else "contrastive"
    small = ("--data", "glyphs-mini", "--backbone", "glyphs-cnn", "--dim", 8, "--batch-size", 12, "--per-class", 3)
    chosen = ("--train-classes", 8, "--max-steps", 3, "--loss", loss, "--mixup-method", method)
    printed = metrix("train", *small, *chosen, "-o", tmp_path / "run", "--json")
    assert printed.code == 0, printed.err
    assert json.loads(printed.out)["steps"] == 3
    wrong = metrix("train", *small, *chosen[:-3], "nca" if loss != "nca" else loss, "--mixup-method", "proxy-synthesis")
    assert wrong.code != 0
    assert "ProxySynthesis with NCA" in wrong.err
