"""A run with several processes gives the weights of a run with one, also when it is killed and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from metrix import Embedder
from metrix.train import Config, build, train
from metrix.train.checkpoint import Progress
from metrix.train.run_folder import RunFolder
from metrix.train.watching import Watcher

from .train_worker import Descent

WORKER = Path(__file__).with_name("train_worker.py")
SETTINGS = {
    **{"data": "glyphs-mini", "backbone": "glyphs-cnn", "dim": 16, "loss": "contrastive", "reduction": "mean_nonzero"},
    **{"batch_size": 20, "per_class": 4, "epochs": 50, "max_steps": 26, "checkpoint_steps": 2, "lr": 0.001},
    # torch's own batch norm in float32 has gradients with errors of 1e-3, which would hide what is compared here, and
    # the effect of rounding grows tenfold in a dozen steps, so there are few
    **{"mixup": ["embed"], "schedule": "constant", "validate_every": 50, "frozen_bn": True},
}


@pytest.fixture(autouse=True)
def _descent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.torch.optim, "AdamW", Descent)


@pytest.fixture
def torchrun() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Two processes under torchrun; ended with the test."""
    begun: list[subprocess.Popen[str]] = []

    def start(run: Path, values: dict[str, object], *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        begun.append(
            subprocess.Popen(
                [*command, str(WORKER), str(run), json.dumps(values), *flags],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        )
        return begun[-1]

    yield start
    for process in begun:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def newer_checkpoint(process: subprocess.Popen[str], run: RunFolder, seen: int) -> None:
    deadline = time.monotonic() + 240
    while not run.last.exists() or run.last.stat().st_mtime_ns <= seen:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no new checkpoint"
        time.sleep(0.005)


def workers_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """The processes that torchrun started, by rank."""
    found = {}
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = next((int(v[5:]) for v in variables if v.startswith(b"RANK=")), None)
        if rank is not None:
            found[rank] = int(pid)
    return found


def same(found: RunFolder, expected: RunFolder) -> None:
    """Assert equal measures, and weights equal up to accumulated rounding, relative to how far training moved them."""
    a, b = (load_file(run.path / "checkpoints" / "last.safetensors") for run in (found, expected))
    assert a.keys() == b.keys()
    config = expected.config
    torch.manual_seed(config.train.seed)
    start = Embedder("glyphs-cnn", config.model.dim, config.model.pool).state_dict()
    for name, before in start.items():
        if before.is_floating_point() and "running" not in name:
            moved, apart = (b[f"model/{name}"] - before).norm(), (a[f"model/{name}"] - b[f"model/{name}"]).norm()
            assert moved > 0
            assert apart < 0.02 * moved, f"{name}: {apart:.1e} apart after moving {moved:.1e}"
    assert torch.equal(a["random/draws"], b["random/draws"])
    assert found.results is not None
    assert expected.results is not None
    for k, recall in expected.results["test"]["recall"].items():
        assert found.results["test"]["recall"][k] == pytest.approx(recall, abs=4 / 732)
    steps = [line["step"] for line in found.metrics()]
    assert steps == [line["step"] for line in expected.metrics()]


class EndsAt(Watcher):
    """Ctrl-C after some steps."""

    def __init__(self, step: int) -> None:
        self.last = step

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        if progress.step == self.last:
            signal.raise_signal(signal.SIGINT)


def test_killed_stopped_and_resumed_with_other_numbers_of_processes(
    tmp_path: Path, torchrun: Callable[..., subprocess.Popen[str]]
) -> None:
    """One process, interrupted; two, one of them killed; two, asked to end; one to the end: as one all the way."""
    from metrix.train.interruption import Interrupted

    config = Config().with_values(SETTINGS)
    whole = train(config, tmp_path / "whole")
    run = RunFolder(tmp_path / "run")
    with pytest.raises(Interrupted):
        train(config, run.path, watcher=EndsAt(3))

    seen = run.last.stat().st_mtime_ns
    process = torchrun(run.path, SETTINGS, "resume")
    newer_checkpoint(process, run, seen)
    os.kill(workers_of(process)[1], signal.SIGKILL)
    begun = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert time.monotonic() - begun < 60
    assert process.returncode == 1
    assert re.search(rf"rank 0 lost another process.*--resume {run.path}", errors) or "SIGTERM" in errors
    assert run.results is None

    seen = run.last.stat().st_mtime_ns
    process = torchrun(run.path, SETTINGS, "resume")
    newer_checkpoint(process, run, seen)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert f"interrupted by SIGTERM; resume with --resume {run.path}" in errors
    assert run.results is None
    stopped = load_file(run.last)

    train(resume=run.path)
    assert not all(torch.equal(stopped[name], tensor) for name, tensor in load_file(run.last).items())
    same(run, whole)


@pytest.mark.parametrize("strategy", ["fsdp"])
def test_shared_weights(strategy: str, tmp_path: Path, torchrun: Callable[..., subprocess.Popen[str]]) -> None:
    """FSDP with proxies, a moving average, feature mixup across processes and a checkpoint of whole tensors."""
    values = SETTINGS | {"max_steps": 5, "mixup": ["feature"], "mix": "global", "pool": "avg", "ema": 0.5}
    values |= {"loss": "proxy-anchor", "reduction": "original", "proxy_lr": 0.1}
    process = torchrun(tmp_path / "run", values, strategy)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    whole = train(Config().with_values(values), tmp_path / "whole")
    same(RunFolder(tmp_path / "run"), whole)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_loss_that_is_infinite_in_one_process(
    strategy: str, tmp_path: Path, torchrun: Callable[..., subprocess.Popen[str]]
) -> None:
    """Both processes skip the step; it is saved with the items of both, and repeated by one."""
    from metrix.train.nonfinite import list_steps, read_step
    from metrix.train.replay import replay

    process = torchrun(tmp_path / "run", SETTINGS | {"max_steps": 5, "on_nonfinite": "skip"}, strategy, "broken")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    run = RunFolder(tmp_path / "run")
    assert run.results is not None
    assert (run.results["steps"], run.results["skipped_steps"]) == (5, 1)
    for name, tensor in load_file(run.last).items():
        assert not tensor.is_floating_point() or torch.isfinite(tensor).all(), name
    assert list_steps(run) == [3]
    saved = read_step(run, 3)
    assert saved.broken in ("loss", "gradient")  # rank 0, which saves it, has a finite loss
    assert saved.sizes == [8, 12]
    assert len(saved.items) == 20
    found = replay(run.path)  # which is not broken here
    assert "the run had 2 processes" in found.note
    if saved.losses["loss"] != "inf":
        assert found.losses["clean"] == pytest.approx(saved.losses["clean"], rel=1e-5)
        assert found.losses["mixed"] == pytest.approx(saved.losses["mixed"], rel=1e-5)
