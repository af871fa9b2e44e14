"""Training on a GPU, as far as it can be tested without one: devices, waiting, copies, and the weights of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metrix.train import Config, train
from metrix.train.checkpoint import Progress
from metrix.train.distributed import Team
from metrix.train.watching import Watcher
from tests.devices.pretended_training import train_pretended

FEATURE = {"mixup": ("feature",), "pool": "avg", "max_steps": 3}


def weights(run: Any) -> dict[str, torch.Tensor]:
    return load_file(run.model / "model.safetensors")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"ema": 0.9},
        {"clip": 1.0},
        {"memory": 32, "mixup": ("embed",)},
        {"warmup_epochs": 1, "max_steps": 10},
        {"on_nonfinite": "skip"},
        {"freeze_to": "stage1", "views": 2},
        {"freeze_to": "stage1", "views": 2, "head_init": "whiten", "dim": 8},
        {"head_init": "whiten", "dim": 8},
        {"loss": "proxy-anchor"},
        {"loss": "margin", "scheme": "divide-and-conquer", "mixup": (), "clusters": 2, "max_steps": 16},
    ],
    ids=lambda values: " ".join(map(str, values)) or "feature mixup",
)
def test_a_run_gives_the_weights_of_the_cpu(values: dict[str, Any], small: Config, tmp_path: Path, monkeypatch) -> None:
    config = small.with_values({**FEATURE, **values})
    pretended = train_pretended(config, tmp_path / "cuda", monkeypatch)
    assert len(pretended.steps) == config.train.max_steps
    expected = weights(train(config, tmp_path / "cpu"))
    for name, tensor in weights(pretended.run).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0, msg=name)


def test_the_frozen_trunk_computes_its_views_on_the_device(small: Config, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("metrix.train.loop._Loop.measure_untrained", lambda self, part: None)
    monkeypatch.setenv("METRIX_CACHE", str(tmp_path / "cache"))
    config = small.with_values({**FEATURE, "freeze_to": "stage1", "views": 2, "max_steps": 1})
    assert "convolution" in train_pretended(config, tmp_path / "run", monkeypatch).prepared_on_device


def test_the_fused_optimizer_of_cuda_gives_much_the_same_weights(small: Config, tmp_path: Path, monkeypatch) -> None:
    config = small.with_values({**FEATURE, "max_steps": 5})
    fused = train_pretended(config, tmp_path / "cuda", monkeypatch, fused=True)
    separate = train_pretended(config, tmp_path / "separate", monkeypatch)
    assert fused.steps[-1].launches < separate.steps[-1].launches - 50
    expected = weights(separate.run)
    for name, tensor in weights(fused.run).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-2, atol=1e-3, msg=name)


def test_a_fused_run_resumes_as_if_it_had_not_stopped(small: Config, tmp_path: Path, monkeypatch) -> None:
    config = small.with_values({**FEATURE, "max_steps": 6, "checkpoint_steps": 2})
    whole = train_pretended(config, tmp_path / "whole", monkeypatch, fused=True).run

    class Stop(Watcher):
        def step(self, progress: Progress, losses: list[float], images: int) -> None:
            if progress.step == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_pretended(config, tmp_path / "halves", monkeypatch, fused=True, watcher=Stop())
    halves = train_pretended(config, None, monkeypatch, fused=True, resume=tmp_path / "halves").run
    expected = weights(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(halves).items())


def test_the_random_state_of_the_gpu_is_in_checkpoints_and_restored(small: Config, tmp_path: Path, monkeypatch) -> None:
    config = small.with_values({**FEATURE, "max_steps": 2})
    run = train_pretended(config, tmp_path / "run", monkeypatch).run
    assert "random/cuda" in load_file(run.last)
    restored: list[torch.Tensor] = []
    monkeypatch.setattr("metrix.train.state.set_random_state", lambda device, state: restored.append(state))
    train_pretended(config, None, monkeypatch, resume=run.path, max_steps=3)
    assert [state.tolist() for state in restored] == [[0] * 16]


def test_warming_up_needs_no_backward_pass_of_the_backbone(small: Config, tmp_path: Path, monkeypatch) -> None:
    config = small.with_values({**FEATURE, "warmup_epochs": 1, "max_steps": 10})
    steps = train_pretended(config, tmp_path / "run", monkeypatch).steps
    assert steps[0].launches < steps[9].launches - 40  # an epoch has eight steps


def test_clipping_goes_with_a_gradient_scaler_that_overflows(small: Config, tmp_path: Path, monkeypatch) -> None:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import MixedPrecision

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # stands for that of CUDA
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    fabric.launch()
    monkeypatch.setattr("metrix.train.distributed.launch", lambda *_: Team(fabric))
    run = train(small.with_values({**FEATURE, "clip": 1.0, "max_steps": 4}), tmp_path / "run")
    assert run.results is not None
    assert run.results["steps"] == 4
    assert scaler.get_scale() < 2.0**127  # a step overflowed, and was left out by the scaler
