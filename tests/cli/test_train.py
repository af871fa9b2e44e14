from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from metrix.train import config
from tests.command_line import Metrix

SMALL = (
    "train", "glyphs-mini", "--backbone", "glyphs-cnn", "--dim", "8", "--batch-size", "12", "--per-class", "3",
    "--mixup", "embed", "--max-steps", "4", "--train-classes", "8",
)  # fmt: skip


def test_printed_settings_are_a_file_of_settings(tmp_path: Path, metrix: Metrix) -> None:
    printed = metrix("train", "--preset", "paper/cub", "--data", "birds", "--lr", "3e-4", "--print-config")
    assert printed.code == 0
    (tmp_path / "c.yaml").write_text(printed.out, "utf-8")
    settings = config.read_config(tmp_path / "c.yaml")
    assert (settings.data.data, settings.train.lr, settings.loss.loss) == ("birds", 3e-4, "multi-similarity")
    assert metrix("train", "--config", tmp_path / "c.yaml", "--print-config").out == printed.out


def test_another_loss_drops_the_parameters_of_the_preset(metrix: Metrix) -> None:
    printed = metrix("train", "--preset", "glyphs", "--loss", "contrastive", "--margin", "0.4", "--print-config")
    assert printed.code == 0
    assert printed.err == "metrix: left out of preset glyphs: beta 2.0, gamma 50.0, which multi-similarity has there\n"
    loss = yaml.safe_load(printed.out)["loss"]
    assert (loss["margin"], loss["beta"], loss["gamma"]) == (0.4, None, None)


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (("--mixup", "none"), "mixup", []),
        (("--mixup", "input,embed", "--hard-negatives", "3,all"), "hard_negatives", [3, None]),
        (("--pairs", "pos-neg"), "pairs", ["pos-neg"]),
        (("--lam-per", "batch"), "lam_per", "batch"),
        (("--target", "interpolated"), "target", "interpolated"),
    ],
)
def test_flags(flags: tuple[str, ...], key: str, value: object, metrix: Metrix) -> None:
    printed = metrix("train", "glyphs", *flags, "--print-config")
    assert yaml.safe_load(printed.out)["mixing"][key] == value


def test_switches(metrix: Metrix) -> None:
    printed = metrix("train", "--preset", "paper/cub", "--no-frozen-bn", "--print-config")
    assert yaml.safe_load(printed.out)["model"]["frozen_bn"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "paper/cup"), "did you mean 'paper/cub'"),
        (("glyphs-mini", "--loss", "contrastiv", "--backbone", "glyphs-cnn"), "did you mean 'contrastive'"),
        (("glyphs", "--mixup", "feture"), "feture"),
        (("glyphs", "--hard-negatives", "3,some"), "some"),
        (("glyphs", "--pool", "sum"), "sum"),
        ((), "no data was given"),
        (("glyphs", "--data", "glyphs-mini"), "two datasets"),
        (("glyphs", "--config", "nowhere.yaml"), "cannot be read"),
        (("glyphs", "--preset", "glyphs", "--config", "c.yaml"), "both given"),
        (("--resume", "nowhere"), "is no run"),
        (("--resume", "run", "--lr", "1"), "--resume with --lr"),
        (("nowhere",), "neither a built-in one nor an existing file"),
        (("glyphs-mini", "--backbone", "glyphs-cnn", "--loss", "contrastive", "--beta", "2"), "has no beta"),
        (
            ("glyphs-mini", "--backbone", "glyphs-cnn", "--loss", "triplet", "--beta", "2"),
            "it has margin, mining",
        ),
        (("glyphs-mini", "--backbone", "glyphs-cnn", "--loss", "triplet", "--mixup", "feature"), "--mixup none"),
        (("glyphs-mini", "--backbone", "glyphs-cnn", "--loss", "margin", "--mixup", "embed"), "Margin cannot be mixed"),
        (
            ("glyphs-mini", "--backbone", "glyphs-cnn", "--loss", "triplet", "--per-class", "1"),
            "per_class: expected at least 2",
        ),
        (("glyphs-mini", "--backbone", "glyphs-cnn", "--batch-size", "3"), "at least 10 with per_class=5"),
        (("glyphs-mini", "--backbone", "glyphs-cnn", "--holdout", "0.999"), ""),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, metrix: Metrix, tmp_path: Path) -> None:
    output = () if "--resume" in arguments else ("--output", tmp_path / "run")
    ended = metrix("train", *arguments, *output)
    assert ended.code == 2, ended.err
    assert message in ended.err
    assert ended.err.startswith("metrix: ")
    assert not (tmp_path / "run").exists()


def test_what_a_person_sees(metrix: Metrix, tmp_path: Path) -> None:
    ended = metrix(*SMALL, "--output", tmp_path / "run")
    assert ended.code == 0
    assert "Recall@1" in ended.out
    for word in ("clean", "mixed", "images/s", "R@1", "validation classes", "best", str(tmp_path / "run")):
        assert word in ended.err.replace("\n", "")


def test_a_loss_that_cannot_be_mixed_trains_without_being_told_so(metrix: Metrix, tmp_path: Path) -> None:
    arguments = [a for a in SMALL if a not in ("--mixup", "embed")]
    ended = metrix(*arguments, "--loss", "triplet", "--output", tmp_path / "run")
    assert ended.code == 0, ended.err
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8"))["mixing"]["mixup"] == []


def test_quiet_and_json(metrix: Metrix, tmp_path: Path) -> None:
    ended = metrix(*SMALL, "--output", tmp_path / "run", "--json")
    assert ended.code == 0
    assert ended.err == ""
    found = json.loads(ended.out)
    assert found["run"] == str(tmp_path / "run")
    assert found["test"]["recall"]["1"] > 0
    again = metrix("train", "--resume", tmp_path / "run", "--json")  # complete already: told again, not trained
    assert json.loads(again.out) == found
    assert metrix("train", "--resume", tmp_path / "run", "--quiet") == (0, "", "")


def test_print_config_prints_no_loss_that_does_not_exist(metrix: Metrix) -> None:
    ended = metrix("train", "glyphs-mini", "--loss", "contrastiv", "--print-config")
    assert ended.code == 2
    assert ended.out == ""
    assert "unknown loss 'contrastiv'; did you mean 'contrastive'?" in ended.err
