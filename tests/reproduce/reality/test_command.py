"""`metrix reproduce reality-check` from end to end: interrupted, continued, repeated; and what is refused."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.command_line import Outcome, metrix, refused

pytest.importorskip("optuna")
TINY = ("--train-classes", 8, "--batch-size", 16, "--max-steps", 3, "--dim", 8, "--image-size", 28)
METHODS = ("--method", "contrastive", "--method", "contrastive+feature")
ASKED = ("--data", "first=glyphs-mini", "--data", "second=glyphs-mini", *METHODS)
ASKED = (*ASKED, "--trials", 1, "--folds", 2, "--seeds", 2, *TINY)


def times_of(folder: Path, pattern: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, dict[Path, int]]:
    """A check that was interrupted in its second study: its folder, what it said, and what was finished by then."""
    folder = tmp_path_factory.mktemp("checks") / "a"
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.is_set() and not any(folder.glob("second/cells/*/measures.json")):
            time.sleep(0.01)
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    said = metrix("reproduce", "reality-check", *ASKED, "-o", folder)
    ended.set()
    return folder, said, times_of(folder, "*/cells/*/measures.json")


@pytest.fixture(scope="module")
def finished(interrupted: tuple[Path, Outcome, dict[Path, int]]) -> Outcome:
    """The same check, continued by a command that only names the folder."""
    return metrix("reproduce", "reality-check", "-o", interrupted[0])


def test_an_interrupted_check_says_how_to_continue(interrupted: tuple[Path, Outcome, dict[Path, int]]) -> None:
    folder, said, _ = interrupted
    assert said.code == 130, said.err
    assert f"continue with metrix reproduce reality-check --output {folder}" in said.err
    assert (folder / "first" / "outcome.json").is_file()
    assert not (folder / "second" / "outcome.json").exists()
    assert not (folder / "index.html").exists()


def test_it_goes_on_and_trains_nothing_again(
    interrupted: tuple[Path, Outcome, dict[Path, int]], finished: Outcome
) -> None:
    folder, _, before = interrupted
    assert finished.code == 0, finished.err
    assert "first (1 of 2 datasets): was finished before" in finished.err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # 2 methods on 2 folds and with 2 seeds; the cheap runs of a first trial
    cells = [len(list(folder.glob(f"{name}/cells/*/run/results.json"))) for name in ("first", "second")]
    assert cells[0] == cells[1] >= 8


def test_the_answer_the_table_and_the_files(
    interrupted: tuple[Path, Outcome, dict[Path, int]], finished: Outcome
) -> None:
    folder = interrupted[0]
    for words in ("Mixup, against the same loss without it", "Tuning: the best of up to 1 trial", "untrained"):
        assert words in finished.out
    assert "first, second are the same images with other settings" in finished.out
    page = (folder / "index.html").read_text("utf-8")
    assert "A reality check: losses and mixup, tuned equally" in page
    assert (folder / "first" / "index.html").is_file()
    runs = (folder / "runs.csv").read_text("utf-8").splitlines()
    assert len(runs) == 1 + 2 * 2 * 2
    again = metrix("reproduce", "reality-check", *ASKED, "-o", folder, "--json")
    assert again.code == 0, again.err
    assert again.err == ""
    stored = json.loads((folder / "results.json").read_text("utf-8"))
    assert {key: again.json[key] for key in stored} == stored
    by_name = {one["method"]: one for one in stored["datasets"][0]["methods"]}
    assert set(by_name) == {"contrastive", "contrastive+feature"}
    assert by_name["contrastive"]["tuning_gain"] == 0  # its only trial has the usual settings
    for run in by_name["contrastive"]["runs"]:
        results = json.loads((folder / run["folder"] / "results.json").read_text("utf-8"))
        assert run["fit"]["gap"] == pytest.approx(100 * results["fit"]["gap"])
        assert run["recall"] == pytest.approx(100 * results["test"]["recall"]["1"])


def test_a_list_says_what_would_be_trained_and_trains_nothing(
    interrupted: tuple[Path, Outcome, dict[Path, int]], finished: Outcome, tmp_path: Path
) -> None:
    printed = metrix("reproduce", "reality-check", "--list", "-o", interrupted[0])
    assert "1 trial of each of 2 methods on 2 folds of 2 datasets, then 2 seeds of each winner" in printed.out
    new = metrix("reproduce", "reality-check", *ASKED[2:6], *METHODS[2:], *TINY, "--list", "--json", "-o", tmp_path)
    assert new.code == 0, new.err
    assert new.json["smallest_budget"] == pytest.approx(new.json["seconds"])
    assert [line["trials"] for line in new.json["methods"]] == [5, 5]
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reality-check",), ("expected --budget TIME, such as 8h, or --trials N",)),
        (("reality-check", "main", "--trials", "2"), ("reality-check with main: expected it alone",)),
        (("reality-check", "--quick", "--trials", "2"), ("reality-check with --quick",)),
        (("reality-check", "--jobs", "2", "--trials", "2"), ("--jobs", "the same command again in another terminal")),
        (("reality-check", "--method", "contrastve", "--trials", "2"), ("did you mean 'contrastive'",)),
        (("reality-check", "--trials", "2", "--strngth", "1"), ()),
        (("main", "--method", "contrastive"), ("--method: expected with reality-check only",)),
        (("main", "--list"), ("--list: expected with reality-check only",)),
        (("reality-chek",), ("did you mean 'reality-check'",)),
    ],
)
def test_mistakes(arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path) -> None:
    refused("reproduce", *arguments, "-o", tmp_path / "new", words=words)
    assert not (tmp_path / "new").exists()
