"""The file of a leaderboard: rows of runs, validation by line and field, appending at once, comparability."""

from __future__ import annotations

import json
import math
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

import pytest

from metrix.errors import InvalidInput
from metrix.runs.leaderboard import LeaderboardRow, append_to_leaderboard, read_leaderboard
from metrix.runs.leaderboard_rows import describe_command, measure_rows, merge_seeds
from metrix.train import Config
from metrix.train.config import read_config


def draw_row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "schema": 1,
        "name": "theirs",
        "method": "clean",
        "loss": "contrastive",
        "mixup": "none",
        "backbone": "resnet50",
        "dim": 512,
        "dataset": {"name": "birds", "digest": "0123456789abcdef", "classes": 4, "queries": 40, "gallery": 40},
        "protocol": {},
        "measures": {"recall@1": {"value": 0.7, "low": 0.6, "high": 0.8, "over": "classes"}},
    }
    return {**row, **changes}


def build(**changes: Any) -> LeaderboardRow:
    return LeaderboardRow.model_validate_json(json.dumps(draw_row(**changes)))


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_rows_are_written_once_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "board.jsonl"
    rows = [build(), build(name="other")]
    assert append_to_leaderboard(path, rows) == 2
    assert append_to_leaderboard(path, [*rows, build(name="third")]) == 1
    assert [row.name for row in read_leaderboard(path)] == ["theirs", "other", "third"]
    path.write_text(
        path.read_text().rstrip("\n") + "\n\n" + json.dumps(draw_row(name="by hand"))
    )  # no newline at its end
    append_to_leaderboard(path, [build(name="last")])
    assert [row.name for row in read_leaderboard(path)] == ["theirs", "other", "third", "by hand", "last"]
    assert not [file for file in tmp_path.iterdir() if file.name not in ("board.jsonl", ".board.jsonl.lock")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: expected a JSON object"),
        ("[1]", "line 2: expected a JSON object, got list"),
        (draw_row(schema=2), "line 2: schema: expected 1, got 2"),
        ({"name": "x"}, "line 2: schema: expected 1, got None"),
        ({k: v for k, v in draw_row().items() if k != "loss"}, "line 2: loss: expected a value, got none"),
        (draw_row(los="x"), "unknown field 'los'.*did you mean 'loss'"),
        (draw_row(dataset={**draw_row()["dataset"], "clases": 3}), "'dataset.clases'.*did you mean 'dataset.classes'"),
        (draw_row(dataset={**draw_row()["dataset"], "digest": "XYZ"}), "line 2: dataset.digest: "),
        (draw_row(dataset={**draw_row()["dataset"], "classes": 0}), "line 2: dataset.classes: .* got 0"),
        (draw_row(measures={}), "line 2: measures: "),
        (draw_row(measures={"recall@1": {"value": 70.0}}), "line 2: measures.recall@1.value: .*got 70"),
        (draw_row(measures={"recall@1": {"value": math.nan}}), "line 2: measures.recall@1.value: "),
        (draw_row(measures={"recal@1": {"value": 0.7}}), "line 2: measures.recal@1: unknown metric"),
        (draw_row(measures={"recall@1": {"value": 0.7, "low": 0.6}}), "recall@1: expected low, high and over together"),
        (
            draw_row(measures={"recall@1": {"value": 0.7, "low": 0.8, "high": 0.6, "over": "seeds"}}),
            "recall@1: expected low ≤ high, got 0.8 and 0.6",
        ),
        (
            draw_row(measures={"recall@1": {"value": 0.9, "low": 0.6, "high": 0.8, "over": "classes"}}),
            "recall@1: expected low ≤ value ≤ high, got 0.6, 0.9 and 0.8",
        ),
        (json.dumps(draw_row()).replace("theirs", "\\ud800"), "line 2: JSON: "),
        (draw_row(seeds=[-1]), r"line 2: seeds\.0: "),
        (draw_row(seeds="0"), "line 2: seeds: "),
        (draw_row(dim="512"), "line 2: dim: .* got '512'"),
        (draw_row(name=""), "line 2: name: "),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_errors_name_line_and_field(tmp_path: Path, line: Any, words: str) -> None:
    path = write(tmp_path / "board.jsonl", draw_row(), line)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match=words) as caught:
        append_to_leaderboard(path, [build(name="new")])
    assert "board.jsonl" in str(caught.value)
    assert path.read_bytes() == before


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_leaderboard(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="in UTF-8"):
        read_leaderboard(tmp_path / "b.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="choose another place"):
        append_to_leaderboard(tmp_path / "file" / "b.jsonl", [build()])


def _append(path: Path, who: int) -> None:
    for n in range(5):
        append_to_leaderboard(path, [build(name=f"{who}-{n}")])


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "board.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(path, who)) for who in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert sorted(row.name for row in read_leaderboard(path)) == [f"{who}-{n}" for who in range(4) for n in range(5)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"name": "x", "loss": "nca", "measures": {"map@r": {"value": 0.1}}}, ""),
        ({"dataset": {**draw_row()["dataset"], "digest": "fedcba9876543210"}}, "other test data"),
        ({"dataset": {**draw_row()["dataset"], "gallery": 41}}, "another number of queries"),
        ({"protocol": {"search": "approximate"}}, "approximate search"),
        ({"protocol": {"sequences": True}}, "sequences count otherwise"),
        ({"protocol": {"training": "0123456789abcdef"}}, "trained on other data"),
    ],
)
def test_what_makes_rows_comparable(changes: dict[str, Any], words: str) -> None:
    said = build().explain_difference(build(**changes))
    assert bool(said) == bool(words)
    assert words in said
    assert bool(build(**changes).explain_difference(build())) == bool(words)


def test_seeds_are_one_row_with_students_interval() -> None:
    values = [0.5, 0.56, 0.53]
    rows = [
        build(seeds=[n], models=[f"{n}" * 12], command="c", measures={"recall@1": {"value": value}})
        for n, value in enumerate(values)
    ]
    other = build(seeds=[0], models=["f" * 12], command="other")
    merged = merge_seeds([rows[0], other, *rows[1:]])
    assert [row.seeds for row in merged] == [(0, 1, 2), (0,)]
    found = merged[0].measures["recall@1"]
    margin = 4.302652729911275 * statistics.stdev(values) / math.sqrt(3)  # t of 2 degrees of freedom
    assert found.value == pytest.approx(0.53)
    assert (found.low, found.high) == (pytest.approx(0.53 - margin), pytest.approx(0.53 + margin))
    assert found.over == "seeds"
    assert merged[1] == other
    assert len(merged[0].models) == 3


def test_a_run_is_a_row(run: Path) -> None:
    (row,) = measure_rows([run], resamples=20)
    evaluation = json.loads((run / "results.json").read_text())
    assert row.measures["recall@1"].value == pytest.approx(evaluation["test"]["recall"]["1"], abs=1e-6)
    assert row.measures["recall@1"].over == "classes"
    assert row.dataset.name == "glyphs-mini"
    assert row.protocol.training is not None
    assert row.command is not None
    assert str(run.parent) not in row.to_line()
    assert read_back(row) == row
    assert measure_rows([run], resamples=20, names=["mine"])[0].identity == row.identity


def read_back(row: LeaderboardRow) -> LeaderboardRow:
    return LeaderboardRow.model_validate_json(row.to_line())


def test_the_command_of_a_run_gives_its_settings(metrix) -> None:
    settings = {
        "loss": "margin",
        "mixup": ("input", "embed"),
        "hard_negatives": (3, None),
        "frozen_bn": True,
        "seed": 4,
    }
    config = Config().with_values(settings)
    words = describe_command(config).split()
    assert words[:3] == ["metrix", "train", "glyphs"]
    printed = metrix(*words[1:], "--seed", 4, "--print-config").out
    assert printed == config.to_yaml()


@pytest.mark.parametrize("weights", [None, "pretrained", "/home/a/w.safetensors"])
def test_the_command_of_a_run_names_the_weights_it_began_with(metrix, weights: str | None) -> None:
    """Without --weights, the command line takes pretrained ones for photos."""
    config = Config().with_values({"data": "/home/a/photos", "backbone": "resnet18", "weights": weights})
    words = describe_command(config).split()
    assert "/home" not in " ".join(words)
    printed = metrix(*words[1:], "--print-config").out
    assert printed == config.to_yaml().replace("/home/a/", "")


def test_the_command_of_a_student_is_that_of_distillation(
    metrix, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    given = ["--unlabelled", "more", "--unlabelled", "others", "--angle-weight", "3", "--compatible"]
    printed = metrix("distil", run.name, *given, "--print-config").out
    (tmp_path / "c.yaml").write_text(printed)
    words = describe_command(read_config(tmp_path / "c.yaml")).split()
    assert words[:4] == ["metrix", "distil", run.name, "--data"]
    assert metrix(*words[1:], "--print-config").out == printed
