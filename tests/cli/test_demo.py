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
    assert len(list((tmp_path / "demo" / "2-steps").iterdir())) == 4
