"""Laws that hold for any batch."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix import Metrix, MetrixWarning, losses
from metrix.core.pairs import PAIR_KINDS

DIM, CLASSES = 5, 6
LOSSES = {
    "contrastive": lambda: losses.Contrastive(0.2),
    "contrastive, mean_nonzero": lambda: losses.Contrastive(0.2, reduction="mean_nonzero"),
    "lifted": losses.LiftedStructure,
    "binomial": losses.BinomialDeviance,
    "multi-similarity": losses.MultiSimilarity,
    "nca": losses.NCA,
    "proxy-anchor": lambda: losses.ProxyAnchor(CLASSES, DIM),
    "proxy-nca": lambda: losses.ProxyNCA(CLASSES, DIM),
    "proxy-nca++": lambda: losses.ProxyNCAPlusPlus(CLASSES, DIM),
}


@st.composite
def batch(draw):
    """Embeddings, labels and λ: any class sizes, duplicates and opposite vectors included."""
    n = draw(st.integers(2, 9))
    seed = draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
    labels = torch.tensor(draw(st.lists(st.integers(0, CLASSES - 1), min_size=n, max_size=n)))
    for i in range(1, n):
        twin = draw(st.sampled_from(["no", "no", "no", "same", "opposite"]))
        if twin != "no":
            x[i] = x[0] if twin == "same" else -x[0]
    lam = 0.02 + 0.46 * torch.rand(n, n, generator=generator, dtype=torch.float64)  # a mixture never vanishes
    return x, labels, lam


def build(name):
    torch.manual_seed(0)
    return LOSSES[name]().double()


def mixed(loss, x, labels, lam, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        return Metrix(loss, mixup="embed").mixed(x, labels, lam, kind)


def applies(name, kind):
    return not (name.startswith("proxy-nca") and kind in ("pos-pos", "neg-neg"))


@pytest.mark.parametrize("kind", PAIR_KINDS)
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=15, deadline=None)
@given(batch())
def test_the_order_of_the_batch_does_not_matter(name, kind, sample):
    if not applies(name, kind):
        return
    x, labels, lam = sample
    loss = build(name)
    if name == "proxy-anchor" and kind == "anc-neg":
        lam = 0.3
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    reordered = lam if isinstance(lam, float) else lam[order][:, order]
    first = mixed(loss, x, labels, lam, kind)
    again = mixed(loss, x[order], labels[order], reordered, kind)
    assert again.item() == pytest.approx(first.item(), rel=1e-9, abs=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        assert loss(x[order], labels[order]).item() == pytest.approx(loss(x, labels).item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", ["pos-pos", "neg-neg"])
@pytest.mark.parametrize("name", [n for n in LOSSES if not n.startswith("proxy-nca")])
@settings(max_examples=15, deadline=None)
@given(batch())
def test_swapping_a_pair_and_its_factor_changes_nothing(name, kind, sample):
    x, labels, lam = sample
    loss = build(name)
    first = mixed(loss, x, labels, lam, kind)
    assert mixed(loss, x, labels, (1 - lam).T, kind).item() == pytest.approx(first.item(), rel=1e-9, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(batch())
def test_swapping_a_pair_and_its_factor_changes_nothing_for_mixed_anchors(sample):
    x, labels, lam = sample
    loss = build("proxy-nca++")
    first = mixed(loss, x, labels, lam, "pos-neg")
    assert mixed(loss, x, labels, (1 - lam).T, "pos-neg").item() == pytest.approx(first.item(), rel=1e-9)


@pytest.mark.parametrize("name", ["contrastive", "binomial", "multi-similarity"])
@settings(max_examples=20, deadline=None)
@given(batch())
def test_a_factor_of_one_leaves_the_positive_term_only(name, sample):
    """Then v is the positive itself, weighed by the number of negatives it was paired with."""
    x, labels, _ = sample
    loss = build(name)
    f = torch.nn.functional.normalize(x, dim=1)
    value = mixed(loss, x, labels, 1.0, "pos-neg").item()
    row, anchors = loss.row, []
    for a in range(len(x)):
        P = [p for p in range(len(x)) if labels[p] == labels[a] and p != a]
        negatives = int((labels != labels[a]).sum())
        if P and negatives:
            total = sum(negatives * row.rho_pos(f[a] @ f[p]) for p in P)
            anchors.append(row.sigma_pos(total) + row.sigma_neg(torch.zeros((), dtype=torch.float64)))
    expected = float(sum(anchors) / len(anchors)) if anchors else 0.0
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(batch())
def test_scaling_embeddings_changes_nothing(sample):
    x, labels, lam = sample
    loss = build("multi-similarity")
    first = mixed(loss, x, labels, lam, "pos-neg").item()
    assert mixed(loss, 7.0 * x, labels, lam, "pos-neg").item() == pytest.approx(first, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", PAIR_KINDS)
@settings(max_examples=15, deadline=None)
@given(batch(), st.floats(0, 1))
def test_losses_and_gradients_are_finite(name, kind, sample, lam):
    if not applies(name, kind):
        return
    x, labels, _ = sample
    loss = build(name)
    x = x.float().requires_grad_()
    value = mixed(loss.float(), x, labels, lam, kind)
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
