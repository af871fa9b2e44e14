"""Every rival mixing method against its published formula, value and gradient."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

import tests.losses_table
from metrix import IMix, MetrixWarning, MoCHi, ProxySynthesis, SiMix, losses
from metrix.core.closed_form import Interpolated
from metrix.core.mixup import MIXUP_TYPES, MixtureOptions
from tests.losses_table import LITERAL, TABLE
from tests.parity import batches, literal, literal_baselines, literal_rivals
from tests.parity.test_mixed_loss import CLASSES, DIM, Network, compare

# rivals put mixed examples in the sums of a pair loss, whose literal form has the positive on one side only
PAIR_LOSSES = [n for n in LITERAL if TABLE[n].roles == "pairs" and not TABLE[n].include_positive]
PROXY_LOSSES = [n for n in tests.losses_table.PROXY_LOSSES if n in LITERAL]
MIXED_BATCHES = [name for name in batches.NAMES if name not in ("one_class", "two_alike")]


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


def build(name):
    """A loss and its literal five functions."""
    loss = TABLE[name].build(CLASSES, DIM)
    return loss, TABLE[name].five(loss)


def embeddings_of(batch):
    x = batches.points(batch, DIM).requires_grad_()
    return x, F.normalize(x, dim=1), batches.labels_of(batch)


def factors(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def partners_of(labels, shift=0):
    """For each example one of another class; `shift` chooses which."""
    found = []
    for a in range(len(labels)):
        N = literal.negatives(labels.tolist(), a)
        found.append(N[(a + shift) % len(N)])
    return torch.tensor(found)


@pytest.mark.parametrize("batch", batches.NAMES)
@pytest.mark.parametrize("kinds", [("neg-neg",), ("anc-neg",), ("neg-neg", "anc-neg")])
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_mochi(name, kinds, batch):
    loss, five = build(name)
    x, f, labels = embeddings_of(batch)
    lam = factors(len(f), len(f))
    expected = literal_rivals.mochi(five, f, labels, lam, kinds, None)
    value, clean, _ = MoCHi(loss, kinds).parts(f, labels, lam)
    compare(value, expected, [x])
    assert clean.item() == pytest.approx(loss(f, labels).item(), rel=1e-12)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_mochi_takes_the_hardest_of_each_anchor(name, k):
    loss, five = build(name)
    x, f, labels = embeddings_of("unbalanced")
    lam = factors(len(f), len(f))
    expected = literal_rivals.mochi(five, f, labels, lam, ("neg-neg", "anc-neg"), k)
    compare(MoCHi(loss, hard_negatives=k).parts(f, labels, lam).loss, expected, [x])


@pytest.mark.parametrize("blocks", [1, 40])
def test_mochi_in_blocks_is_the_same(blocks, monkeypatch):
    monkeypatch.setattr("metrix.core.compute.blocks.BLOCK", blocks)
    test_mochi("multi-similarity", ("neg-neg", "anc-neg"), "unbalanced")
    test_mochi("contrastive", ("anc-neg",), "one_class")


@pytest.mark.parametrize("batch", MIXED_BATCHES)
@pytest.mark.parametrize("targets", ["instances", "classes"])
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_imix_in_the_loss_of_the_comparison(name, targets, batch):
    loss, five = build(name)
    x, f, labels = embeddings_of(batch)
    lam, partner = factors(len(f)), partners_of(labels)
    expected = literal_rivals.imix(
        five, f, labels, lambda i, j, s: literal_rivals.mixed(f[i], f[j], s), lam, partner, targets
    )
    objective = IMix(loss, mixup="embed", targets=targets)
    value = objective.mixed(Interpolated(f), loss.sets(f, labels), lam, partner).value
    compare(value, expected, [x])


@pytest.mark.parametrize("mixup", ["input", "feature", "embed"])
@pytest.mark.parametrize("batch", ["balanced", "all_singletons", "unbalanced"])
def test_imix_as_published(batch, mixup):
    model, labels = Network("avg+max"), batches.labels_of(batch)
    x = batches.points(batch, 2, 4, 4).requires_grad_()
    z = model.features(x)
    f = model.head(z)
    lam, partner = factors(len(f)), partners_of(labels)

    def f_lam(i, j, share):
        if mixup == "embed":
            return literal_rivals.mixed(f[i], f[j], share)
        if mixup == "feature":
            return model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0]
        return model.head(model.features((share * x[i] + (1 - share) * x[j]).unsqueeze(0)))[0]

    expected = literal_rivals.imix_cross_entropy(f, labels, f_lam, lam, partner, 0.2)
    objective = IMix(losses.Contrastive(), mixup=mixup, temperature=0.2)
    chosen = MIXUP_TYPES[mixup]
    source = {"inputs": x, "features": z, "embeddings": f}[chosen.mixes]
    of = chosen.mixture(model, source, MixtureOptions())
    value = objective.mixed(of, objective.loss.sets(f, labels), lam, partner).value
    compare(value, expected, [x, *model.parameters()])


@pytest.mark.parametrize("batch", MIXED_BATCHES)
@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_proxy_synthesis(name, batch):
    loss, _ = build(name)
    x, f, labels = embeddings_of(batch)
    lam, partner = factors(len(f)), partners_of(labels, shift=1)
    proxies = F.normalize(loss.proxies, dim=1)
    more = literal_rivals.with_synthetic_classes(f, labels, proxies, lam, partner)
    expected = TABLE[name].literal_of_proxies(loss, *more)
    value, clean, _ = ProxySynthesis(loss).parts(f, labels, lam, partner)
    compare(value, expected, [x, loss.proxies])
    assert clean.item() == pytest.approx(loss(f, labels).item(), rel=1e-12)


def test_proxy_synthesis_of_the_original_proxy_anchor():
    """mean over present proxies of the positive part + mean over all of the negative part, synthetic ones included."""
    torch.manual_seed(2)
    loss = losses.ProxyAnchor.original(CLASSES, DIM).double()
    x, f, labels = embeddings_of("unbalanced")
    lam, partner = factors(len(f)), partners_of(labels)
    X, y, P = literal_rivals.with_synthetic_classes(f, labels, F.normalize(loss.proxies, dim=1), lam, partner)
    pos, neg = [], []
    for c in range(len(P)):
        own, others = X[y == c], X[y != c]
        if len(own):
            pos.append(torch.log(1 + sum(torch.exp(-32 * (P[c] @ e - 0.1)) for e in own)))
        neg.append(torch.log(1 + sum(torch.exp(32 * (P[c] @ e + 0.1)) for e in others)))
    expected = sum(pos) / len(pos) + sum(neg) / len(neg)
    compare(ProxySynthesis(loss).parts(f, labels, lam, partner).loss, expected, [x, loss.proxies])


@pytest.mark.parametrize("ratio", [0.3, 0.5])
def test_proxy_synthesis_of_some(ratio):
    loss, five = build("proxy-anchor")
    x, f, labels = embeddings_of("unbalanced")
    lam, partner = factors(len(f)), partners_of(labels)
    X, y, P = literal_rivals.with_synthetic_classes(f, labels, F.normalize(loss.proxies, dim=1), lam, partner)
    n, m = len(f), int(ratio * len(f))
    expected = literal.clean_proxy_anchor(five, X[: n + m], y[: n + m], P[: CLASSES + m])
    compare(ProxySynthesis(loss, ratio=ratio).parts(f, labels, lam[:m], partner).loss, expected, [x, loss.proxies])


def number_of_pairs(labels):
    return sum(int(labels[i] == labels[j]) for i in range(len(labels)) for j in range(i + 1, len(labels)))


@pytest.mark.parametrize("batch", batches.NAMES)
def test_simix_as_published(batch):
    x, f, labels = embeddings_of(batch)
    lam = factors(number_of_pairs(labels))
    virtual = literal_rivals.with_virtual_examples(f, labels, lam)
    expected = literal_baselines.recall_at_k(*virtual, (1, 2), 0.1, 1.0)
    loss = losses.RecallAtK((1, 2), temperature=0.1)
    value, clean, _ = SiMix(loss).parts(f, labels, lam)
    compare(value, expected, [x])
    assert clean.item() == pytest.approx(loss(f, labels).item(), rel=1e-12)


@pytest.mark.parametrize("batch", ["balanced", "unbalanced", "singletons"])
@pytest.mark.parametrize("name", [n for n in LITERAL if TABLE[n].roles == "pairs"])
def test_simix_of_a_loss_of_pairs(name, batch):
    loss, five = build(name)
    x, f, labels = embeddings_of(batch)
    lam = factors(number_of_pairs(labels))
    examples, classes = literal_rivals.with_virtual_examples(f, labels, lam)
    expected = literal.clean_pairs(five, examples, classes, TABLE[name].include_positive)
    compare(SiMix(loss).parts(f, labels, lam).loss, expected, [x])


def test_similarities_of_virtual_examples_are_mixed_similarities():
    """The products of vectors that are mixed are mixed products, of two mixtures, too."""
    f = F.normalize(batches.points("balanced", DIM), dim=1)
    S = f @ f.T
    v, w = 0.3 * f[0] + 0.7 * f[3], 0.6 * f[1] + 0.4 * f[4]
    assert torch.allclose(f @ v, 0.3 * S[:, 0] + 0.7 * S[:, 3])
    assert torch.allclose(v @ w, 0.3 * (0.6 * S[0, 1] + 0.4 * S[0, 4]) + 0.7 * (0.6 * S[3, 1] + 0.4 * S[3, 4]))
