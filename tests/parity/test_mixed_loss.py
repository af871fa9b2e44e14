"""Every loss × mixup type × kind of pairs against the paper's equations, value and gradient."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from metrix import Metrix, MetrixWarning, PoolLinear, losses
from metrix.core.pairs import PAIR_KINDS
from tests.parity import batches, literal

TOLERANCE = 1e-9
DIM, CLASSES = 4, 5

PAIR_LOSSES = {
    "contrastive": (lambda: losses.Contrastive(0.3), literal.contrastive(0.3)),
    "lifted": (lambda: losses.LiftedStructure(1.0), literal.lifted_structure(1.0)),
    "binomial": (lambda: losses.BinomialDeviance(2.0, 20.0, 0.4), literal.binomial_deviance(2.0, 20.0, 0.4)),
    "multi-similarity": (lambda: losses.MultiSimilarity(), literal.multi_similarity(18.0, 75.0, 0.77)),
    "nca": (lambda: losses.NCA(), literal.nca()),
}
PROXY_LOSSES = {
    "proxy-anchor": (
        lambda: losses.ProxyAnchor(CLASSES, DIM),
        literal.multi_similarity(32.0, 32.0, 0.1),
        None,
    ),
    "proxy-nca": (lambda: losses.ProxyNCA(CLASSES, DIM), literal.nca(), False),
    "proxy-nca++": (lambda: losses.ProxyNCAPlusPlus(CLASSES, DIM), literal.nca(1 / 9), True),
    "proxy-nca++ table 1": (
        lambda: losses.ProxyNCAPlusPlus(CLASSES, DIM, include_positive=False),
        literal.nca(1 / 9),
        False,
    ),
}
LOSSES = (*PAIR_LOSSES, *PROXY_LOSSES)


class Network(nn.Module):
    """A small network with the head under test."""

    def __init__(self, head: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(2, 3, 2)
        if head == "mlp":
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(3 * 9, 6), nn.Tanh(), nn.Linear(6, DIM), UnitNorm())
        else:
            self.head = PoolLinear(3, DIM, pool=head)
            nn.init.normal_(self.head.linear.bias)
        self.double()

    def features(self, x):
        return torch.tanh(self.conv(x))


class UnitNorm(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=1)


def build(name: str):
    torch.manual_seed(2)
    if name in PAIR_LOSSES:
        make, five = PAIR_LOSSES[name]
        return make().double(), five, None
    make, five, include_positive = PROXY_LOSSES[name]
    return make().double(), five, include_positive


def reference(name, loss, five, include_positive, f, labels, f_lam, lam, kind, renormalise=True, k=None):
    """The literal mixed loss for the roles of this loss."""
    if name in PAIR_LOSSES:
        return literal.mixed_pairs(five, f, labels, f_lam, lam, kind, k)
    proxies = F.normalize(loss.proxies, dim=1)
    if name == "proxy-anchor":

        def mix_with_proxy(c, n, share):
            v = share * proxies[c] + (1 - share) * f[n]
            return F.normalize(v, dim=0) if renormalise else v

        return literal.mixed_proxy_anchor(five, f, labels, proxies, f_lam, mix_with_proxy, lam, kind, k)
    return literal.mixed_proxy_candidates(five, f, labels, proxies, f_lam, lam, include_positive, k)


def factors(name: str, kind: str, n: int, how: str) -> torch.Tensor:
    rows = CLASSES if name == "proxy-anchor" and kind == "anc-neg" else n
    if how == "number":
        return torch.full((rows, n), 0.37, dtype=torch.float64)
    return torch.rand(rows, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def defined(name: str, kind: str) -> bool:
    """ProxyNCA mixes only examples of different classes."""
    return not (name.startswith("proxy-nca") and kind in ("pos-pos", "neg-neg"))


def compare(value, expected, leaves) -> None:
    """Equal in value and in the gradient of every leaf; zero with a graph where nothing is defined."""
    if expected is None:
        assert value.item() == 0.0
        grads = torch.autograd.grad(value, leaves, allow_unused=True)
        assert all(g is None or not g.any() for g in grads)
        return
    assert value.item() == pytest.approx(expected.item(), rel=TOLERANCE, abs=TOLERANCE)
    if not expected.requires_grad:
        return
    got = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=True)
    wanted = torch.autograd.grad(expected, leaves, allow_unused=True)
    for g, w in zip(got, wanted, strict=True):
        g, w = (torch.zeros(()) if x is None else x for x in (g, w))
        assert (g - w).abs().max() <= TOLERANCE * max(1.0, float(w.abs().max()))


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


@pytest.mark.parametrize("batch", batches.NAMES)
@pytest.mark.parametrize("kind", PAIR_KINDS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("renormalise", [True, False])
def test_embed(name, kind, batch, renormalise):
    if not defined(name, kind):
        return
    loss, five, include_positive = build(name)
    labels = batches.labels_of(batch)
    x = batches.points(batch, DIM).requires_grad_()
    f = F.normalize(x, dim=1)
    lam = factors(name, kind, len(x), "tensor")

    def f_lam(i, j, share):
        v = share * f[i] + (1 - share) * f[j]
        return F.normalize(v, dim=0) if renormalise else v

    expected = reference(name, loss, five, include_positive, f, labels, f_lam, lam, kind, renormalise)
    objective = Metrix(loss, mixup="embed", renormalise=renormalise)
    compare(objective.mixed(x, labels, lam=lam, pairs=kind), expected, [x, *loss.parameters()])


@pytest.mark.parametrize("batch", ["balanced", "unbalanced", "singletons", "one_class", "two_unlike", "duplicates"])
@pytest.mark.parametrize("kind", PAIR_KINDS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("head", ["avg", "max", "avg+max", "mlp"])
def test_feature(name, kind, batch, head):
    if not defined(name, kind):
        return
    loss, five, include_positive = build(name)
    model = Network(head)
    labels = batches.labels_of(batch)
    x = batches.points(batch, 2, 4, 4).requires_grad_()
    z = model.features(x)
    f = model.head(z)
    lam = factors(name, kind, len(x), "number")

    def f_lam(i, j, share):
        return model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0]

    expected = reference(name, loss, five, include_positive, f, labels, f_lam, lam, kind)
    value = Metrix(loss, mixup="feature").mixed_features(model, z, labels, lam=0.37, pairs=kind)
    compare(value, expected, [x, *model.parameters(), *loss.parameters()])


@pytest.mark.parametrize("k", [1, 3, None])
@pytest.mark.parametrize("batch", ["balanced", "unbalanced", "two_unlike"])
@pytest.mark.parametrize("kind", PAIR_KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_input(name, kind, batch, k):
    if not defined(name, kind):
        return
    loss, five, include_positive = build(name)
    model = Network("avg+max")
    labels = batches.labels_of(batch)
    x = batches.points(batch, 2, 4, 4).requires_grad_()
    f = model.head(model.features(x))
    lam = factors(name, kind, len(x), "tensor")

    def f_lam(i, j, share):
        return model.head(model.features((share * x[i] + (1 - share) * x[j]).unsqueeze(0)))[0]

    expected = reference(name, loss, five, include_positive, f, labels, f_lam, lam, kind, k=k)
    objective = Metrix(loss, mixup="input", hard_negatives=len(x) if k is None else k)
    value = objective.mixed_inputs(model, x, labels, lam=lam, pairs=kind)
    compare(value, expected, [x, *model.parameters(), *loss.parameters()])


@pytest.mark.parametrize("mixup", ["feature", "embed"])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("kind", PAIR_KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_hardest_negatives(name, kind, k, mixup):
    if not defined(name, kind):
        return
    loss, five, include_positive = build(name)
    model = Network("max")
    labels = batches.labels_of("unbalanced")
    z = model.features(batches.points("unbalanced", 2, 4, 4)).detach().requires_grad_()
    f = model.head(z)
    lam = factors(name, kind, len(z), "tensor")

    def f_lam(i, j, share):
        if mixup == "embed":
            return F.normalize(share * f[i] + (1 - share) * f[j], dim=0)
        return model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0]

    expected = reference(name, loss, five, include_positive, f, labels, f_lam, lam, kind, k=k)
    objective = Metrix(loss, mixup=mixup, hard_negatives=k)
    if mixup == "embed":
        value = objective.mixed(f, labels, lam=lam, pairs=kind)
    else:
        value = objective.mixed_features(model, z, labels, lam=lam, pairs=kind)
    compare(value, expected, [z, *model.head.parameters(), *loss.parameters()])
