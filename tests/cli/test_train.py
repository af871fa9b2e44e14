from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from metrix.train import config
from tests.command_line import Metrix
from tests.photos import write_photos

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
        (("--finish", "nowhere"), "is no run"),
        (("--finish", "run", "--epochs", "3"), "--finish with --epochs"),
        (("--finish", "run", "--resume", "run"), "--resume with --finish"),
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
    output = () if {"--resume", "--finish"} & set(arguments) else ("--output", tmp_path / "run")
    ended = metrix("train", *arguments, *output)
    assert ended.code == 2, ended.err
    assert message in ended.err
    assert ended.err.startswith("metrix: ")
    assert not (tmp_path / "run").exists()


def test_what_a_person_sees(metrix: Metrix, tmp_path: Path) -> None:
    ended = metrix(*SMALL, "--output", tmp_path / "run", "--select-from", "1")
    assert ended.code == 0
    for word in ("Recall@K", "R@1", "validation, untrained", "validation, best", "unseen classes"):
        assert word in ended.out
    for verb in ("evaluate", "report", "index"):
        assert f"metrix {verb} {tmp_path / 'run'}" in ended.err
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


def settings_of(printed: str, section: str = "model") -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(printed)[section]
    return found


def test_photos_start_from_pretrained_weights_and_characters_from_random_ones(metrix: Metrix, tmp_path: Path) -> None:
    def weights(*arguments: object) -> object:
        printed = metrix("train", *arguments, "--print-config")
        assert printed.code == 0, printed.err
        return settings_of(printed.out)["weights"]

    assert weights("photos") == weights("photos", "--backbone", "vit_small_patch16_224") == "pretrained"
    assert weights("glyphs") is weights("photos", "--backbone", "glyphs-cnn") is None
    assert weights("photos", "--weights", "random") is None
    assert weights("photos", "--weights", "a.safetensors") == "a.safetensors"
    # a file of settings means what it meant
    (tmp_path / "c.yaml").write_text("data:\n  data: photos\n")
    assert weights("--config", tmp_path / "c.yaml") is None
    assert weights("--config", tmp_path / "c.yaml", "--weights", "pretrained") == "pretrained"


def test_without_weights_and_network_nothing_is_trained_unasked(
    metrix: Metrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrix.model.backbones.network_answers", lambda: False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    photos = write_photos(tmp_path / "photos", 4, 4)
    ended = metrix("train", photos, "--backbone", "resnet18", "-o", tmp_path / "run")
    assert ended.code == 2
    for word in ("pretrained weights of 'resnet18'", "--weights FILE", "efficientnet_lite0", "--weights random"):
        assert word in ended.err
    assert not (tmp_path / "run").exists()


def test_random_weights_are_said_aloud(metrix: Metrix, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 4, 6)
    small = ("--backbone", "resnet10t", "--image-size", "32", "--dim", "8", "--batch-size", "4", "--per-class", "2")
    ended = metrix("train", photos, *small, "--max-steps", "1", "--weights", "random", "-o", tmp_path / "run")
    assert ended.code == 0, ended.err
    assert "the weights of resnet10t are random" in ended.err
    assert "--weights pretrained" in ended.err


def test_a_finished_run_goes_on_and_an_interrupted_one_ends(metrix: Metrix, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [a for a in SMALL if a not in ("--max-steps", "4")]
    assert metrix(*arguments, "--epochs", "1", "-o", run).code == 0
    refused = metrix("train", "--resume", run, "--epochs", "1")
    assert refused.code == 2
    assert "--epochs: expected more than 1" in refused.err
    ended = metrix("train", "--resume", run, "--epochs", "2")
    assert ended.code == 0, ended.err
    assert "goes on after 1 epoch, to 2 epochs in all" in ended.err
    assert json.loads((run / "results.json").read_text("utf-8"))["epochs"] == 2
    again = metrix("train", "--finish", run, "--json")
    assert again.json["epochs"] == 2


def test_a_model_for_use_is_trained_on_all_classes_like_a_measured_one(tmp_path: Path, metrix: Metrix) -> None:
    measured = tmp_path / "measured"
    assert metrix(*SMALL, "--holdout", "0", "-o", measured).code == 0
    product = tmp_path / "product"
    ended = metrix("train", "--like", measured, "--all", "--train-classes", "100", "-o", product)
    assert ended.code == 0, ended.err
    assert "nothing can be measured on this model" in ended.err
    results, before = (json.loads((one / "results.json").read_text()) for one in (product, measured))
    assert results["test"] is None
    assert results["steps"] == before["steps"]
    settings, others = (config.read_config(one / "config.yaml") for one in (product, measured))
    changed = settings.differences_to(others)
    assert (changed.pop("unseen"), changed.pop("train_classes")) == (0.0, 100)
    assert changed == {}
    refused = metrix("evaluate", product)
    assert refused.code != 0
    assert "nothing can be measured" in refused.err
    assert metrix("export", product, "--hub", tmp_path / "hub").code == 0
    card = (tmp_path / "hub" / "README.md").read_text("utf-8")
    assert "Not of this model, which was trained on all classes" in card
    assert f"| Recall@1 | {before['test']['recall']['1']:.4f} |" in card
    assert "model-index" not in card  # a hub would show the figures as the model's own


def test_a_manifest_of_training_rows_only_trains(tmp_path: Path, metrix: Metrix) -> None:
    write_photos(tmp_path / "photos", 4, 4)
    files = sorted((tmp_path / "photos").rglob("*.*"))
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name},train" for file in files]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *lines]))
    ended = metrix(
        "train", tmp_path / "list.csv", "--backbone", "resnet10t", "--weights", "random", "--image-size", "32",
        "--dim", "8", "--batch-size", "4", "--per-class", "2", "--mixup", "none", "--max-steps", "1",
        "--holdout", "0", "-o", tmp_path / "run",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert "nothing can be measured" in ended.err
    assert json.loads((tmp_path / "run" / "results.json").read_text())["test"] is None


def test_a_clean_run_has_no_mixed_loss_to_show() -> None:
    from metrix.cli.terminal.training import _describe_losses

    assert "mixed" in _describe_losses([1.5, 1.0, 0.5], mixes=True)
    assert "mixed" not in _describe_losses([1.0, 1.0, 0.0], mixes=False)
