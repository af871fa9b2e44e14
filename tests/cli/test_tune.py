"""`metrix tune`: what is refused, with which words, and a small study from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metrix.train.config import read_config
from tests.command_line import Metrix, refused

pytest.importorskip("optuna")
TINY = ("--train-classes", "8", "--batch-size", "16", "--max-steps", "2", "--dim", "8")


def test_a_study_prints_its_table_its_conclusion_and_what_to_do_next(metrix: Metrix, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    asked = ("--method", "contrastive", "--trials", "1", "--folds", "2", "--seeds", "2", "--no-cheap", "-o", folder)
    printed = metrix("tune", "glyphs-mini", *TINY, *asked)
    assert printed.code == 0, printed.err
    for words in ("untrained", "contrastive", "Best on the folds: contrastive", "Another hour: about"):
        assert words in printed.out
    for words in ("plan: 1 trial of each of 1 method", "trial 1 contrastive", "best.yaml", "--resume"):
        assert words in printed.err
    assert read_config(folder / "best.yaml").train.max_steps == 2  # the only trial has the settings to begin with
    again = metrix("tune", "--resume", folder, "--json")
    assert json.loads(again.out)["best"]["method"] == "contrastive"
    assert again.err == ""
    trained = metrix("train", "--config", folder / "best.yaml", "-o", tmp_path / "run", "--quiet")
    assert trained.code == 0, trained.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune",), ("no data was given",)),
        (("tune", "glyphs-mini"), ("expected --budget TIME, such as 2h, or --trials N",)),
        (("tune", "glyphs-mini", "--budget", "soon"), ("--budget: expected a time such as 8h",)),
        (("tune", "nowhere", "--trials", "2"), ("nowhere",)),
        (("tune", "glyphs-mini", "--trials", "2", "--method", "contrastve"), ("did you mean 'contrastive'",)),
        (("tune", "glyphs-mini", "--trials", "2", "--space", "none.yaml"), ("--space none.yaml: cannot be read",)),
        (("tune", "--resume", "nowhere"), ("nowhere is no study", "metrix tune DATA")),
        (("tune", "--resume", "a", "--join", "b"), ("--resume and --join were both given",)),
        (("tune", "glyphs", "--resume", "a", "--lr", "1"), ("--resume with DATA, --lr", "--budget and --trials may")),
        (("tune", "--join", "a", "--budget", "1h"), ("--join with --budget",)),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(*arguments, words=words)
    assert not list(tmp_path.glob("tunes/*/study.json"))
