"""Every loss × mixup type × kind of pairs against the paper's equations, value and gradient."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from metrix import Metrix, MetrixWarning, PoolLinear
from tests.losses_table import LITERAL_WITH_KINDS, TABLE
from tests.parity import batches

TOLERANCE = 1e-9
DIM, CLASSES = 4, 5


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


def factors(name: str, kind: str, n: int) -> torch.Tensor:
    rows = TABLE[name].factor_rows(kind, n, CLASSES)
    return torch.rand(rows, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def compare(value, expected, leaves) -> None:
    """Equal in value and in the gradient of every leaf; zero with a graph where nothing is defined."""
    expected = torch.zeros((), dtype=torch.float64) if expected is None else expected
    assert value.item() == pytest.approx(expected.item(), rel=TOLERANCE, abs=TOLERANCE)
    got = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=True)
    wanted = [None] * len(leaves)
    if expected.requires_grad:
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
@pytest.mark.parametrize(("name", "kind"), LITERAL_WITH_KINDS)
@pytest.mark.parametrize("renormalise", [True, False])
def test_embed(name, kind, batch, renormalise):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    labels = batches.labels_of(batch)
    x = batches.points(batch, DIM).requires_grad_()
    f = F.normalize(x, dim=1)
    lam = factors(name, kind, len(x))

    def f_lam(i, j, share):
        v = share * f[i] + (1 - share) * f[j]
        return F.normalize(v, dim=0) if renormalise else v

    expected = case.literal_mixed(loss, f, labels, f_lam, lam, kind, renormalise=renormalise)
    objective = Metrix(loss, mixup="embed", renormalise=renormalise)
    compare(objective.mixed(x, labels, lam=lam, pairs=kind), expected, [x, *loss.parameters()])


@pytest.mark.parametrize("batch", ["balanced", "unbalanced", "singletons", "one_class", "two_unlike", "duplicates"])
@pytest.mark.parametrize(("name", "kind"), LITERAL_WITH_KINDS)
@pytest.mark.parametrize("head", ["avg", "max", "avg+max", "mlp"])
def test_feature(name, kind, batch, head):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    model = Network(head)
    labels = batches.labels_of(batch)
    x = batches.points(batch, 2, 4, 4).requires_grad_()
    z = model.features(x)
    f = model.head(z)
    lam = torch.full((CLASSES + len(x), len(x)), 0.37, dtype=torch.float64)

    def f_lam(i, j, share):
        return model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0]

    expected = case.literal_mixed(loss, f, labels, f_lam, lam, kind)
    value = Metrix(loss, mixup="feature").mixed_features(model, z, labels, lam=0.37, pairs=kind)
    compare(value, expected, [x, *model.parameters(), *loss.parameters()])


@pytest.mark.parametrize("k", [1, 3, None])
@pytest.mark.parametrize("batch", ["balanced", "unbalanced", "two_unlike"])
@pytest.mark.parametrize(("name", "kind"), LITERAL_WITH_KINDS)
def test_input(name, kind, batch, k):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    model = Network("avg+max")
    labels = batches.labels_of(batch)
    x = batches.points(batch, 2, 4, 4).requires_grad_()
    f = model.head(model.features(x))
    lam = factors(name, kind, len(x))

    def f_lam(i, j, share):
        return model.head(model.features((share * x[i] + (1 - share) * x[j]).unsqueeze(0)))[0]

    expected = case.literal_mixed(loss, f, labels, f_lam, lam, kind, k=k)
    objective = Metrix(loss, mixup="input", hard_negatives=len(x) if k is None else k)
    value = objective.mixed_inputs(model, x, labels, lam=lam, pairs=kind)
    compare(value, expected, [x, *model.parameters(), *loss.parameters()])


@pytest.mark.parametrize("mixup", ["feature", "embed"])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize(("name", "kind"), LITERAL_WITH_KINDS)
def test_hardest_negatives(name, kind, k, mixup):
    case = TABLE[name]
    loss = case.build(CLASSES, DIM)
    model = Network("max")
    labels = batches.labels_of("unbalanced")
    z = model.features(batches.points("unbalanced", 2, 4, 4)).detach().requires_grad_()
    f = model.head(z)
    lam = factors(name, kind, len(z))

    def f_lam(i, j, share):
        if mixup == "embed":
            return F.normalize(share * f[i] + (1 - share) * f[j], dim=0)
        return model.head((share * z[i] + (1 - share) * z[j]).unsqueeze(0))[0]

    expected = case.literal_mixed(loss, f, labels, f_lam, lam, kind, k=k)
    objective = Metrix(loss, mixup=mixup, hard_negatives=k)
    if mixup == "embed":
        value = objective.mixed(f, labels, lam=lam, pairs=kind)
    else:
        value = objective.mixed_features(model, z, labels, lam=lam, pairs=kind)
    compare(value, expected, [z, *model.head.parameters(), *loss.parameters()])
