"""Steps that are not finite: named, saved, repeated bit for bit; stopped at, or skipped and counted."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from metrix.core.metrix import Metrix
from metrix.data.dataset import Part
from metrix.errors import InvalidInput
from metrix.train import Config, nonfinite, train
from metrix.train.checkpoint import Progress
from metrix.train.nonfinite import NonFiniteStep, list_steps, read_step
from metrix.train.replay import replay
from metrix.train.run_folder import RunFolder
from metrix.train.watching import Watcher
from tests.command_line import Metrix as Command

CLASS = 5  # batches with this class break


class _BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        bad = grad.clone()
        bad[0] = math.inf
        return bad


@pytest.fixture
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let steps break at a term: whenever the batch has an example of one class."""
    term: str = request.param
    parts, batch = Metrix.parts, Part.batch

    def broken_parts(
        self: Metrix, model: Any, inputs: Any, features: Any, embeddings: Tensor, labels: Tensor, *drawn: str
    ) -> Any:
        hit = bool((labels == CLASS).any()) and self.training
        if hit and term == "gradient":
            embeddings = _BadGradient.apply(embeddings)
        if hit and term == "embeddings":
            embeddings = embeddings * 0
        clean, mixed = parts(self, model, inputs, features, embeddings, labels, *drawn)
        if hit and term == "clean loss":
            clean = clean._replace(value=clean.value * math.nan)
        if hit and term == "mixed loss":
            assert mixed is not None
            mixed = mixed._replace(value=mixed.value * math.inf)
        return clean, mixed

    def broken_batch(self: Part, indices: Any) -> tuple[Tensor, Tensor]:
        images, labels = batch(self, indices)
        if self.num_classes == 8 and self.transform is not None and self.seed == 5:  # the training images
            images[labels == CLASS] = math.nan
        return images, labels

    if term == "inputs":
        monkeypatch.setattr(Part, "batch", broken_batch)
    else:
        monkeypatch.setattr(Metrix, "parts", broken_parts)
    return term


@pytest.fixture
def settings(small: Config) -> Config:
    """Batches of 4 of 8 classes, with statistics and a memory that a broken step must not reach."""
    return small.with_values({"seed": 5, "memory": 20, "ema": 0.9, "batch_size": 12, "per_class": 3, "max_steps": 10})


ALL = ("inputs", "embeddings", "clean loss", "mixed loss", "gradient")


@pytest.mark.parametrize("broken", ALL, indirect=True)
def test_stopped_named_and_repeated(broken: str, settings: Config, tmp_path: Path, metrix: Command) -> None:
    with pytest.raises(NonFiniteStep) as caught:
        train(settings, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    (step,) = list_steps(run)
    saved = read_step(run, step)
    for words in (f"step {step}:", str(run.nonfinite / f"step-{step}.json"), "metrix replay", "--on-nonfinite skip"):
        assert words in str(caught.value)
    assert saved.broken == broken
    assert len(saved.items) == 12
    file = run.nonfinite / f"step-{step}.safetensors"
    tensors, content = load_file(file), file.read_bytes()
    hit = (tensors["labels"] == CLASS).tolist()
    assert any(hit)
    names = {item["class"] for item, is_hit in zip(saved.items, hit, strict=True) if is_hit}
    assert len(names) == 1
    assert all(item["class"] not in names for item, is_hit in zip(saved.items, hit, strict=True) if not is_hit)
    if broken == "inputs":
        assert [not item["finite"] for item in saved.items] == hit

    found = replay(run.path)
    assert found.same, (found.losses, saved.losses)
    assert not found.note
    if broken in ("inputs", "embeddings"):
        assert found.refusal
        assert found.embeddings == [broken != "inputs"] * 12  # batch norm spreads NaN over the batch
    elif broken == "gradient":
        assert math.isfinite(found.losses["loss"])
        assert saved.parameters == [name for name, value in found.gradients.items() if not math.isfinite(value)]
        assert saved.parameters
    else:
        assert not math.isfinite(found.losses[broken.split()[0]])
    shown = metrix("replay", run.path)
    assert shown.code == 0
    assert "the same losses as in the run" in shown.out
    assert saved.items[0]["path"] in shown.out
    assert metrix("replay", run.path, "--json").json["broken"] == broken
    assert file.read_bytes() == content  # the run does not change

    # the step is the one after the steps that a run of so many steps takes
    assert step > 1
    shorter = train(settings.with_values({"max_steps": step - 1}), tmp_path / "shorter")
    last = load_file(shorter.last)
    for name, tensor in tensors.items():
        if name.startswith(("model/", "memory/", "random/")) and "running" not in name and "batches" not in name:
            assert torch.equal(tensor, last[name]), name


class Listener(Watcher):
    """Keeps what it hears of skipped steps."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def skipped(self, progress: Progress, why: str) -> None:
        self.heard.append(why)


@pytest.mark.parametrize("broken", ALL, indirect=True)
def test_skipped_and_counted(broken: str, settings: Config, tmp_path: Path, metrix: Command) -> None:
    listener = Listener()
    run = train(settings.with_values({"on_nonfinite": "skip"}), tmp_path / "run", watcher=listener)
    results = run.results
    assert results is not None
    skipped = results["skipped_steps"]
    assert 0 < skipped == len(listener.heard) < 10
    assert results["steps"] == 10
    assert sum(line.get("skipped", 0) for line in run.metrics()) == skipped
    assert all(math.isfinite(line["loss"]) for line in run.metrics() if "loss" in line)
    for name, tensor in load_file(run.last).items():
        assert not tensor.is_floating_point() or torch.isfinite(tensor).all(), name
    assert len(list_steps(run)) == min(skipped, nonfinite.SAVED)
    assert replay(run.path, list_steps(run)[0]).same


@pytest.mark.parametrize("broken", ["inputs"], indirect=True)
def test_a_skipped_step_leaves_no_trace(broken: str, settings: Config, tmp_path: Path) -> None:
    """Weights, statistics, memory and average after skipped steps are finite and those of before."""
    with pytest.raises(NonFiniteStep):
        train(settings, tmp_path / "stopped")
    (step,) = list_steps(RunFolder(tmp_path / "stopped"))
    assert step > 1
    skips = settings.with_values({"on_nonfinite": "skip"})
    before, after = (
        load_file(train(skips.with_values({"max_steps": steps}), tmp_path / str(steps)).last)
        for steps in (step - 1, step)
    )
    for name, tensor in after.items():
        if not name.startswith("random/"):
            assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("broken", ["mixed loss"], indirect=True)
def test_resumed_with_another_policy(broken: str, settings: Config, tmp_path: Path, metrix: Command) -> None:
    whole = train(settings.with_values({"on_nonfinite": "skip"}), tmp_path / "whole")
    with pytest.raises(NonFiniteStep):
        train(settings, tmp_path / "run")
    ended = metrix("train", "--resume", tmp_path / "run", "--quiet")
    assert ended.code == 1  # it stops at the same step
    ended = metrix("train", "--resume", tmp_path / "run", "--on-nonfinite", "skip")
    assert ended.code == 0
    assert "skipped step" in ended.err
    run = RunFolder(tmp_path / "run")
    assert run.config.train.on_nonfinite == "skip"
    a, b = load_file(run.last), load_file(whole.last)
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())
    assert metrix("train", "--resume", tmp_path / "run", "--lr", "1").code == 2


@pytest.mark.parametrize("broken", ["mixed loss"], indirect=True)
def test_steps_in_a_row_end_the_run(
    broken: str, settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrix.train.epochs.IN_A_ROW", 1)
    with pytest.raises(NonFiniteStep, match="1 steps in a row were skipped"):
        train(settings.with_values({"on_nonfinite": "skip"}), tmp_path / "run")


@pytest.mark.parametrize("broken", ["mixed loss"], indirect=True)
def test_a_full_disk_does_not_hide_the_reason(
    broken: str, settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(nonfinite, "write_step", full)
    with pytest.raises(NonFiniteStep, match=r"the mixed loss is inf; the step could not be saved \(No space left"):
        train(settings, tmp_path / "run")


def test_a_learning_rate_that_is_far_too_high(small: Config, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteStep, match=r"step \d+: .*lower the learning rate"):
        train(small.with_values({"lr": 1e30, "max_steps": 20, "epochs": 20}), tmp_path / "run")
    assert replay(tmp_path / "run").same


def test_nothing_to_repeat(run: Path, tmp_path: Path, refused: Any) -> None:
    refused("replay", run, words=("has no step to repeat", "nonfinite/step-N.safetensors"))
    refused("replay", tmp_path, words=("is no run",))


@pytest.mark.parametrize("broken", ["clean loss"], indirect=True)
def test_damaged_files(broken: str, settings: Config, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteStep):
        train(settings, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    (step,) = list_steps(run)
    with pytest.raises(InvalidInput, match=rf"no saved step {step + 1}; expected one of {step}"):
        replay(run.path, step + 1)
    text = (run.nonfinite / f"step-{step}.json").read_text()
    for damaged in ("", "[]", "{}", json.dumps(json.loads(text) | {"sizes": ["x"]}), text.replace('"path"', '"p"')):
        (run.nonfinite / f"step-{step}.json").write_text(damaged)
        with pytest.raises(InvalidInput, match="damaged"):
            replay(run.path)
    (run.nonfinite / f"step-{step}.json").write_text(text)
    (run.nonfinite / f"step-{step}.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(InvalidInput, match="is damaged or of other settings"):
        replay(run.path)
