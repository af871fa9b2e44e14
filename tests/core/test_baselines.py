"""Triplet, margin, EPSHN and SoftTriple on any batch, in any precision, within memory; how margin draws."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import nn

from metrix import Clean, Metrix, MetrixError, MetrixWarning, losses
from metrix.core.baselines.base import distances, pairs_of
from metrix.core.baselines.margin import distance_weights
from tests.laws.test_laws import batch
from tests.losses_table import BASELINES
from tests.parity import literal_baselines

DIM, CLASSES = 5, 6
NEED_PAIRS = [name for name in BASELINES if name != "soft-triple"]


def build(name):
    torch.manual_seed(0)
    loss = BASELINES[name](CLASSES, DIM)
    if isinstance(loss, losses.Margin):
        loss.generator = torch.Generator().manual_seed(0)
    return loss


def quietly(loss, x, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        return loss(x, labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=20, deadline=None)
@given(batch())
def test_values_and_gradients_are_finite(name, dtype, sample):
    x, labels, _ = sample
    x, loss = x.to(dtype).requires_grad_(), build(name)
    value = quietly(loss, x, labels)
    value.backward()
    assert value.isfinite()
    assert value.dtype == torch.float32
    assert value >= 0
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in loss.parameters())


@pytest.mark.parametrize("name", [n for n in BASELINES if not n.startswith("margin")])  # which draws
@settings(max_examples=20, deadline=None)
@given(batch(), st.floats(0.1, 10.0))
def test_order_and_scale_of_the_batch_do_not_matter(name, sample, scale):
    x, labels, _ = sample
    x = torch.randn(x.shape, generator=torch.Generator().manual_seed(len(x)), dtype=torch.float64)  # without ties
    loss = build(name).double()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    again = quietly(loss, scale * x[order], labels[order]).item()
    assert again == pytest.approx(quietly(loss, x, labels).item(), rel=1e-9, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(batch())
def test_triplets_counted_are_triplets_formed(sample):
    x, labels, _ = sample
    x = torch.randn(x.shape, generator=torch.Generator().manual_seed(len(x)), dtype=torch.float64).requires_grad_()
    expected = literal_baselines.triplet(torch.nn.functional.normalize(x, dim=1), labels, 0.2, semi_hard=True)
    value = quietly(losses.Triplet(), x, labels).item()
    assert value == pytest.approx(0.0 if expected is None else expected.item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", BASELINES)
def test_duplicates_have_finite_gradients(name):
    """The root of a distance of zero has no derivative."""
    x = torch.randn(2, DIM, generator=torch.Generator().manual_seed(0)).repeat_interleave(3, 0)
    x = (x + torch.tensor([0.0, 0.0, 1e-9, 0.0, 0.0, 1e-9])[:, None]).requires_grad_()
    loss = build(name)
    loss(x, torch.tensor([0, 0, 0, 1, 1, 1])).backward()
    assert x.grad.abs().max() < 100
    loss(x, torch.tensor([0, 1, 0, 1, 0, 1])).backward()  # equal ones of different classes
    assert x.grad.abs().max() < 100


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BASELINES)
def test_autocast_leaves_the_loss_alone(name, dtype):
    x, labels = torch.randn(12, DIM, generator=torch.Generator().manual_seed(2)), torch.arange(12) % 4
    with torch.autocast("cpu", dtype=dtype):
        value = Clean(build(name))(x, labels)
    assert torch.equal(value, build(name)(x, labels))


@pytest.mark.parametrize("name", ["triplet", "epshn"])
def test_a_satisfied_batch_is_zero_without_a_warning(name):
    x = torch.eye(DIM)[[0, 0, 1, 1]].requires_grad_()
    value = build(name)(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == pytest.approx(0.0, abs=1e-4)


def test_nothing_semi_hard_is_zero():
    """Negatives nearer than every positive: neither loss has a term, but the batch is no mistake."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    for name in ("triplet", "epshn"):
        assert build(name)(x, torch.tensor([0, 0, 1, 1])).item() == 0
    assert build("triplet, all")(x, torch.tensor([0, 0, 1, 1])).item() == pytest.approx(2 - 2**0.5 + 0.2)


def test_a_negative_as_far_as_the_positive_is_not_semi_hard():
    x, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    assert build("triplet")(x, labels).item() == build("epshn")(x, labels).item() == 0
    assert build("triplet, all")(x, labels).item() == pytest.approx(0.2)


@pytest.mark.parametrize("dim", [3, 16, 512])
def test_drawing_weights_are_those_of_the_formula(dim):
    x = torch.randn(10, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 0] += 1.5 * x.norm(dim=1)  # near enough to be drawn
    x, labels = torch.nn.functional.normalize(x, dim=1), torch.arange(10) // 2
    found = distance_weights(distances(x), pairs_of(labels, x).negative, dim, 0.5, 1.4)
    for a in range(10):
        expected = torch.tensor(literal_baselines.weights(x, labels, a, 0.5, 1.4), dtype=torch.float64)
        torch.testing.assert_close(found[a], expected)
    assert (found > 0).any()


def test_negatives_are_drawn_with_these_weights():
    labels = torch.tensor([0] * 200 + [1, 2, 3, 4, 5, 6])
    at = torch.tensor([0.2, 0.6, 0.8, 1.1, 1.3, 1.5])  # distances of the six negatives from the rest
    x = torch.zeros(206, 4, dtype=torch.float64)
    x[:200, 0] = 1.0
    x[200:, 0] = 1 - at.square() / 2
    x[200:, 1] = (1 - x[200:, 0].square()).sqrt()
    generator = torch.Generator().manual_seed(0)
    times = losses.Margin(generator=generator).draws(distances(x), pairs_of(labels, x), 4, 199)
    assert times[:200].sum(1).tolist() == [199] * 200
    drawn = times[:200, 200:].sum(0)
    expected = torch.tensor(literal_baselines.weights(x, labels, 0, 0.5, 1.4)[200:])
    assert drawn[5] == expected[5] == 0  # beyond the farthest
    assert expected[0] > expected[1] > 0  # as if it were at the nearest
    total = int(drawn[:5].sum())
    assert total == 200 * 199
    assert chisquare(drawn[:5], total * expected[:5] / expected[:5].sum()).pvalue > 1e-3


def test_the_generator_decides_the_draws():
    x, labels = torch.randn(40, DIM, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 8

    def values(seed, global_seed):
        torch.manual_seed(global_seed)
        loss = losses.Margin(generator=torch.Generator().manual_seed(seed))
        return [loss(x, labels).item() for _ in range(3)]

    assert values(0, 0) == values(0, 1)
    assert values(0, 0) != values(1, 0)
    assert len(set(values(0, 0))) > 1
    torch.manual_seed(5)
    state = torch.get_rng_state()
    values(0, 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_soft_triple_of_many_classes_stays_far_from_the_square_of_its_centres():
    """10,000 classes with 10 centres: a tensor of (C·K)² floats would take 40 GB."""
    loss = losses.SoftTriple(10_000, 16, centers=10)
    x = torch.randn(8, 16).requires_grad_()
    loss(x, torch.arange(8)).backward()
    assert loss.centers.grad.isfinite().all()
    sizes = largest_tensor(lambda: loss(x, torch.arange(8)).backward())
    assert sizes <= 2 * 10_000 * 10 * 16  # the centres themselves


def test_recall_at_k_of_a_large_batch_is_computed_some_queries_at_a_time(monkeypatch):
    """Each query has a row for each of its 59 positives: 300 · 59 · 300 numbers for all of them."""
    monkeypatch.setattr("metrix.core.compute.blocks.BLOCK", 10 * 59 * 300)
    x, labels = torch.randn(300, DIM).requires_grad_(), torch.arange(300) % CLASSES
    assert largest_tensor(lambda: build("recall-at-k")(x, labels).backward()) <= 10 * 60 * 300


@pytest.mark.parametrize("name", [name for name in NEED_PAIRS if name != "recall-at-k"])
def test_no_tensor_of_all_triplets(name):
    x = torch.randn(300, DIM).requires_grad_()
    labels = torch.arange(300) % CLASSES
    loss = build(name)
    assert largest_tensor(lambda: loss(x, labels).backward()) <= 301 * 300


def largest_tensor(call):
    """The most elements of any tensor that an operation gives in a call."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            self.most = max([self.most, *(t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor))])
            return out

    with Watch() as watch:
        call()
    return watch.most


@pytest.mark.parametrize("name", BASELINES)
def test_mixup_says_why_not(name):
    with pytest.raises(MetrixError, match=r"cannot be mixed: .* can be\. Expected .*--mixup none"):
        Metrix(build(name))


def test_learnable_parts_are_parameters():
    assert {n: tuple(p.shape) for n, p in losses.Margin().named_parameters()} == {"beta": (1,)}
    assert {n: tuple(p.shape) for n, p in losses.Margin(num_classes=7).named_parameters()} == {"beta": (7,)}
    assert {n: tuple(p.shape) for n, p in losses.SoftTriple(7, 3).named_parameters()} == {"centers": (7, 10, 3)}
    assert not list(losses.Triplet().parameters())
    assert "margin=0.2" in repr(losses.Triplet())


def test_beta_learns_towards_the_boundary():
    """Positives beyond β pull it out, negatives within it push it in."""
    loss = losses.Margin(generator=torch.Generator())
    x = nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.1]]), dim=1)
    loss(x, torch.tensor([0, 0, 0])).backward()  # positives at 1.41 and farther
    assert loss.beta.grad < 0
    loss = losses.Margin(generator=torch.Generator())
    loss(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.9, 0.1]]), torch.tensor([0, 0, 1])).backward()
    assert loss.beta.grad > 0
