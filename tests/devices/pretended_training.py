"""A whole `metrix.train` on the pretended device, with what each of its steps asked of the device."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from metrix.train import Config, train
from metrix.train.distributed import Team
from metrix.train.run_folder import RunFolder
from tests.devices.pretended_cuda import CUDA, PretendedCuda


class PretendedFabric:
    """What the training loop uses of Fabric, for one process on the pretended device."""

    global_rank, world_size, device = 0, 1, CUDA
    strategy = SimpleNamespace(precision=SimpleNamespace(scaler=None))

    def __init__(self, pretended: PretendedCuda) -> None:
        self.pretended = pretended

    def setup_module(self, module: nn.Module) -> nn.Module:
        return self.pretended.put_module(module)

    def setup_optimizers(self, optimizer: Any) -> Any:
        return optimizer

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip_gradients(self, module: nn.Module, optimizer: Any, max_norm: float, error_if_nonfinite: bool) -> None:
        nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def autocast(self) -> Any:
        return contextlib.nullcontext()

    def barrier(self) -> None:
        pass

    def broadcast(self, text: str) -> str:
        return text

    def all_reduce(self, data: Any, reduce_op: str) -> Any:
        return data


class StepCost(NamedTuple):
    """What a step asked of the device."""

    synchronisations: dict[tuple[str, str], int]
    copies: dict[str, int]
    launches: int


class PretendedRun(NamedTuple):
    """A run on the pretended device, and the cost of each of its steps."""

    run: RunFolder
    steps: list[StepCost]
    prepared_on_device: set[str]  # operations that the device had computed before the first step


def train_pretended(
    config: Config, folder: Path | None, monkeypatch: pytest.MonkeyPatch, *, fused: bool = False, **arguments: Any
) -> PretendedRun:
    """Train on the pretended device.

    The fused optimizer of CUDA rounds otherwise than the CPU's, so `fused` is off where weights are compared.
    """
    from metrix.train import build, epochs

    pretended, steps, own_step = PretendedCuda(), list[StepCost](), epochs.Epochs._step
    prepared: set[str] = set()

    def step(self: Any, images: Tensor, labels: Tensor) -> int:
        if not steps:
            prepared.update(name for name, _ in pretended.launches)
        pretended.reset()
        request = own_step(self, images, labels)
        steps.append(StepCost(dict(pretended.synchronisations), dict(pretended.copies), pretended.launches.total()))
        return request

    with pretended, monkeypatch.context() as patch:
        patch.setattr(epochs.Epochs, "_step", step)
        patch.setattr("metrix.train.distributed.launch", lambda *_: Team(PretendedFabric(pretended)))
        patch.setattr("metrix.train.loop.choose_device", lambda name: CUDA)
        patch.setattr("metrix.machine.devices.has_bfloat16", lambda device: False)
        patch.setattr("metrix.train.precision.has_bfloat16", lambda device: False)
        if not fused:
            patch.setattr("metrix.train.state.build_optimizer", lambda *given: build.build_optimizer(*given[:3]))
        patch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
        return PretendedRun(train(config if folder else None, folder, **arguments), steps, prepared)
