"""Half precision, gradient checks, random draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from metrix import Metrix, PoolLinear, losses
from metrix.core.factors import Factors, draw
from tests.losses_table import DEFINED_WITH_KINDS, TABLE

CLASSES, DIM = 4, 8
LABELS = torch.arange(CLASSES).repeat(3)


def build(name):
    return TABLE[name].build(CLASSES, DIM).float()


def extreme(dtype):
    """Similarities over the whole of [-1, 1]: equal, opposite and orthogonal vectors."""
    x = torch.zeros(12, 8)
    x[:, 0] = 1.0
    x[3:6, 0] = -1.0
    x[6:, :] = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    return x.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("name", "kind"), [*((name, None) for name in TABLE), *DEFINED_WITH_KINDS])
def test_half_precision_embeddings_give_finite_losses_and_gradients(name, kind, dtype):
    loss = build(name)
    x = extreme(dtype)
    value = loss(x, LABELS) if kind is None else Metrix(loss, mixup="embed", pairs=kind)(x, LABELS)
    value.backward()
    assert value.isfinite()
    assert value.dtype == torch.float32
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in loss.parameters())


class Network(nn.Module):
    def __init__(self, head) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Conv2d(3, 16, 3), head

    def features(self, x):
        return self.body(x)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16 * 36, 8)

    def forward(self, z):
        return nn.functional.normalize(self.linear(z.flatten(1)), dim=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head", ["avg", "avg+max", "plain"])
@pytest.mark.parametrize("mixup", ["input", "feature", "embed"])
@pytest.mark.parametrize("name", ["contrastive", "multi-similarity", "proxy-anchor", "proxy-nca++"])
def test_autocast_gives_finite_losses_and_gradients_near_those_of_float32(name, mixup, head, dtype):
    loss = build(name)
    model = Network(Plain() if head == "plain" else PoolLinear(16, 8, pool=head))
    x = torch.randn(12, 3, 8, 8)
    out = {}
    for enabled in (False, True):
        generator = torch.Generator().manual_seed(0)
        # with all negatives, rounding cannot change which are the hardest
        objective = Metrix(loss, mixup=mixup, hard_negatives=len(x), generator=generator)
        model.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            out[enabled] = objective.step(model, x, LABELS)
        out[enabled].loss.backward()
        assert out[enabled].loss.dtype == torch.float32
        assert all(p.grad.isfinite().all() for p in model.parameters())
    assert out[True].loss.item() == pytest.approx(out[False].loss.item(), rel=0.05, abs=0.05)
    assert out[True].mixed.item() == pytest.approx(out[False].mixed.item(), rel=0.05, abs=0.05)


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n, k in DEFINED_WITH_KINDS if TABLE[n].true_gradient])
def test_gradcheck(name, kind):
    objective = Metrix(TABLE[name].build(CLASSES, DIM), mixup="embed")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 8, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    lam = torch.rand(TABLE[name].factor_rows(kind, 8, CLASSES), 8, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda e: objective.mixed(e, labels, lam, kind) + objective.loss(e, labels), x)


@pytest.mark.parametrize("mixup", ["embed", "feature", "input", ("input", "feature", "embed")])
@pytest.mark.parametrize("lam_per", ["pair", "batch"])
def test_the_same_generator_gives_the_same_draw(mixup, lam_per):
    model = Network(PoolLinear(16, 8))
    x = torch.randn(12, 3, 8, 8)

    def steps(seed: int):
        torch.manual_seed(seed)  # global random state must not matter
        generator = torch.Generator().manual_seed(7)
        objective = Metrix(losses.MultiSimilarity(), mixup=mixup, lam_per=lam_per, generator=generator)
        outs = [objective.step(model, x, LABELS) for _ in range(6)]
        return [(o.mixup, o.pairs, o.loss.item()) for o in outs]

    first = steps(0)
    assert first == steps(1)
    assert len({loss for *_, loss in first}) > 1
    assert {pairs for _, pairs, _ in first} == {"pos-neg", "anc-neg"}


@pytest.mark.parametrize(("lam_per", "distinct"), [("batch", 1), ("pair", 144)])
def test_one_factor_for_each_pair_or_for_the_batch(lam_per, distinct, monkeypatch):
    seen = []

    def spy(self, *shape, original=Factors.of):
        seen.append(original(self, *shape).rows())
        return original(replace(self, given=seen[-1]), *shape)

    monkeypatch.setattr(Factors, "of", spy)
    Metrix(losses.MultiSimilarity(), mixup="embed", lam_per=lam_per, pairs="pos-neg")(torch.randn(12, 8), LABELS)
    assert [len(lam.unique()) for lam in seen] == [distinct]


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.0, 8.0])
def test_factors_follow_the_beta_distribution(alpha):
    from scipy.stats import beta, kstest

    lam = draw((20_000,), alpha, torch.Generator().manual_seed(0), torch.device("cpu"), torch.float64)
    assert kstest(lam.numpy(), beta(alpha, alpha).cdf).pvalue > 1e-3
    assert lam.min() >= 0
    assert lam.max() <= 1


def test_types_and_pairs_are_drawn_uniformly():
    generator = torch.Generator().manual_seed(0)
    objective = Metrix(losses.MultiSimilarity(), mixup=("feature", "embed"), generator=generator, strength=0.1)
    model = Network(PoolLinear(16, 8, "avg"))
    x = torch.randn(12, 3, 8, 8)
    with torch.no_grad():
        outs = [objective.step(model, x, LABELS) for _ in range(200)]
    share = sum(o.mixup == "embed" for o in outs) / 200
    assert 0.35 < share < 0.65
    share = sum(o.pairs == "anc-neg" for o in outs) / 200
    assert 0.35 < share < 0.65


def test_strength_weighs_the_mixed_loss():
    model, x = Network(PoolLinear(16, 8)), torch.randn(12, 3, 8, 8)
    out = Metrix(losses.MultiSimilarity(), strength=0.7).step(model, x, LABELS)
    assert out.loss.item() == pytest.approx(out.clean.item() + 0.7 * out.mixed.item())
    clean = Metrix(losses.MultiSimilarity(), strength=0).step(model, x, LABELS)
    assert clean.loss.item() == clean.clean.item() == losses.MultiSimilarity()(out.embeddings, LABELS).item()
    assert clean.mixed.item() == 0


@pytest.mark.parametrize("lam", [1e-45, 1e-40, 1e-38, 1e-30])
@pytest.mark.parametrize(
    "name", ["nca", "nca, include_positive", "lifted-structure", "proxy-nca++", "proxy-nca++, table 1"]
)
def test_a_tiny_factor_keeps_its_logarithm(name, lam):
    """float32 numbers below 1e-38 vanish times any term below 1; the sum of such terms has a logarithm still."""
    x = torch.randn(12, DIM, generator=torch.Generator().manual_seed(0))
    lam = torch.tensor(lam)  # a float32, as it is
    found, expected = [], []
    for dtype, into in ((torch.float32, found), (torch.float64, expected)):
        z = x.clone().to(dtype).requires_grad_()
        value = Metrix(TABLE[name].build(CLASSES, DIM).to(dtype), mixup="embed").mixed(z, LABELS, lam, "pos-neg")
        value.backward()
        into += [value.detach().double(), z.grad.double()]
    assert found[0].item() == pytest.approx(expected[0].item(), rel=1e-4)
    assert torch.allclose(found[1], expected[1], rtol=1e-3, atol=1e-4)
