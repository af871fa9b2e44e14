"""Triplet, margin, EPSHN, SoftTriple and Recall@k against their papers' formulas and pytorch-metric-learning."""

from __future__ import annotations

import warnings

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers, regularizers
from pytorch_metric_learning import losses as peer
from torch.nn import functional as F

from metrix import MetrixWarning, losses
from metrix.core.baselines.base import distances as distances_of
from metrix.core.baselines.base import pairs_of
from metrix.errors import InvalidInput
from tests.parity import batches, literal_baselines

DIM, CLASSES = 4, 5
BATCHES = (*batches.NAMES, "many")


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


def sample(name):
    """Embeddings (not of unit norm) and labels."""
    if name == "many":
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(24, DIM, generator=generator, dtype=torch.float64)
        return (2.0 * x).requires_grad_(), torch.randint(CLASSES, (24,), generator=generator)
    return (3.0 * batches.points(name, DIM)).requires_grad_(), batches.labels_of(name)


def compare(ours, expected, x, *parameters, groups=None):
    """Value and gradients; gradients of examples in one group are summed, as a tie may be broken either way."""
    expected = x.sum() * 0.0 if expected is None else expected
    assert ours.item() == pytest.approx(expected.item(), rel=1e-10, abs=1e-10)
    found, wanted = (
        torch.autograd.grad(v, [x, *parameters], retain_graph=True, allow_unused=True) for v in (ours, expected)
    )
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        a, b = (torch.zeros_like([x, *parameters][i]) if g is None else g for g in (a, b))
        if i == 0 and groups is not None:
            a, b = (torch.zeros(max(groups) + 1, a.shape[1], dtype=a.dtype).index_add(0, groups, g) for g in (a, b))
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def equal_rows(x):
    """The same number for equal rows."""
    return torch.unique(x.detach(), dim=0, return_inverse=True)[1]


@pytest.mark.parametrize("mining", ["semi-hard", "all"])
@pytest.mark.parametrize("name", BATCHES)
def test_triplet(name, mining):
    x, labels = sample(name)
    expected = literal_baselines.triplet(F.normalize(x, dim=1), labels, 0.3, mining == "semi-hard")
    compare(losses.Triplet(0.3, mining)(x, labels), expected, x)


@pytest.mark.parametrize("num_classes", [None, CLASSES])
@pytest.mark.parametrize("name", BATCHES)
def test_margin(name, num_classes, monkeypatch):
    x, labels = sample(name)
    loss = losses.Margin(beta=1.1, num_classes=num_classes, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        loss.beta += torch.linspace(-0.1, 0.1, len(loss.beta), dtype=torch.float64)
    seen = []
    draws = loss.draws
    monkeypatch.setattr(loss, "draws", lambda *args: seen.append(draws(*args)) or seen[-1])
    ours = loss(x, labels)
    drawn = [torch.arange(len(x)).repeat_interleave(row).tolist() for row in seen[0]]
    beta = loss.beta[labels] if num_classes else loss.beta.expand(len(x))
    compare(ours, literal_baselines.margin(F.normalize(x, dim=1), labels, 0.2, beta, drawn), x, loss.beta)


@pytest.mark.parametrize("name", BATCHES)
def test_what_margin_draws(name):
    """As many negatives as there are positives, from the negatives that may be drawn."""
    x, labels = sample(name)
    f, pairs = F.normalize(x.detach(), dim=1), pairs_of(labels, x)
    most = int(pairs.positive.sum(1).max())
    times = losses.Margin(generator=torch.Generator().manual_seed(0)).draws(distances_of(f), pairs, DIM, most)
    for a in range(len(f)):
        p = torch.tensor(literal_baselines.weights(f, labels, a, 0.5, 1.4))
        assert int(times[a].sum()) == (int(pairs.positive[a].sum()) if p.sum() > 0 else 0)
        assert not times[a][p == 0].any()


@pytest.mark.parametrize("name", BATCHES)
def test_epshn(name):
    x, labels = sample(name)
    expected = literal_baselines.epshn(F.normalize(x, dim=1), labels, 0.1)
    compare(losses.EPSHN()(x, labels), expected, x, groups=equal_rows(x))


@pytest.mark.parametrize("centers", [1, 3])
@pytest.mark.parametrize("name", BATCHES)
def test_soft_triple(name, centers):
    torch.manual_seed(0)
    x, labels = sample(name)
    loss = losses.SoftTriple(CLASSES, DIM, centers, tau=0.3, margin=0.05).double()
    w = F.normalize(loss.centers, dim=2)
    expected = literal_baselines.soft_triple(F.normalize(x, dim=1), labels, w, 20.0, 0.1, 0.3, 0.05)
    compare(loss(x, labels), expected, x, loss.centers)


@pytest.mark.parametrize("name", ["balanced", "unbalanced", "singletons", "opposed", "many"])
def test_triplet_of_pml(name):
    x, labels = sample(name)
    original, miner = peer.TripletMarginLoss(margin=0.2), miners.TripletMarginMiner(0.2, "semihard")
    compare(losses.Triplet(0.2)(x, labels), original(x, labels, miner(x, labels)), x)
    compare(losses.Triplet(0.2, mining="all")(x, labels), original(x, labels), x)


@pytest.mark.parametrize("num_classes", [None, CLASSES])
@pytest.mark.parametrize("name", ["balanced", "unbalanced", "duplicates", "many"])
def test_margin_of_pml(name, num_classes, monkeypatch):
    """With the same triplets, those that were drawn: each positive of an anchor with one of its negatives."""
    x, labels = sample(name)
    loss = losses.Margin(num_classes=num_classes, farthest=2.0).double()
    original = peer.MarginLoss(0.2, beta=1.2, learn_beta=True, num_classes=num_classes).double()
    pairs = pairs_of(labels, x)
    most = int(pairs.positive.sum(1).max())
    times = loss.draws(distances_of(F.normalize(x.detach(), dim=1)), pairs, DIM, most)
    monkeypatch.setattr(loss, "draws", lambda *args: times)
    a, p = pairs.positive.nonzero(as_tuple=True)
    n = torch.arange(len(x)).repeat(len(x), 1).flatten().repeat_interleave(times.flatten())
    assert len(n) == len(a) > 0
    ours, expected = loss(x, labels), original(x, labels, (a, p, n))
    compare(ours, expected, x)
    beta, beta_of_pml = torch.autograd.grad(ours, loss.beta)[0], torch.autograd.grad(expected, original.beta)[0]
    torch.testing.assert_close(beta, beta_of_pml)


@pytest.mark.parametrize("tau", [0.0, 0.2])
@pytest.mark.parametrize("name", BATCHES)
def test_soft_triple_of_pml(name, tau):
    torch.manual_seed(0)
    x, labels = sample(name)
    ours = losses.SoftTriple(CLASSES, DIM, 3, tau=tau).double()
    regularizer = regularizers.SparseCentersRegularizer(CLASSES, 3, reducer=reducers.DivisorReducer())
    original = peer.SoftTripleLoss(
        CLASSES, DIM, centers_per_class=3, weight_regularizer=regularizer if tau else None, weight_reg_weight=tau
    ).double()
    with torch.no_grad():
        original.fc.copy_(ours.centers.reshape(-1, DIM).T)
    value, expected = ours(x, labels), original(x, labels)
    # PML has 1e-7 under the root of the regulariser where the authors have 1e-5
    assert value.item() == pytest.approx(expected.item(), rel=1e-9 if tau == 0 else 1e-5)
    tolerance = {"rtol": 1e-7, "atol": 1e-9} if tau == 0 else {"rtol": 1e-4, "atol": 1e-5}
    for of, of_pml in ((x, x), (ours.centers, original.fc)):
        found, wanted = (
            torch.autograd.grad(value, of, retain_graph=True),
            torch.autograd.grad(expected, of_pml, retain_graph=True),
        )
        wanted = wanted[0] if of is x else wanted[0].T.reshape(CLASSES, 3, DIM)
        torch.testing.assert_close(found[0], wanted, **tolerance)


@pytest.mark.parametrize("name", ["balanced", "unbalanced", "many"])
def test_epshn_of_pml(name):
    """PML has the miner, and with one negative for each anchor its NT-Xent is the formula."""
    x, labels = sample(name)
    mined = miners.BatchEasyHardMiner("easy", "semihard", distance=distances.CosineSimilarity())(x, labels)
    assert len(mined[0]) > 1  # NT-Xent of one pair is zero there
    compare(losses.EPSHN(0.1)(x, labels), peer.NTXentLoss(temperature=0.1)(x, labels, mined), x)


@pytest.mark.parametrize("ks", [(1,), (1, 2, 4), (8,)])
@pytest.mark.parametrize("block", [1, 2**22])
@pytest.mark.parametrize("name", BATCHES)
def test_recall_at_k(name, ks, block, monkeypatch):
    monkeypatch.setattr("metrix.core.compute.blocks.BLOCK", block)  # one query at a time, or all
    x, labels = sample(name)
    expected = literal_baselines.recall_at_k(F.normalize(x, dim=1), labels, ks, 0.1, 0.5)
    compare(losses.RecallAtK(ks, temperature=0.1, rank_temperature=0.5)(x, labels), expected, x)


@pytest.mark.parametrize("name", BATCHES)
def test_recall_at_k_with_the_authors_rank_temperatures(name):
    x, labels = sample(name)
    ks, ones = (1, 2, 1000), (1.0, 1.0, 1.0)  # 1,000 is clipped to the batch
    expected = literal_baselines.recall_at_k(F.normalize(x, dim=1), labels, ks, 0.1, ones)
    compare(losses.RecallAtK(ks, temperature=0.1, rank_temperature=ones)(x, labels), expected, x)
    with pytest.raises(InvalidInput, match="one for each of the 3 ks"):
        losses.RecallAtK(ks, rank_temperature=(1.0, 1.0))


def test_proxy_nca_plus_plus_is_the_published_loss():
    """Teh et al.: -log softmax over all proxies of -‖3x - 3p‖² on unit vectors."""
    torch.manual_seed(0)
    loss = losses.ProxyNCAPlusPlus(5, 8).double()
    x, labels = torch.randn(6, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    distances = torch.cdist(3 * F.normalize(x, dim=1), 3 * F.normalize(loss.proxies, dim=1)) ** 2
    expected = F.cross_entropy(-distances, labels)
    torch.testing.assert_close(loss(x, labels), expected)


def test_recall_at_k_of_sharp_steps_is_recall_at_k():
    """With vanishing temperatures and one positive for each query: 1 - Recall@k as it is measured."""
    from metrix import evaluate

    torch.manual_seed(0)
    x, labels = torch.randn(24, DIM, dtype=torch.float64), torch.arange(12).repeat(2)
    measured = evaluate.recall_at_k(x, labels, ks=(1, 2, 4))
    for k in (1, 2, 4):
        # half a rank more, because the step is at k itself
        sharp = losses.RecallAtK((k,), temperature=1e-6, rank_temperature=1e-6)
        f = F.normalize(x, dim=1)
        S = f @ f.T
        mate = S[torch.arange(24), (torch.arange(24) + 12) % 24]
        ranks = 1 + (S.fill_diagonal_(-2.0) > mate.unsqueeze(1)).sum(1)
        at_the_step = (ranks == k).double().mean().item() / 2
        assert 1 - sharp(x, labels).item() + at_the_step == pytest.approx(measured[k], abs=1e-9)
