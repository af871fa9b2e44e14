"""Laws that hold for any batch."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix import Metrix, MetrixWarning
from tests.losses_table import TABLE, WITH_KINDS

DIM, CLASSES = 5, 6


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
    return TABLE[name].build(CLASSES, DIM)


def mixed(loss, x, labels, lam, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        return Metrix(loss, mixup="embed").mixed(x, labels, lam, kind)


@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
@settings(max_examples=15, deadline=None)
@given(batch())
def test_the_order_of_the_batch_does_not_matter(name, kind, sample):
    x, labels, lam = sample
    loss = build(name)
    if TABLE[name].roles == "proxy anchors" and kind == "anc-neg":  # λ has a row for each proxy
        lam = 0.3
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    reordered = lam if isinstance(lam, float) else lam[order][:, order]
    first = mixed(loss, x, labels, lam, kind)
    again = mixed(loss, x[order], labels[order], reordered, kind)
    near = TABLE[name].tolerance
    assert again.item() == pytest.approx(first.item(), rel=near, abs=near)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        assert loss(x[order], labels[order]).item() == pytest.approx(loss(x, labels).item(), rel=near, abs=near)


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kind in WITH_KINDS if kind in ("pos-pos", "neg-neg")]
)
@settings(max_examples=15, deadline=None)
@given(batch())
def test_swapping_a_pair_and_its_factor_changes_nothing(name, kind, sample):
    x, labels, lam = sample
    loss = build(name)
    first = mixed(loss, x, labels, lam, kind)
    assert mixed(loss, x, labels, (1 - lam).T, kind).item() == pytest.approx(first.item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", [n for n, case in TABLE.items() if case.roles == "proxy candidates"])
@settings(max_examples=15, deadline=None)
@given(batch())
def test_swapping_a_pair_and_its_factor_changes_nothing_for_mixed_anchors(name, sample):
    x, labels, lam = sample
    loss = build(name)
    first = mixed(loss, x, labels, lam, "pos-neg")
    assert mixed(loss, x, labels, (1 - lam).T, "pos-neg").item() == pytest.approx(first.item(), rel=1e-9)


@pytest.mark.parametrize("name", ["contrastive", "binomial-deviance", "multi-similarity", "generic"])
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
    expected = (sum(anchors) / len(anchors)).item() if anchors else 0.0
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", TABLE)
@settings(max_examples=10, deadline=None)
@given(batch())
def test_scaling_embeddings_changes_nothing(name, sample):
    x, labels, lam = sample
    loss = build(name)
    lam = 0.3 if TABLE[name].roles == "proxy anchors" else lam
    first = mixed(loss, x, labels, lam, "pos-neg").item()
    assert mixed(loss, 7.0 * x, labels, lam, "pos-neg").item() == pytest.approx(first, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
@settings(max_examples=15, deadline=None)
@given(batch(), st.floats(0, 1))
def test_losses_and_gradients_are_finite(name, kind, sample, lam):
    x, labels, _ = sample
    loss = build(name)
    x = x.float().requires_grad_()
    value = mixed(loss.float(), x, labels, lam, kind)
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
