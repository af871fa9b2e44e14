"""Every mixing method by name: built, trained and resumed; settings that do not go together are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metrix.core.metrix import Metrix
from metrix.core.rivals import IMix, MoCHi, ProxySynthesis, SiMix
from metrix.errors import InvalidInput
from metrix.train import Config, Interrupted, train
from metrix.train.build import build_loss, build_objective
from metrix.train.checkpoint import Progress
from metrix.train.names import METHODS
from metrix.train.watching import Watcher

OBJECTIVES = {"metrix": Metrix, "imix": IMix, "mochi": MoCHi, "proxy-synthesis": ProxySynthesis, "simix": SiMix}


def objective_of(config: Config) -> Any:
    return build_objective(config, build_loss(config.loss, 5, 8), torch.Generator().manual_seed(0))


def test_every_method_is_tested() -> None:
    assert set(METHODS) == set(OBJECTIVES)


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_those_of_the_method(name: str) -> None:
    config = Config().with_values({"mixup_method": name, "loss": METHODS[name].usual_loss})
    assert type(objective_of(config)) is OBJECTIVES[name]
    for key, value in METHODS[name].defaults.items():
        assert getattr(config.mixing, key) == value
    assert config.with_values({"seed": 3}).mixing == config.mixing
    changed = config.with_values({"alpha": 3.0})
    assert changed.mixing == config.mixing.model_copy(update={"alpha": 3.0})
    assert changed.with_values({"mixup_method": "metrix" if name != "metrix" else "mochi"}).mixing.alpha != 3.0


def test_given_values_are_used() -> None:
    mochi = objective_of(
        Config().with_values(
            {"loss": "contrastive", "mixup_method": "mochi", "hard_negatives": [7], "pairs": ["anc-neg"], "alpha": 2.0}
        )
    )
    assert (mochi.hard_negatives, mochi.pairs, mochi.drawing.alpha, mochi.drawing.lam_per) == (
        7, ("anc-neg",), 2.0, "pair",
    )  # fmt: skip
    values = {"loss": "contrastive", "mixup_method": "imix", "mixup": ["embed"], "instance_temperature": 0.3}
    imix = objective_of(Config().with_values({**values, "strength": 0.7}))
    assert (imix.mixup, imix.temperature, imix.strength) == ("embed", 0.3, 0.7)
    synthesis = objective_of(
        Config().with_values({"loss": "proxy-anchor", "mixup_method": "proxy-synthesis", "lam_per": "pair"})
    )
    assert (synthesis.drawing.alpha, synthesis.drawing.lam_per) == (0.4, "pair")
    simix = objective_of(Config().with_values({"loss": "recall-at-k", "mixup_method": "simix", "ks": [1, 4]}))
    assert (simix.loss.ks, simix.drawing.alpha) == ((1, 4), 1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mixup_method": "mixco"}, r"unknown mixup_method 'mixco'; did you mean 'imix'"),
        ({"mixup_method": "mochi", "loss": "proxy-anchor"}, "MoCHi with ProxyAnchor: .* expected Contrastive"),
        ({"mixup_method": "imix", "loss": "proxy-nca++"}, "IMix with ProxyNCAPlusPlus: .* expected Contrastive"),
        ({"mixup_method": "proxy-synthesis"}, "ProxySynthesis with MultiSimilarity: .* expected ProxyAnchor"),
        (
            {"mixup_method": "mochi", "mixup": ["feature"]},
            "mixup: expected embed with mixup_method 'mochi', got 'feature'",
        ),
        ({"mixup_method": "mochi", "pairs": ["pos-neg"]}, "pairs: expected neg-neg or anc-neg .*got 'pos-neg'"),
        ({"mixup_method": "mochi", "strength": 0.4}, "strength: expected 1.0 with .*got 0.4; .* in one loss"),
        ({"mixup_method": "mochi", "hard_negatives": [3, 4]}, "expected one number"),
        ({"mixup_method": "imix", "hard_negatives": [3]}, "hard_negatives: expected nothing"),
        ({"mixup_method": "imix", "mixup": ["input", "embed"]}, "mixup: expected one type"),
        ({"mixup_method": "simix", "loss": "triplet"}, "Triplet cannot be mixed"),
        ({"mixup_method": "simix", "loss": "proxy-anchor"}, "SiMix with ProxyAnchor"),
        ({"mixup_method": "simix", "pairs": ["pos-neg"]}, "pairs: expected pos-pos with mixup_method 'simix'"),
        ({"loss": "recall-at-k", "mixup": ["embed"]}, "RecallAtK cannot be mixed: .*simix"),
        ({"instance_temperature": 0.2}, "only 'imix' has a loss over instances"),
    ],
)
def test_what_does_not_fit(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        objective_of(Config().with_values(values))


def test_without_mixup_there_is_no_method(small: Config) -> None:
    config = small.with_values({"mixup_method": "proxy-synthesis", "mixup": []})
    assert objective_of(config).explain().startswith("no mixup")
    assert config.mixing.describe() == "none"


class Stopped(Watcher):
    """Asks for an end after some steps, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        import os
        import signal

        if progress.step == self.after:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "metrix"])
def test_an_interrupted_run_ends_with_the_same_weights(name: str, small: Config, tmp_path: Path) -> None:
    config = small.with_values({"mixup_method": name, "loss": METHODS[name].usual_loss})
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", watcher=Stopped(5))
    parts = train(resume=tmp_path / "parts")
    for file in ("model/model.safetensors", "checkpoints/last.safetensors"):
        one, other = load_file(whole.path / file), load_file(parts.path / file)
        assert all(torch.equal(tensor, other[key]) for key, tensor in one.items())
