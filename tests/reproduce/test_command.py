"""The command itself: a table and figures from real runs, interruptions, shards, and mistakes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.command_line import metrix

TINY = ("--train-classes", 8, "--batch-size", 12, "--per-class", 3, "--max-steps", 2)
MINI = ("--data", "glyphs-mini", *TINY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures that need four runs (two models, two seeds), trained in two shards and put together by copying."""
    from metrix.reproduce import pictures

    output, command = tmp_path_factory.mktemp("reproduction"), ("reproduce", "utilization", "retrieval", "tsne", *MINI)
    for number in (1, 2):
        machine = tmp_path_factory.mktemp(f"machine-{number}")
        ended = metrix(*command, "--seeds", 2, "--shard", f"{number}/2", "-o", machine, "--json")
        assert ended.code == 0, ended.err
        assert json.loads(ended.out) == {"shard": f"{number}/2", "cells": 2, "failed": {}}
        assert not (machine / "report.html").exists()
        shutil.copytree(machine / "cells", output / "cells", dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "CLASSES", (3,))
        ended = metrix(*command, "--seeds", 2, "-o", output)
    assert ended.code == 0, ended.err
    assert "all 4 cells are finished" in ended.err
    assert "Utilization of the training set" in ended.out
    return output


def test_the_report_is_whole(folder: Path) -> None:
    page = (folder / "report.html").read_text("utf-8")
    assert "paper, CUB200" in page
    assert "0.41" in page  # the paper's number
    assert "which stands in for the paper" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    names = {path.name for path in (folder / "report-files").iterdir()}
    assert {"retrieval.png", "retrieval.csv", "tsne-3-1.svg", "utilization-clean.png"} <= names
    assert (folder / "report.md").is_file()
    runs = list((folder / "cells").glob("*/run/results.json"))
    assert len(runs) == 4


def test_again_it_trains_nothing_and_says_the_same(folder: Path) -> None:
    runs = {path: path.stat().st_mtime_ns for path in (folder / "cells").glob("*/run/results.json")}
    command = ("reproduce", "utilization", *MINI, "--seeds", 2, "-o", folder, "--json")
    ended = metrix(*command)
    assert ended.code == 0, ended.err
    (table,) = json.loads(ended.out)["tables"]
    clean, mixed = table["rows"]
    assert (clean["paper"]["utilization"], mixed["paper"]["utilization"]) == ("0.41", "0.32")
    values = clean["measured"]["utilization"]["values"]
    assert len(values) == 2
    assert clean["measured"]["utilization"]["mean"] == pytest.approx(sum(values) / 2)
    assert {path: path.stat().st_mtime_ns for path in (folder / "cells").glob("*/run/results.json")} == runs


def test_a_cell_that_was_not_run_is_empty(folder: Path) -> None:
    """Of the table of rivals only the clean contrastive runs are there."""
    from metrix.experiments.cells import CellStore
    from metrix.reproduce import paper
    from metrix.reproduce.datasets import choose_data
    from metrix.reproduce.grid import Grid
    from metrix.reproduce.tables import build_recall_table

    changes = {"train_classes": 8, "batch_size": 12, "per_class": 3, "max_steps": 2}
    grid = Grid(tuple(choose_data(["glyphs-mini"])), (0, 1), changes, CellStore(folder))
    result = build_recall_table(grid, paper.load_table("compete"), grid.datasets[0])
    content = {row["method"].strip(): row for row in result.to_dict()["rows"]}
    assert len(content["Cont"]["measured"]["R@1"]["values"]) == 2
    for method in ("+i-Mix", "+MoCHi", "PA"):
        assert content[method]["measured"]["R@1"] == {"mean": None, "deviation": None, "values": []}
        assert content[method]["note"] == "Not run."
    block = result.to_block()
    rows = {str(row[0]).strip(): row for row in block.rows}
    assert rows["+i-Mix [2]"][2:6] == ["", "", "", ""]
    assert "[2] Not run." in block.footnotes
    one_more_seed = Grid(grid.datasets, (0, 1, 2), changes, CellStore(folder))
    pixels, untrained, line, *_ = build_recall_table(one_more_seed, paper.load_table("compete"), grid.datasets[0]).lines
    assert (pixels.words[0], untrained.words[0]) == ("pixels", "untrained network")
    assert 0 < (pixels.measured["R@1"].mean or 0) < 100
    assert len(untrained.measured["R@1"].values) == 2
    assert line.note == "1 of 3 runs are not finished."
    assert len(line.measured["R@1"].values) == 2


def test_an_interrupted_grid_goes_on(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run: a checkpoint, and the next command ends the same run."""
    command = ("reproduce", "positivity", "--data", "glyphs-mini", *TINY[:-1], 60, "--seeds", 1, "-o", tmp_path)

    def interrupt() -> None:
        while not any(file.stat().st_size for file in tmp_path.glob("cells/*/run/metrics.jsonl")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    ended = metrix(*command)
    assert ended.code == 130
    assert "1 run left; run the same command again" in ended.err
    (place,) = (tmp_path / "cells").iterdir()
    assert not (place / "run" / "results.json").exists()
    assert (place / "run" / "checkpoints" / "last.safetensors").exists()
    ended = metrix(*command)
    assert ended.code == 0, ended.err
    assert json.loads((place / "run" / "results.json").read_text())["steps"] == 60
    times = json.loads((tmp_path / "time.json").read_text())
    assert times["runs"] == 1
    assert min(times["announced"], times["needed"]) > 0
    assert "1 run to train: about" in ended.err
    assert "announced for 1 run:" in ended.err
    assert "announced for 1 run:" in (tmp_path / "report.html").read_text("utf-8")
    again = json.loads(metrix(*command, "--json").out)
    assert again["seconds"] == times  # of the runs, which are not trained again


@pytest.mark.filterwarnings("ignore:the time of 1 run could not be measured")
def test_a_run_that_cannot_be_is_reported(tmp_path: Path) -> None:
    ended = metrix("reproduce", "positivity", *MINI[:2], "--train-classes", 10_000, "--seeds", 1, "-o", tmp_path)
    assert ended.code == 1
    assert "failed glyphs-mini, multi-similarity, seed 0: train_classes" in ended.err
    assert "Traceback" not in ended.err
    assert "not finished" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ablations"], "unknown table or figure 'ablations'; did you mean 'ablation'?"),
        (["main", "--shard", "3/2"], "expected I/N"),
        (["main", "--data", "cars"], "expected NAME=PATH"),
        (["main", "--data", "cars=/no/such"], "/no/such does not exist"),
        (["main", "--epochs", "0"], "--epochs: expected at least 1, got 0"),
        (["main", "--data", "cub=."], "metrix"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path) -> None:
    ended = metrix("reproduce", *arguments, "-o", tmp_path / "new")
    assert ended.code == 2
    assert message in " ".join(ended.err.split())
    assert not (tmp_path / "new").exists()


def test_the_list_says_what_each_needs(folder: Path) -> None:
    ended = metrix("reproduce", *MINI, "--seeds", 2, "-o", folder, "--json")
    assert ended.code == 0, ended.err
    content = json.loads(ended.out)
    items = {item["name"]: item for item in content["items"]}
    assert {"main", "types", "compete", "ablation", "ablation-cub", "cost", "positivity", "strength"} <= set(items)
    assert (items["tsne"]["cells"], items["tsne"]["done"], items["tsne"]["seconds"]) == (4, 4, 0)
    assert items["ablation"]["cells"] == 46
    assert items["ablation"]["done"] == 4
    assert items["all"]["seconds"] > items["ablation"]["seconds"] > 0
    assert items["all"]["cells"] < sum(item["cells"] for item in content["items"]) - items["all"]["cells"]  # shared
    assert content["time_from"] == "from the finished runs and a short calibration"
