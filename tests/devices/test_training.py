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
    monkeypatch.setattr("metrix.train.epochs.Epochs.measure_untrained", lambda self, part: None)
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


@pytest.mark.parametrize("values", [{}, {"clip": 1.0, "ema": 0.9}, {"memory": 32, "mixup": ("embed",)}], ids=str)
def test_the_loop_asks_the_device_once_in_a_step(
    values: dict[str, Any], small: Config, tmp_path: Path, monkeypatch
) -> None:
    steps = train_pretended(small.with_values({**FEATURE, **values}), tmp_path / "run", monkeypatch, fused=True).steps
    for cost in steps:
        asked = {line: times for (_, line), times in cost.synchronisations.items() if line.startswith("train/")}
        assert sum(asked.values()) == 1, asked


def test_training_on_a_real_gpu(device: torch.device, small: Config, tmp_path: Path) -> None:
    """Runs where there is a GPU: losses fall as on the CPU, and a run resumes."""
    values = {**FEATURE, "precision": "32-true", "deterministic": True, "max_steps": 6, "clip": 1.0, "ema": 0.9}
    config = small.with_values(values)
    expected = train(config.with_values({"device": "cpu"}), tmp_path / "cpu").metrics()
    run = train(config.with_values({"device": device.type}), tmp_path / "gpu")
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (expected, run.metrics())]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    longer = train(resume=run.path, max_steps=8)
    assert longer.results is not None
    assert longer.results["steps"] == 8
    assert device.type == "mps" or "random/cuda" in load_file(longer.last)


def test_batch_norm_of_several_gpus(monkeypatch) -> None:
    """torch's own layers, unless inputs are mixed in chunks."""
    from types import SimpleNamespace

    from metrix.core.distributed.batch_norm import refuse_waiting
    from metrix.core.distributed.ranks import Ranks
    from metrix.errors import InvalidInput
    from metrix.model import Embedder
    from metrix.train.state import synchronise_batch_norm

    team: Any = SimpleNamespace(device=torch.device("cuda", 0), ranks=Ranks(0, 2))
    found = {}
    for mixup in ("feature", "input"):
        embedder = Embedder("resnet10t", dim=8, pool="avg")
        names = set(embedder.state_dict())
        synchronise_batch_norm(Config().with_values({"mixup": (mixup,)}), embedder, team)
        assert set(embedder.state_dict()) == names
        found[mixup] = [m for m in embedder.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    assert all(isinstance(norm, torch.nn.SyncBatchNorm) for norm in found["feature"])
    assert not any(isinstance(norm, torch.nn.SyncBatchNorm) for norm in found["input"])
    assert all(norm.across.size == 2 for norm in found["input"])
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    refuse_waiting(found["input"])
    with pytest.raises(InvalidInput, match=r"got nn.SyncBatchNorm; use normalise_globally"):
        refuse_waiting(found["feature"])
