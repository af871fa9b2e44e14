"""λ integrated out: `lam_per="expected"` against numeric integration and against many draws."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate
from torch.nn import functional as F

from metrix import IMix, Metrix, losses
from metrix.core.factors import quadrature
from tests.losses_table import TABLE
from tests.parity import batches
from tests.parity.test_mixed_loss import CLASSES, DIM, Network

# gentle ones: forty values of λ are enough to compare with the integral
GENTLE = {
    "binomial deviance": lambda: losses.BinomialDeviance(2.0, 10.0),
    "nt-xent": lambda: losses.NTXent(0.5),
    "supcon": lambda: losses.SupCon(0.5),
    "proxy anchor": lambda: losses.ProxyAnchor(CLASSES, DIM, 4.0, 4.0),
    "cosface": lambda: losses.CosFace(CLASSES, DIM, scale=4.0),
}


def batch():
    return batches.points("unbalanced", DIM).requires_grad_(), batches.labels_of("unbalanced")


@pytest.mark.parametrize("alpha", [0.4, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("nodes", [1, 3, 8])
def test_moments_are_those_of_the_beta_distribution(alpha, nodes):
    for degree in range(2 * nodes):
        found = sum(weight * lam**degree for lam, weight in quadrature(alpha, nodes))
        moment = math.prod((alpha + k) / (2 * alpha + k) for k in range(degree))
        assert found == pytest.approx(moment, rel=1e-9)
    assert all(0 < lam < 1 and weight > 0 for lam, weight in quadrature(alpha, nodes))


@pytest.mark.parametrize("name", GENTLE)
@pytest.mark.parametrize("kind", ["pos-neg", "anc-neg"])
def test_value_and_gradient_are_the_integral(name, kind):
    torch.manual_seed(0)
    loss = GENTLE[name]().double()
    x, labels = batch()
    objective = Metrix(loss, mixup="embed", pairs=kind, lam_nodes=40)

    def value_and_gradient(lam):
        value = objective.mixed(x, labels, lam)
        return torch.cat([value.detach().reshape(1), torch.autograd.grad(value, x)[0].flatten()])

    expected, _ = integrate.quad_vec(
        lambda lam: 6.0 * lam * (1.0 - lam) * value_and_gradient(lam).numpy(), 0.0, 1.0, epsabs=1e-6, epsrel=1e-6
    )  # the density of Beta(2, 2)
    found = value_and_gradient("expected")
    assert (found - torch.from_numpy(expected)).abs().max() <= 1e-4 * max(1.0, abs(expected).max())


def deviations(draws, value):
    """How many standard errors a value is from the mean of draws."""
    draws = torch.tensor(draws, dtype=torch.float64)
    return abs(float(draws.mean() - value)) / (float(draws.std()) / math.sqrt(len(draws)))


@pytest.mark.parametrize(
    ("name", "lam_per"),
    [
        ("multi-similarity", "batch"),
        ("proxy-anchor", "batch"),
        ("supcon", "batch"),
        # a sum over pairs, or a mixed example for an anchor: it does not matter whether pairs share their λ
        ("contrastive", "pair"),
        ("proxy-nca++", "pair"),
        ("subcenter-arcface", "pair"),
    ],
)
def test_many_draws_have_this_mean(name, lam_per):
    loss = TABLE[name].build(CLASSES, DIM)
    x, labels = batch()
    drawing = Metrix(loss, mixup="embed", pairs="pos-neg", lam_per=lam_per, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        draws = [drawing.mixed(x, labels).item() for _ in range(600)]
        exact = Metrix(loss, mixup="embed", lam_per="expected", lam_nodes=64).mixed(x, labels, pairs="pos-neg")
        few = Metrix(loss, mixup="embed", lam_per="expected").mixed(x, labels, pairs="pos-neg")
    assert deviations(draws, exact.item()) < 4
    assert few.item() == pytest.approx(exact.item(), rel=0.03)  # eight values of λ


@pytest.mark.parametrize("mixup", ["feature", "input"])
@pytest.mark.parametrize("head", ["avg", "avg+max"])
def test_features_and_inputs_are_mixed_at_every_node(mixup, head):
    model, labels = Network(head), batches.labels_of("balanced")
    x = batches.points("balanced", 2, 4, 4)
    objective = Metrix(
        losses.MultiSimilarity(), mixup=mixup, pairs="pos-neg", strength=0.5, lam_per="expected", lam_nodes=3
    )
    out = objective.step(model, x, labels)
    one = objective.mixed_features if mixup == "feature" else objective.mixed_inputs
    source = model.features(x) if mixup == "feature" else x
    expected = sum(weight * one(model, source, labels, lam) for lam, weight in quadrature(2.0, 3))
    assert out.mixed.item() == pytest.approx(expected.item(), rel=1e-12)
    found = torch.autograd.grad(out.loss - out.clean, list(model.parameters()), allow_unused=True)
    wanted = torch.autograd.grad(0.5 * expected, list(model.parameters()), allow_unused=True)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(found, wanted, strict=True))


def test_nothing_is_drawn():
    x, labels = batch()
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    objective = Metrix(losses.NTXent(), mixup="embed", pairs="pos-neg", lam_per="expected", generator=generator)
    assert objective(x, labels).item() == objective(x, labels).item()
    assert torch.equal(generator.get_state(), before)
    assert "8 values of λ" in objective.explain()


def test_a_shared_factor_leaves_nca_without_a_gradient():
    """-log Σ λ e^s + log Σ (1-λ) e^s over the same mixed examples: the sums cancel."""
    x, labels = batch()
    value = Metrix(losses.NCA(), mixup="embed").mixed(x, labels, lam=0.3, pairs="pos-neg")
    assert value.item() == pytest.approx(math.log(0.7 / 0.3), rel=1e-9)
    assert torch.autograd.grad(value, x)[0].abs().max() < 1e-12
    with pytest.raises(ValueError, match=r"lam_per: expected 'pair' with NCA.*no gradient"):
        Metrix(losses.NCA(), mixup="embed", lam_per="expected")
    Metrix(losses.ProxyNCA(CLASSES, DIM), mixup="embed", lam_per="expected")  # sums over different classes


def test_what_is_refused():
    x, labels = batch()
    with pytest.raises(ValueError, match=r"lam: expected a number, a tensor, 'expected' or None, got 'mean'"):
        Metrix(losses.SupCon(), mixup="embed").mixed(F.normalize(x, dim=1), labels, "mean")
    with pytest.raises(ValueError, match=r"'pair' or 'batch' with IMix, got 'expected'; only Metrix integrates"):
        IMix(losses.Contrastive(), lam_per="expected")
    with pytest.raises(ValueError, match="unknown lam_per 'expect'; did you mean 'expected'"):
        Metrix(losses.SupCon(), lam_per="expect")
    with pytest.raises(ValueError, match="lam_nodes"):
        Metrix(losses.SupCon(), lam_nodes=0)
