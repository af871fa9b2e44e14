"""Trackers get the settings, losses, validations and results of a run, offline, and one entry for a resumed run."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

from metrix.errors import InvalidInput
from metrix.extras import MissingExtra, has_extra
from metrix.train.config import Config
from metrix.train.loop import train
from metrix.train.presets import preset
from metrix.train.trackers import TrackedRun, flatten_results, flatten_settings
from metrix.train.watching import Watcher


def tiny(*log: str, **changes: Any) -> Config:
    values = {"data": "glyphs-mini", "train_classes": 8, "batch_size": 16, "max_steps": 25, "dim": 8, "holdout": 0.2}
    return preset("glyphs").with_values({**values, **changes, "log": log})


def read_csv(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.rglob("metrics.csv")
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_a_csv_file_has_losses_validations_and_results(tmp_path: Path) -> None:
    run = train(tiny("csv"), tmp_path / "run")
    rows = read_csv(run.path / "csv")
    losses = [(row["step"], row["train/loss"]) for row in rows if row["train/loss"]]
    assert [step for step, _ in losses] == ["20", "25"]
    assert any(row["val/recall@1"] for row in rows)
    assert run.results is not None
    assert float(rows[-1]["test/recall@1"]) == run.results["test"]["recall"]["1"]
    whole = [line for line in run.metrics() if "loss" in line]
    mean = sum(line["loss"] * 1 for line in whole) / len(whole)
    assert sum(float(value) for _, value in losses) / 2 == pytest.approx(mean, rel=0.5)


def test_the_results_of_every_run_have_what_a_tracker_needs(tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run")
    results = json.loads((run.path / "results.json").read_text("utf-8"))
    assert results["settings"] == flatten_settings(run.config)
    assert results["finished"].endswith("Z")
    assert flatten_results(results)["test/recall/1"] == results["test"]["recall"]["1"]
    assert not (run.path / "csv").exists()


@pytest.mark.skipif(not has_extra("wandb"), reason="wandb is not installed")
def test_weights_and_biases_offline_continues_the_entry_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CACHE_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    run = train(tiny("wandb"), tmp_path / "run")
    first = (run.path / "wandb.id").read_text("utf-8")
    written = list(run.path.glob("wandb/offline-run-*/*.wandb"))
    assert [path.stem for path in written] == [f"run-{first}"]
    wanted = (b"test/recall@1", b"train/loss", b"weight_decay")
    deadline = time.monotonic() + 30  # another process writes the file
    while missing := [words for words in wanted if words not in written[0].read_bytes()]:
        assert time.monotonic() < deadline, missing
        time.sleep(0.05)
    train(resume=run.path, max_steps=30)
    assert (run.path / "wandb.id").read_text("utf-8") == first


@pytest.mark.skipif(not has_extra("mlflow"), reason="mlflow is not installed")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_offline_continues_the_run_of_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = train(tiny("mlflow"), tmp_path / "run")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    name = (run.path / "mlflow.id").read_text("utf-8")
    assert run.results is not None
    found = client.get_run(name)
    assert found.info.status == "FINISHED"
    assert found.data.params["loss"] == "multi-similarity"
    assert found.data.metrics["test/recall_at_1"] == run.results["test"]["recall"]["1"]
    train(resume=run.path, max_steps=30)
    (experiment,) = [one for one in client.search_experiments() if one.name == "metrix"]
    assert len(client.search_runs([experiment.experiment_id])) == 1


def test_an_interrupted_run_closes_its_trackers_and_hands_every_event_on() -> None:
    heard: list[str] = []

    class Listener(Watcher):
        def note(self, text: str) -> None:
            heard.append(text)

        def close(self) -> None:
            heard.append("closed")

    tracked = TrackedRun(("csv",), Listener())
    tracked.note("a note")
    tracked.close()
    assert heard == ["a note", "closed"]


def test_unknown_and_missing_trackers_are_errors_before_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="log: expected 'csv', 'wandb' or 'mlflow', got 'comet'"):
        tiny("comet")
    monkeypatch.setattr("metrix.extras.has_extra", lambda module: False)
    with pytest.raises(MissingExtra, match=r"pip install 'metrix\[wandb\]'"):
        train(tiny("wandb"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
