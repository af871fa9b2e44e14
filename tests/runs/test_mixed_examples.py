"""Mixed examples of a trained model: the definition, pairs and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metrix import Embedder, data
from metrix.errors import ChoiceError
from metrix.runs.mixed_examples import draw_batches, draw_pairs, embed_mixtures


@pytest.mark.parametrize("pool", ["avg", "avg+max"])
def test_mixed_examples_by_the_model_are_the_definition(pool: str) -> None:
    network = Embedder("glyphs-cnn", 16, pool).eval()
    images, _ = data.open("glyphs-mini").train.with_transform(data.GlyphTransform.still()).batch(range(6))
    i, j = torch.tensor([0, 4, 2]), torch.tensor([3, 1, 5])
    lam = torch.tensor([0.2, 0.9, 0.5])
    found = {mixup: embed_mixtures(network, mixup, images, i, j, lam) for mixup in ("input", "feature")}
    with torch.no_grad():
        for n in range(3):
            a, b, share = images[i[n]], images[j[n]], float(lam[n])
            by_input = network((share * a + (1 - share) * b)[None])[0]
            z = share * network.features(a[None]) + (1 - share) * network.features(b[None])
            np.testing.assert_allclose(found["input"][n], by_input.numpy(), atol=1e-5)
            np.testing.assert_allclose(found["feature"][n], network.head(z)[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["pos-neg", "anc-neg", "pos-pos", "neg-neg"])
def test_every_anchor_of_a_batch_has_one_pair_of_the_kind(kind: str) -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    i, j = draw_pairs(labels, kind, torch.Generator().manual_seed(0))
    anchors = torch.arange(6) if kind in ("anc-neg", "neg-neg") else torch.arange(5)  # the last is alone
    assert len(i) == len(anchors)
    for side, chosen in zip(kind.split("-"), (i, j), strict=True):
        if side == "anc":
            assert torch.equal(chosen, anchors)
        else:
            assert torch.equal(labels[chosen] == labels[anchors], torch.full((len(anchors),), side == "pos"))
            assert not (chosen == anchors).any()


def test_batches_hold_every_example_once_with_company() -> None:
    labels = torch.tensor([k for k in range(9) for _ in range(2 + k)])
    batches = draw_batches(labels, 12, 2, torch.Generator().manual_seed(1))
    assert sorted(n for batch in batches for n in batch) == list(range(len(labels)))
    for batch in batches:
        classes, counts = labels[batch].unique(return_counts=True)
        assert len(classes) > 1
        assert int(counts.min()) > 1


def test_unknown_names_are_errors() -> None:
    network = Embedder("glyphs-cnn", 16).eval()
    pair, lam = torch.tensor([0]), torch.tensor([0.5])
    with pytest.raises(ChoiceError, match=r"unknown mixup 'cutmix'.* expected one of: 'input', 'feature', 'embed'"):
        embed_mixtures(network, "cutmix", torch.zeros(2, 1, 32, 32), pair, pair, lam)
    with pytest.raises(ChoiceError, match="unknown pairs 'pos-ned'; did you mean 'pos-neg'"):
        draw_pairs(torch.tensor([0, 0, 1]), "pos-ned", torch.Generator())
