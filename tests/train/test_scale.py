"""Batches past memory, in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from metrix.errors import MetrixWarning
from metrix.train import Config, train

STEPS = {"frozen_bn": True, "max_steps": 1, "epochs": 1, "holdout": 0.0}


@pytest.mark.parametrize("mixup", [[], ["embed"], ["feature"], ["input"]])
def test_micro_batches_have_the_gradient_of_the_batch(
    mixup: list[str], small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Tensor]] = []
    step = torch.optim.AdamW.step

    def recorded(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
        seen.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    config = small.with_values({**STEPS, "mixup": mixup})
    train(config, tmp_path / "whole")
    train(config.with_values({"micro_batch": 5}), tmp_path / "pieces")
    whole, pieces = seen
    assert len(whole) > 10
    for found, expected in zip(pieces, whole, strict=True):
        assert (found - expected).abs().max() <= 1e-6 * max(1.0, float(expected.abs().max()))


def test_batch_norm_over_micro_batches_is_said(small: Config, tmp_path: Path) -> None:
    with pytest.warns(MetrixWarning, match="micro-batches of 5"):
        train(small.with_values({**STEPS, "frozen_bn": False, "micro_batch": 5}), tmp_path / "run")
