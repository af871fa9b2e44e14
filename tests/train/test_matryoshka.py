"""Runs that train prefixes of the embedding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metrix import Clean, Embedder, Metrix
from metrix.errors import InvalidInput
from metrix.train.build import build_loss, build_objective
from metrix.train.config import Config
from metrix.train.run_folder import open_run_folder
from tests.trained_runs import train_tiny


def objective_of(**values: object) -> Metrix | Clean:
    config = Config().with_values({"dim": 16, "mixup": ("embed",), **values})
    return build_objective(config, build_loss(config.loss, 4, 16), torch.Generator())  # type: ignore[return-value]


@pytest.mark.parametrize(("mixup", "kind"), [(("embed",), Metrix), ((), Clean)])
def test_the_objective_has_the_prefixes_of_the_configuration(mixup, kind) -> None:
    found = objective_of(mixup=mixup, matryoshka=(8, 4, 16), matryoshka_weight=0.5)
    assert type(found) is kind
    assert found.prefixes == ((4, 8, 16), 0.5)
    assert found.prefixes.within(16).dims == (4, 8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"matryoshka": (8, 32)}, "prefixes of an embedding of dim 16, got 32; leave it out, or set dim=32"),
        ({"matryoshka": (0,)}, "expected a number ≥ 1"),
        ({"matryoshka_weight": 0.5}, "expected prefixes with it"),
        ({"matryoshka": (8,), "mixup_method": "mochi"}, r"expected the clean loss \(Clean\) or Metrix, got MoCHi"),
        ({"matryoshka": (8,), "loss": "soft-triple", "mixup": ()}, "SoftTriple, whose centres"),
        (
            {"matryoshka": (8,), "loss": "divide-and-conquer", "mixup": ()},
            "expected none with scheme 'divide-and-conquer'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(values, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        objective_of(**values)


def test_prefixes_change_the_training_and_are_stored_with_the_weights(tmp_path: Path) -> None:
    plain = train_tiny(tmp_path / "plain", max_steps=3, dim=16)
    path = train_tiny(tmp_path / "run", max_steps=3, dim=16, matryoshka=(4, 8))
    assert open_run_folder(path).config.model.matryoshka == (4, 8)
    embedder, other = Embedder.load(path), Embedder.load(plain)
    assert embedder.config.matryoshka == (4, 8)
    assert other.config.matryoshka == ()
    differs = [not torch.equal(a, b) for a, b in zip(embedder.parameters(), other.parameters(), strict=True)]
    assert any(differs)
