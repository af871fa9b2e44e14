"""Pairs of a miner and other candidates, against pytorch-metric-learning; weights of examples."""

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


@pytest.mark.parametrize("make", [losses.MultiSimilarity, losses.NCA, lambda: losses.ProxyNCA(6, 8).double()])
def test_weights_of_examples_weigh_their_losses(make):
    loss, weights = make(), torch.rand(24, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = differentiate(loss, weights=weights)
    x = X.clone().requires_grad_()
    unit = torch.nn.functional.normalize(x)
    if hasattr(loss, "proxies"):
        S = unit @ torch.nn.functional.normalize(loss.proxies).T
        Y, valid = LABELS[:, None] == torch.arange(6), torch.ones(24, 6, dtype=torch.bool)
    else:
        S, valid = unit @ unit.T, ~torch.eye(24, dtype=torch.bool)
        Y = LABELS[:, None] == LABELS[None, :]
    each = loss.rows(S, Y, valid)
    expected = (weights * each).sum() / weights.sum()
    expected.backward()
    torch.testing.assert_close(found[0], expected.detach())
    torch.testing.assert_close(found[1], x.grad)
    equal = differentiate(loss, weights=torch.full((24,), 7.0))
    for one, other in zip(equal, differentiate(loss), strict=True):
        torch.testing.assert_close(one, other)
    assert float(loss(X, LABELS, weights=torch.zeros(24)).detach()) == 0.0


@pytest.mark.parametrize("weights", [torch.ones(23), -torch.ones(24), torch.full((24,), torch.nan), "heavy"], ids=str)
def test_other_weights_are_refused(weights):
    with pytest.raises(InvalidInput, match="weights: expected"):
        losses.MultiSimilarity()(X, LABELS, weights=weights)


def test_what_is_no_mean_over_examples_takes_no_weights():
    for loss in (losses.ProxyAnchor(6, 8), losses.Contrastive(reduction="mean_nonzero")):
        with pytest.raises(InvalidInput, match="is no mean over examples as anchors"):
            loss(X.float(), LABELS, weights=torch.ones(24))


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
