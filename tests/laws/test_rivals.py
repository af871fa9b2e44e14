"""Laws of the rival mixing methods that hold for any batch."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from metrix import IMix, MetrixWarning, MoCHi, PoolLinear, ProxySynthesis, SiMix, losses
from metrix.core.closed_form import Interpolated
from metrix.core.rivals.base import draw_partners
from tests.laws.test_laws import batch, build
from tests.losses_table import PAIR_LOSSES, PROXY_LOSSES

METHODS = {
    "imix": lambda loss, **given: IMix(loss, mixup="embed", **given),
    "imix, classes": lambda loss, **given: IMix(loss, mixup="embed", targets="classes", **given),
    "imix, cross-entropy": lambda loss, **given: IMix(loss, mixup="embed", temperature=0.2, **given),
    "mochi": MoCHi,
    "mochi, hardest": lambda loss, **given: MoCHi(loss, hard_negatives=2, **given),
    "proxy-synthesis": ProxySynthesis,
    "simix": SiMix,
    "simix, recall": lambda loss, **given: SiMix(losses.RecallAtK(), **given),
}
CASES = [
    (m, name)
    for m in METHODS
    for name in (PROXY_LOSSES if m == "proxy-synthesis" else PAIR_LOSSES[:1] if m == "simix, recall" else PAIR_LOSSES)
]


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


@pytest.mark.parametrize(("method", "name"), CASES)
@settings(max_examples=12, deadline=None)
@given(batch(), st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]))
def test_value_and_gradient_are_finite(method, name, sample, dtype):
    x, labels, _ = sample
    objective = METHODS[method](build(name).to(torch.promote_types(dtype, torch.float32)))
    x = x.to(dtype).requires_grad_()
    value = objective(x, labels)
    value.backward()
    assert value.isfinite()
    assert value.dtype == torch.promote_types(dtype, torch.float32)
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())


@pytest.mark.parametrize(("method", "name"), CASES)
@settings(max_examples=10, deadline=None)
@given(batch(), st.randoms(use_true_random=False))
def test_the_order_of_the_batch_does_not_matter(method, name, sample, shuffler):
    x, labels, lam = sample
    order = list(range(len(x)))
    shuffler.shuffle(order)
    order = torch.tensor(order)
    place = order.argsort()
    objective = METHODS[method](build(name))
    partner = draw_partners(labels, torch.Generator().manual_seed(0))

    def value(order, lam, partner):
        if isinstance(objective, MoCHi | SiMix):
            return objective.parts(x[order], labels[order], lam).loss
        if partner is None:
            return objective(x[order], labels[order])
        if isinstance(objective, ProxySynthesis):
            return objective.parts(x[order], labels[order], lam, partner).loss
        f = nn.functional.normalize(x[order], dim=1)
        sets = objective.loss.sets(f, labels[order])
        return objective.mixed(Interpolated(f), sets, lam, partner).value

    whole = torch.arange(len(x))
    if isinstance(objective, SiMix):  # which of two examples is the first of a pair depends on their order
        lam = shuffled = 0.5
    elif isinstance(objective, MoCHi):  # λ of a pair does not depend on which equally hard negatives are taken
        lam = 0.3 if method == "mochi, hardest" else lam
        shuffled = lam if isinstance(lam, float) else lam[order][:, order]
    else:
        lam = lam[0]
        shuffled = lam[order]
    moved = None if partner is None else place[partner[order]]
    assert value(order, shuffled, moved).item() == pytest.approx(value(whole, lam, partner).item(), rel=1e-9, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=12), st.integers(0, 1000))
def test_partners_are_of_another_class(labels, seed):
    labels = torch.tensor(labels)
    found = draw_partners(labels, torch.Generator().manual_seed(seed))
    if found is None:
        assert (labels == labels[0]).all()
    else:
        assert (labels[found] != labels).all()


def test_partners_are_drawn_uniformly():
    labels, generator = torch.tensor([1, 0, 2, 1, 1]), torch.Generator().manual_seed(0)
    drawn = torch.stack([draw_partners(labels, generator) for _ in range(3000)])
    for example, others in {0: [1, 2], 1: [0, 2, 3, 4], 2: [0, 1, 3, 4]}.items():
        counts = Counter(drawn[:, example].tolist())
        assert sorted(counts) == others
        assert max(counts.values()) - min(counts.values()) < 0.06 * 3000


@pytest.mark.parametrize("method", ["mochi", "proxy-synthesis"])
@settings(max_examples=10, deadline=None)
@given(batch())
def test_one_class_has_nothing_to_mix(method, sample):
    x, labels, _ = sample
    labels = torch.zeros_like(labels)
    loss = build("proxy-anchor" if method == "proxy-synthesis" else "contrastive")
    assert METHODS[method](loss)(x, labels).item() == pytest.approx(loss(x, labels).item(), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_draws_follow_the_generator(method):
    torch.manual_seed(0)
    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(4).repeat(3)
    loss = build("proxy-anchor" if method == "proxy-synthesis" else "multi-similarity")
    values = [
        METHODS[method](loss, generator=torch.Generator().manual_seed(seed))(x, labels).item() for seed in (0, 0, 1)
    ]
    assert values[0] == values[1] != values[2]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.head = nn.Conv2d(3, 16, 3), PoolLinear(16, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", [*METHODS, "imix, input"])
def test_autocast_is_near_float32(method, dtype):
    name = "proxy-anchor" if method == "proxy-synthesis" else "contrastive"
    make = METHODS.get(method, lambda loss, **given: IMix(loss, **given))
    loss, model = build(name).float(), Model()
    x, labels, out = torch.randn(12, 3, 8, 8), torch.arange(4).repeat(3), {}
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            out[enabled] = make(loss, generator=torch.Generator().manual_seed(0)).step(model, x, labels)
        out[enabled].loss.backward()
        assert out[enabled].loss.dtype == torch.float32
        assert all(p.grad.isfinite().all() for p in model.parameters())
    assert out[True].loss.item() == pytest.approx(out[False].loss.item(), rel=0.05, abs=0.05)
    found = out[False]
    w = 0.4 if method.startswith("imix") else 1.0
    assert found.loss.item() == pytest.approx((found.clean + w * found.mixed).item(), rel=1e-5)
