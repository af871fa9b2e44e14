"""Micro-batches against the whole batch: the same loss and gradients, in the memory of a piece."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from metrix import Clean, IMix, Metrix, MetrixWarning, MicroBatched, PoolLinear, SiMix, losses
from tests.core.test_fast_paths import DIM, LABELS, MLP, N, Network, assert_same, double

X = double((N, 2, 4, 4))


def outcome(objective, model, parameters, seed=7):
    """Loss and gradients of a step, with all random choices from a seed."""
    torch.manual_seed(seed)
    out = objective.step(model, X, LABELS)
    grads = torch.autograd.grad(out.loss, parameters, allow_unused=True)
    return [out.loss.detach(), *(g for g in grads if g is not None)]


@pytest.mark.parametrize("micro_batch", [1, 5, 13])
@pytest.mark.parametrize("head", ["avg", "avg+max", "mlp"])
@pytest.mark.parametrize("mixup", ["none", "embed", "feature", "input", "prefixes", "imix", "recall-at-k", "simix"])
def test_the_gradient_is_that_of_the_whole_batch(mixup, head, micro_batch):
    model = Network(MLP() if head == "mlp" else PoolLinear(8, DIM, pool=head))
    loss = losses.ProxyAnchor(5, DIM).double()
    objective = {
        "none": lambda: Clean(loss),
        "prefixes": lambda: Metrix(loss, mixup=("embed", "feature"), matryoshka=(2, DIM - 1)),
        "imix": lambda: IMix(losses.NCA(), mixup="feature"),
        "recall-at-k": lambda: Clean(losses.RecallAtK(temperature=0.1)),
        "simix": lambda: SiMix(losses.RecallAtK(temperature=0.1)),
    }.get(mixup, lambda: Metrix(loss, mixup=mixup))()
    leaves = [*model.parameters(), *objective.parameters()]
    whole = outcome(objective, model, leaves)
    assert_same(outcome(objective, MicroBatched(model, micro_batch), leaves), whole, 1e-12)


@pytest.mark.parametrize("keep", [True, False], ids=["feature", "embed"])
def test_the_second_pass_has_the_random_state_of_the_first(keep):
    """Dropout that differed between the passes would give another gradient than the loss's own."""
    model = Network(MLP(nn.Dropout(0.5)))
    objective = Metrix(losses.MultiSimilarity(), mixup="feature" if keep else "embed", pairs="pos-neg", lam_per="batch")
    weight = model.body.weight

    def loss(shift):
        torch.manual_seed(3)
        with torch.no_grad():
            weight.add_(shift)
        value = objective.step(MicroBatched(model, 4), X, LABELS).loss
        with torch.no_grad():
            weight.sub_(shift)
        return value.item()

    direction = double(weight.shape, seed=9)
    torch.manual_seed(3)
    (grad,) = torch.autograd.grad(objective.step(MicroBatched(model, 4), X, LABELS).loss, weight)
    slope = (loss(1e-6 * direction) - loss(-1e-6 * direction)) / 2e-6
    assert float((grad * direction).sum()) == pytest.approx(slope, rel=1e-6)


def test_no_more_than_a_piece_is_ever_alive():
    """Activations of a layer that are alive at a time, forward and backward."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            nonlocal most
            kept = x.clone()
            alive.add(kept)
            most = max(most, sum(len(t) for t in alive))
            ctx.save_for_backward(kept)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            (kept,) = ctx.saved_tensors
            return grad + 0 * kept

    class Layer(nn.Module):
        def forward(self, x):
            return Watched.apply(x)

    model = Network(MLP(Layer()))
    for size, expected in ((N, N), (4, 8)):  # a piece, and the one before it until it is replaced
        most = 0
        Metrix(losses.MultiSimilarity(), mixup="embed").step(MicroBatched(model, size), X, LABELS).loss.backward()
        gc.collect()
        assert most <= expected
        assert size == N or most < N


def test_batch_norm_in_training_mode_is_said_and_moves_once():
    model = Network(MLP(nn.BatchNorm1d(16, dtype=torch.float64)))
    norm = model.head.layers[2]
    objective = Clean(losses.MultiSimilarity())
    pieces = MicroBatched(model, 7)
    with pytest.warns(MetrixWarning, match="micro-batches of 7.*--frozen-bn"):
        out = objective.step(pieces, X, LABELS)
    assert norm.num_batches_tracked == 2
    moved = norm.running_mean.clone()
    out.loss.backward()
    assert norm.num_batches_tracked == 2
    assert torch.equal(norm.running_mean, moved)
    objective.step(pieces, X, LABELS)  # said once
    norm.eval()
    objective.step(MicroBatched(model, 7), X, LABELS)


def test_without_gradients_nothing_is_computed_twice():
    model = Network(PoolLinear(8, DIM))
    with torch.no_grad():
        found = MicroBatched(model, 4)(X)
    assert model.seen == N
    torch.testing.assert_close(found, model.head(model.features(X)))


def test_a_backward_pass_can_be_repeated():
    model = Network(MLP(nn.BatchNorm1d(16, dtype=torch.float64)))
    model.head.layers[2].eval()
    value = MicroBatched(model, 4)(X).square().sum(1).sin().sum()
    first = torch.autograd.grad(value, [model.body.weight], retain_graph=True)
    again = torch.autograd.grad(value, [model.body.weight])
    assert torch.equal(first[0], again[0])


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_the_size_of_a_piece_is_a_whole_number(size):
    with pytest.raises(ValueError, match="expected an integer"):
        MicroBatched(Network(MLP()), size)


def test_a_model_in_two_parts_is_needed():
    with pytest.raises(ValueError, match="has no features"):
        MicroBatched(nn.Linear(2, 2), 4)
