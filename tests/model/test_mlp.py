"""The network of vectors: hidden layers, where feature mixup cuts it, and what it saves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from metrix import Embedder, Metrix, losses
from metrix.errors import InvalidInput, ModelError, ShapeError
from metrix.model.mlp import Standardise


def build(hidden: tuple[int, ...] = (7, 6), mix_at: int | None = None) -> Embedder:
    torch.manual_seed(0)
    return Embedder("mlp", dim=4, pool="avg", inputs=5, hidden=hidden, mix_at=mix_at).double().eval()


@pytest.mark.parametrize("mix_at", [0, 1, 2, None])
def test_the_network_is_the_same_wherever_it_is_cut(mix_at: int | None) -> None:
    whole, cut = build(), build(mix_at=mix_at)
    torch.manual_seed(0)
    names = [n for n, p in cut.named_parameters()]
    assert len(names) == len(list(whole.parameters()))
    for here, there in zip(cut.parameters(), whole.parameters(), strict=True):
        here.data.copy_(there.data)
    x = torch.randn(9, 5, dtype=torch.float64)
    torch.testing.assert_close(cut(x), whole(x))
    widths = {0: 5, 1: 7, 2: 6, None: 6}
    assert cut.features(x).shape == (9, widths[mix_at])


@pytest.mark.parametrize(("mix_at", "route"), [(0, "chunks"), (1, "chunks"), (2, "closed form")])
def test_feature_mixup_at_any_layer_is_the_literal_one(mix_at: int, route: str) -> None:
    model, labels, lam = build(mix_at=mix_at), torch.tensor([0, 0, 1, 1, 2, 2]), 0.3
    x = torch.randn(6, 5, dtype=torch.float64)
    loss = losses.Contrastive()
    objective = Metrix(loss, mixup="feature", pairs="pos-neg")
    assert f"feature mixup: {route}" in objective.explain(model)
    z = model.features(x)
    found = objective.mixed_features(model, z, labels, lam=lam, pairs="pos-neg")
    rows = []
    for a in range(6):
        value = torch.zeros((), dtype=torch.float64)
        f = model.head(z[a : a + 1])[0]
        for p in range(6):
            for n in range(6):
                if p != a and labels[p] == labels[a] and labels[n] != labels[a]:
                    s = f @ model.head(lam * z[p : p + 1] + (1 - lam) * z[n : n + 1])[0]
                    value = value - lam * s + (1 - lam) * F.relu(s - loss.margin)
        rows.append(value)
    literal = torch.stack(rows).mean()
    torch.testing.assert_close(found, literal)
    weights = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(found, weights, retain_graph=True, allow_unused=True),
        torch.autograd.grad(literal, weights, allow_unused=True),
        strict=True,
    ):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_standardisation_is_that_of_the_training_vectors_and_constant_entries_are_only_centred() -> None:
    x = torch.randn(50, 3, dtype=torch.float64) * torch.tensor([1.0, 1e4, 0.0]) + torch.tensor([0.0, 5.0, 7.0])
    layer = Standardise(3).double()
    layer.fit(x)
    out = layer(x)
    torch.testing.assert_close(out[:, :2].std(0, correction=0), torch.ones(2, dtype=torch.float64))
    assert out[:, 2].abs().max() == 0
    with pytest.raises(ShapeError, match=r"expected shape \(n, 3\), got \(2, 4\)"):
        layer(torch.zeros(2, 4))


def test_a_saved_network_embeds_the_same_and_older_models_still_load(tmp_path: Path) -> None:
    model = build().float()
    model.backbone.stem.fit(torch.randn(20, 5) * 3 + 1)
    model.save(tmp_path / "m")
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    again = Embedder.load(tmp_path / "m")
    assert again.config == model.config
    np.testing.assert_array_equal(again.encode(x), model.encode(x))
    assert again.encode(x[0]).shape == (1, 4)
    # a model of images has none of the keys of vectors: earlier versions, which wrote none, can read it
    Embedder("glyphs-cnn", dim=4).save(tmp_path / "old")
    about = json.loads((tmp_path / "old" / "config.json").read_text())
    assert not about.keys() & {"inputs", "hidden", "mix_at"}
    assert Embedder.load(tmp_path / "old").config.hidden == ()


def test_freezing_up_to_a_layer_leaves_the_rest_to_train() -> None:
    model = Embedder("mlp", dim=4, pool="avg", inputs=5, hidden=(7, 6), freeze_to="layer1")
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert not any(name.startswith("backbone.layer1") for name in trained)
    assert any(name.startswith("backbone.layer2") for name in trained)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ModelError, match="expected inputs=LENGTH, pool='avg' and no image_size, got inputs=None"):
        Embedder("mlp", dim=4, pool="avg")
    with pytest.raises(ModelError, match="which embeds images; leave them out"):
        Embedder("glyphs-cnn", dim=4, hidden=(8,))
    with pytest.raises(InvalidInput, match="mix_at: expected at most 1, the number of hidden layers"):
        Embedder("mlp", dim=4, pool="avg", inputs=5, hidden=(7,), mix_at=2)
    with pytest.raises(InvalidInput, match="hidden: expected an integer ≥ 1, got 0"):
        Embedder("mlp", dim=4, pool="avg", inputs=5, hidden=(0,))
    with pytest.raises(ModelError, match="no pretrained weights of 'mlp'"):
        Embedder("mlp", dim=4, pool="avg", inputs=5, weights="pretrained")
