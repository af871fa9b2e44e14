"""When mixup begins, and how its weight grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metrix.errors import InvalidInput
from metrix.train import Config, collapse, train
from metrix.train.checkpoint import Progress
from metrix.train.interruption import Interrupted
from metrix.train.mixing_schedule import FITTED, WINDOW, add_hits, is_fitted, weight_of_step
from metrix.train.sections import Mixing
from metrix.train.watching import Watcher
from tests.command_line import metrix as command


class Recorder(Watcher):
    def __init__(self) -> None:
        self.losses: list[list[float]] = []
        self.said: list[str] = []

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        self.losses.append(losses)

    def note(self, text: str) -> None:
        self.said.append(text)

    warn = note


def weights(recorder: Recorder) -> list[float]:
    """w of each step, from the losses; 0 where nothing was mixed."""
    return [round((loss - clean) / mixed, 4) if mixed else 0.0 for loss, clean, mixed in recorder.losses]


def run(small: Config, folder: Path, **values: Any) -> tuple[list[float], Recorder, dict[str, Any]]:
    recorder = Recorder()
    found = train(small.with_values({"strength": 0.4, **values}), folder, watcher=recorder).results
    assert found is not None
    return weights(recorder), recorder, found


def test_mixup_begins_after_a_share_of_the_steps(small: Config, tmp_path: Path) -> None:
    found, _, results = run(small, tmp_path / "run", mixup_after=0.5)
    assert found == [0.0] * 6 + [0.4] * 6
    assert results["mixing_from"] == 6


def test_the_weight_grows(small: Config, tmp_path: Path) -> None:
    found, _, results = run(small, tmp_path / "run", mixup_after=0.25, mixup_ramp=0.5)
    assert found == pytest.approx([0.0] * 3 + [0.4 * k / 6 for k in range(1, 7)] + [0.4] * 3, abs=2e-4)
    assert results["mixing_from"] == 3


def test_without_a_schedule_nothing_changes(small: Config, tmp_path: Path) -> None:
    found, _, results = run(small, tmp_path / "run")
    assert found == [0.4] * 12
    assert "mixing_from" not in results


def test_steps_before_are_those_of_a_clean_run(small: Config, tmp_path: Path) -> None:
    _, late, _ = run(small, tmp_path / "late", mixup_after=0.5)
    _, clean, _ = run(small, tmp_path / "clean", mixup=())
    assert [x[:2] for x in late.losses[:7]] != [x[:2] for x in clean.losses[:7]]  # the seventh is mixed
    assert [x[1] for x in late.losses[:7]] == [x[1] for x in clean.losses[:7]]


def test_mixup_begins_once_batches_are_fitted(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "EVERY", 1)
    shares = iter([0.5] * 4 + [1.0] * 100)

    def measure(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.9, 0.1, 2.0, next(shares)])

    monkeypatch.setattr(collapse, "measure_separation", measure)
    found, recorder, results = run(small, tmp_path / "run", mixup_after="fit", max_steps=40, epochs=10)
    first = results["mixing_from"]
    assert first == next(k for k, w in enumerate(found) if w)
    assert first >= 4 + WINDOW - 1  # half of the first four hits do not reach the threshold
    assert first % (results["steps"] // results["epochs"]) == 0  # the first step of an epoch
    assert any(f"mixup begins after step {first}" in said for said in recorder.said)


def test_a_run_in_which_mixup_never_begins_says_so(small: Config, tmp_path: Path) -> None:
    found, recorder, results = run(small, tmp_path / "run", mixup_after="fit")
    assert found == [0.0] * 12
    assert results["mixing_from"] is None
    assert any("mixup never began" in said for said in recorder.said)


def test_a_resumed_run_ends_with_the_same_weights(small: Config, tmp_path: Path) -> None:
    values = {"mixup_after": 0.25, "mixup_ramp": 0.5, "checkpoint_steps": 1}
    run(small, tmp_path / "whole", **values)

    class Stop(Recorder):
        def step(self, progress: Progress, losses: list[float], images: int) -> None:
            if progress.step == 5:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(small.with_values({"strength": 0.4, **values}), tmp_path / "parts", watcher=Stop())
    train(resume=tmp_path / "parts")
    first, second = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_the_share_of_hits_is_that_of_a_slow_count() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.arange(12) // 3
    found = collapse.measure_separation(x, y)
    assert found is not None
    hits = 0
    for i in range(12):
        others = [j for j in range(12) if j != i]
        nearest = max(others, key=lambda j: float(torch.cosine_similarity(x[i], x[j], dim=0)))
        hits += int(y[nearest] == y[i])
    assert float(found[3]) == pytest.approx(hits / 12)


def test_fitted_needs_a_whole_window() -> None:
    progress = Progress()
    for _ in range(WINDOW - 1):
        add_hits(progress, 1.0)
    assert not is_fitted(progress)
    add_hits(progress, FITTED)
    assert is_fitted(progress)
    assert len(progress.hits) == WINDOW


@pytest.mark.parametrize("given", ["soon", -0.1, 1.0, 1.5, float("nan"), "", None, True and "fitt"])
def test_other_starts_are_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="expected a share of the steps from 0 to below 1, or fit"):
        Config().with_values({"mixup_after": given})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mixup_after": 0.6, "mixup_ramp": 0.5}, "expected at most 0.4 with mixup_after=0.6"),
        ({"mixup_ramp": 0.5, "compile": True}, "expected 0 with compile"),
        ({"mixup_method": "mochi", "mixup_after": 0.5, "loss": "contrastive"}, "whose mixed loss has no weight"),
    ],
)
def test_settings_that_do_not_go_together(small: Config, tmp_path: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        train(small.with_values(values), tmp_path / "run")
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def test_the_weight_at_the_ends() -> None:
    assert weight_of_step(Mixing(strength=0.8), 0, 0, 10) == 0.8
    assert weight_of_step(Mixing(strength=0.8), 0, None, 10) == 0.0
    assert weight_of_step(Mixing(strength=0.8, mixup_ramp=0.001), 0, 0, 10) == 0.8  # shorter than a step


def test_on_the_command_line(tmp_path: Path) -> None:
    asked = ["train", "--preset", "glyphs", "--print-config", "--mixup-after"]
    assert "mixup_after: fit" in command(*asked, "fit").out
    assert "mixup_after: 0.5" in command(*asked, "0.5").out
    refused = command(*asked, "later")
    assert refused.code == 2
    assert "or fit" in refused.err
