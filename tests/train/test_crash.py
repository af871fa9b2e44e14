"""A run that crashes at any point resumes to the same weights; crashes are exceptions here, real kills in e2e."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metrix.errors import InvalidInput
from metrix.train import Config, Interrupted, checkpoint, train
from metrix.train.checkpoint import Progress
from metrix.train.run_folder import RunFolder
from metrix.train.watching import Watcher


class Crash(Exception):  # noqa: N818 - what it stands for
    pass


class Countdown:
    """Raises at the n-th of the places it is called from; without n it only counts."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Crash


def _with_crashes(patch: pytest.MonkeyPatch, reached: Countdown) -> Watcher:
    """Places to crash at: after each step, before and after every write of any file of the run."""

    def around(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            reached()
            result = original(*args, **kwargs)
            reached()
            return result

        patch.setattr(owner, name, call)

    around(checkpoint, "write")
    around(RunFolder, "log")
    around(RunFolder, "write_text")
    around(RunFolder, "write_json")

    class Stepping(Watcher):
        def step(self, progress: Progress, losses: list[float], images: int) -> None:
            reached()

    return Stepping()


def _same(found: RunFolder, expected: RunFolder) -> None:
    for name in ("model/model.safetensors", "checkpoints/last.safetensors"):
        a, b = load_file(found.path / name), load_file(expected.path / name)
        assert a.keys() == b.keys()
        assert [key for key in b if not torch.equal(a[key], b[key])] == []
    assert found.metrics() == expected.metrics()
    assert found.results is not None
    assert expected.results is not None
    assert found.results["test"] == expected.results["test"]
    assert found.results["best_epoch"] == expected.results["best_epoch"]


@pytest.fixture
def config(small: Config) -> Config:
    """Everything that has a state, in 6 steps of which 4 are an epoch."""
    return small.with_values(
        {
            "loss": "proxy-anchor",
            "ema": 0.5,
            "schedule": "cosine",
            "clip": 1.0,
            "pool": "avg",
            "mixup": ["embed", "feature"],
            "per_class": 6,
            "batch_size": 24,
            "max_steps": 6,
            "checkpoint_steps": 3,
        }
    )


def test_from_points_all_over(config: Config, tmp_path: Path) -> None:
    whole = train(config, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        points = Countdown()
        train(config, tmp_path / "counted", watcher=_with_crashes(patch, points))
    assert points.count > 20
    for at in (*range(1, points.count, 4), points.count):
        run = RunFolder(tmp_path / f"crash-{at}")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            train(config, run.path, watcher=_with_crashes(patch, Countdown(at)))
        if not (run.path / "config.yaml").exists():
            with pytest.raises(InvalidInput, match="is no run"):
                train(resume=run.path)
            continue
        _same(train(resume=run.path), whole)


class Sends(Watcher):
    """Sends a signal to this very process in a step, as Ctrl-C would."""

    def __init__(self, at: int, signum: signal.Signals) -> None:
        self.at, self.signum = at, signum

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        if progress.step == self.at:
            signal.raise_signal(self.signum)


@pytest.mark.parametrize("at", [1, 4, 6])  # in the first epoch, at its last batch, in the last step of all
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end(at: int, signum: signal.Signals, config: Config, tmp_path: Path) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught:
        train(config, tmp_path / "run", watcher=Sends(at, signum))
    assert caught.value.exit_code == 128 + signum
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    _, progress = checkpoint.read(RunFolder(tmp_path / "run").last)
    assert progress.step == at  # the step under way is done and kept, no other was begun
    _same(train(resume=tmp_path / "run"), train(config, tmp_path / "whole"))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """A number of threads of torch, for one test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("pairs", ["pos-neg", "anc-neg"])
@pytest.mark.parametrize("mixup", ["input", "feature", "embed"])
def test_every_mixup_resumes_at_any_number_of_threads(
    mixup: str, pairs: str, threads: int, small: Config, tmp_path: Path
) -> None:
    config = small.with_values({"mixup": [mixup], "pairs": [pairs], "max_steps": 4})
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", watcher=Sends(2, signal.SIGTERM))
    assert torch.get_num_threads() == threads
    _same(train(resume=tmp_path / "run"), whole)


def test_before_training_a_request_is_obeyed_at_once(config: Config, tmp_path: Path) -> None:
    class Early(Watcher):
        def begin(self, *_: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("went on")

    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", watcher=Early())


def test_other_data_is_noticed(config: Config, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", watcher=Sends(1, signal.SIGINT))
    file = tmp_path / "run" / "config.yaml"
    file.write_text(file.read_text("utf-8").replace("unseen: 0.5", "unseen: 0.4"), "utf-8")
    with pytest.raises(InvalidInput, match="other data"):
        train(resume=tmp_path / "run")


def test_a_checkpoint_is_whole_or_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.write(path, {"model/w": torch.arange(3.0)}, Progress(step=1, best=0.25))

    def cut_short(tensors: object, file: Path, metadata: object) -> None:
        file.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "save_file", cut_short)
    with pytest.raises(OSError, match="no space"):
        checkpoint.write(path, {"model/w": torch.zeros(3)}, Progress(step=2))
    tensors, progress = checkpoint.read(path)
    assert torch.equal(tensors["model/w"], torch.arange(3.0))
    assert (progress.step, progress.best) == (1, 0.25)
    assert [file.name for file in tmp_path.iterdir()] == ["last.safetensors"]


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"half"), lambda path: path.unlink()])
def test_a_damaged_checkpoint_is_told(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.write(path, {"model/w": torch.zeros(1)}, Progress())
    damage(path)
    with pytest.raises(InvalidInput, match="cannot be read as a checkpoint"):
        checkpoint.read(path)
