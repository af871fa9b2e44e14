"""Pairs of a miner and other candidates, against pytorch-metric-learning."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning import miners

from metrix import Metrix, losses
from metrix.core.mined import mark_mined
from metrix.errors import InvalidInput

LABELS = torch.arange(6).repeat_interleave(4)
X = torch.randn(24, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MINERS = {
    "pairs": miners.MultiSimilarityMiner(0.1),
    "triplets": miners.TripletMarginMiner(0.1),
    "hardest": miners.BatchHardMiner(),
}
PEERS = {
    "multi-similarity": (lambda: losses.MultiSimilarity(), lambda: peer.MultiSimilarityLoss(18, 75, 0.77)),
    "contrastive": (
        lambda: losses.from_pml(peer.ContrastiveLoss(pos_margin=1, neg_margin=0.2)),
        lambda: peer.ContrastiveLoss(pos_margin=1, neg_margin=0.2),
    ),
    "supcon": (lambda: losses.from_pml(peer.SupConLoss()), lambda: peer.SupConLoss()),
}


def differentiate(loss, *arguments, **more):
    x = X.clone().requires_grad_()
    value = loss(x, LABELS, *arguments, **more)
    value.backward()
    return value.detach(), x.grad


@pytest.mark.parametrize(
    ("name", "miner"),
    [
        *(("multi-similarity", miner) for miner in MINERS),
        ("contrastive", "pairs"),
        ("contrastive", "hardest"),  # and not triplets: PML counts a pair as often as they have it
    ],
)
def test_mined_pairs_count(name, miner):
    ours, theirs = (make() for make in PEERS[name])
    indices = MINERS[miner](X, LABELS)
    assert mark_mined(indices, 24, 24, X.device).sum() < 24 * 23
    for found, expected in zip(differentiate(ours, indices), differentiate(theirs, indices), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", PEERS)
def test_queries_against_other_candidates(name):
    ours, theirs = (make() for make in PEERS[name])
    others = torch.randn(30, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given = {"ref_emb": others, "ref_labels": torch.arange(30) % 6}
    for found, expected in zip(differentiate(ours, **given), differentiate(theirs, **given), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_mixed_loss_is_of_all_mixing_pairs():
    indices = MINERS["pairs"](X, LABELS)
    loss = losses.MultiSimilarity()

    def objective() -> Metrix:
        return Metrix(loss, "embed", "pos-neg", generator=torch.Generator().manual_seed(3))

    mixed = objective().mixed(X, LABELS)
    torch.testing.assert_close(objective()(X, LABELS, indices), loss(X, LABELS, indices) + 0.4 * mixed)


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ("all", "expected what a miner returns"),
        ((torch.tensor([0]), torch.tensor([1])), "expected what a miner returns"),
        ((torch.tensor([0.5]), torch.tensor([1]), torch.tensor([4])), "numbers of examples"),
        ((torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([4, 5])), "equal length"),
        ((torch.tensor([0]), torch.tensor([24]), torch.tensor([4])), "from 0 to 23 of 24 candidates, got 4 to 24"),
    ],
)
def test_other_tuples_are_refused(indices, words):
    with pytest.raises(InvalidInput, match=words):
        losses.MultiSimilarity()(X, LABELS, indices)


def test_what_has_no_pairs_of_examples_is_refused():
    indices = MINERS["pairs"](X, LABELS)
    with pytest.raises(InvalidInput, match="compares examples with proxies"):
        losses.ProxyAnchor(6, 8)(X.float(), LABELS, indices)
    with pytest.raises(InvalidInput, match="a miner chooses pairs of one batch"):
        Metrix(losses.MultiSimilarity(), "embed").with_memory(8, 8)(X.float(), LABELS, indices)
    with pytest.raises(InvalidInput, match="expected both or none"):
        losses.MultiSimilarity()(X, LABELS, ref_emb=X)
    with pytest.raises(InvalidInput, match="with_memory"):
        Metrix(peer.CrossBatchMemory(peer.MultiSimilarityLoss(), 8))
