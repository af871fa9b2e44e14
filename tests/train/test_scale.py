"""Runs with micro-batches and with a cross-batch memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from metrix.errors import InvalidInput, MetrixWarning
from metrix.train import Config, train
from tests.train.test_loop import Recorder

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


@pytest.mark.parametrize("mixup", [[], ["embed"], ["feature"]])
def test_a_memory_fills_counts_and_is_saved(mixup: list[str], small: Config, tmp_path: Path) -> None:
    alone, recorder = Recorder(), Recorder()
    values = {"mixup": mixup, "max_steps": 4, "epochs": 1, "holdout": 0.0}
    train(small.with_values(values), tmp_path / "alone", watcher=alone)
    with_memory = small.with_values({**values, "memory": 20, "memory_after": 2})
    run = train(with_memory, tmp_path / "run", watcher=recorder)
    assert recorder.losses[:2] == alone.losses[:2]
    assert recorder.losses[2][1] != alone.losses[2][1]  # the clean loss has more candidates
    saved = load_file(run.last)
    assert saved["memory/embeddings"].shape == (20, 8)
    assert torch.allclose(saved["memory/embeddings"].norm(dim=1), torch.ones(20))
    assert (int(saved["memory/stored"]), int(saved["memory/steps"])) == (48, 4)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"memory": 20, "loss": "proxy-nca++"}, "positives and negatives are proxies"),
        ({"memory": 20, "loss": "triplet", "mixup": []}, "no set of candidates"),
        (
            {"memory": 20, "mixup_method": "imix", "mixup": ["embed"], "pairs": ["anc-neg"]},
            "memory: expected .* got IMix",
        ),
        ({"memory": 20, "scheme": "divide-and-conquer"}, "slices of the embedding"),
        ({"memory_after": 5}, "memory: expected a size.*memory_after=5"),
        ({"memory": 0}, "memory: expected a number ≥ 1, got 0"),
        ({"micro_batch": 0}, "micro_batch: expected a number ≥ 1, got 0"),
    ],
)
def test_what_makes_no_sense_is_an_error(values: dict[str, Any], match: str, small: Config, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=match):
        train(small.with_values(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()
