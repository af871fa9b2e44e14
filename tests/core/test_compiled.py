"""Objectives through the compiler: one graph, and the numbers of the plain computation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from metrix import Clean, Metrix, PoolLinear, losses
from metrix.train.compiling import find_missing_compiler
from tests.losses_table import TABLE, WITH_KINDS

CLASSES, DIM = 5, 8
LABELS = torch.arange(CLASSES).repeat_interleave(4)
X = torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def differentiate(objective, x):
    x = x.clone().requires_grad_()
    value = objective(x, LABELS)
    value.backward()
    return value.detach(), x.grad


def assert_compiles(make):
    torch._dynamo.reset()
    compiled = torch.compile(make(), backend="aot_eager", fullgraph=True)
    for found, expected in zip(differentiate(compiled, X), differentiate(make(), X), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in TABLE if name != "generic"])
def test_clean_losses(name):
    assert_compiles(lambda: Clean(TABLE[name].build(CLASSES, DIM)))


@pytest.mark.filterwarnings("ignore::metrix.MetrixWarning")
@pytest.mark.parametrize("lam_per", ["pair", "batch"])
@pytest.mark.parametrize("kind", sorted({kind for _, kind in WITH_KINDS}))
def test_embedding_mixup_of_multi_similarity(kind, lam_per):
    def make():
        loss, generator = TABLE["multi-similarity"].build(CLASSES, DIM), torch.Generator().manual_seed(1)
        return Metrix(loss, "embed", kind, lam_per=lam_per, generator=generator)

    assert_compiles(make)


@pytest.mark.parametrize("name", [name for name in TABLE if name != "generic"])
def test_embedding_mixup(name):
    assert_compiles(
        lambda: Metrix(TABLE[name].build(CLASSES, DIM), "embed", "pos-neg", generator=torch.Generator().manual_seed(1))
    )


def test_one_of_several_kinds_of_pairs_is_drawn_as_without_the_compiler():
    def losses_of_steps(through):
        objective = Metrix(losses.Contrastive(), "embed", generator=torch.Generator().manual_seed(1))
        call, kinds = through(objective), set()
        for _ in range(4):
            yield differentiate(call, X)
            kinds.add(objective.draw_step()[1])
        assert kinds == {"pos-neg", "anc-neg"}

    torch._dynamo.reset()
    compiled = losses_of_steps(lambda objective: torch.compile(objective, backend="aot_eager", fullgraph=True))
    for step in zip(compiled, losses_of_steps(lambda objective: objective), strict=True):
        for found, expected in zip(*step, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("call", ["weights", "lam"])
def test_numbers_that_are_given(call):
    def make():
        loss = losses.Contrastive()
        if call == "weights":
            return lambda x, labels: loss(x, labels, weights=torch.linspace(0, 1, len(x)))
        return lambda x, labels: Metrix(loss, "embed").mixed(x, labels, lam=0.37, pairs="pos-neg")

    assert_compiles(make)


@pytest.mark.parametrize("name", ["multi-similarity", "proxy-anchor", "proxy-nca++"])
def test_prefixes(name):
    def make():
        loss, generator = TABLE[name].build(CLASSES, DIM), torch.Generator().manual_seed(1)
        return Metrix(loss, "embed", "pos-neg", generator=generator, matryoshka=(2, 5))

    assert_compiles(make)


@pytest.mark.parametrize("kind", ["pos-neg", "neg-neg"])
def test_kernels_of_the_compiler(kind):
    """λ in particular: integers that overflow, in kernels of the compiler's own."""
    missing = find_missing_compiler(torch.device("cpu"))
    if missing:
        pytest.skip(f"no compiler: {missing}")

    def make():
        return Metrix(losses.MultiSimilarity(), "embed", kind, generator=torch.Generator().manual_seed(1))

    torch._dynamo.reset()
    compiled, x = torch.compile(make(), fullgraph=True), X.float()
    for found, expected in zip(differentiate(compiled, x), differentiate(make(), x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Network(nn.Module):
    def __init__(self, head: nn.Module, flat: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.flat = nn.Conv2d(3, 6, 3), head, flat

    def features(self, x):
        z = self.body(x).relu()
        return z.mean((2, 3)) if self.flat else z


@pytest.mark.parametrize("head", ["linear", "pool and linear"])
def test_feature_mixup_with_a_linear_head(head):
    images, found = torch.randn(len(LABELS), 3, 5, 5, generator=torch.Generator().manual_seed(2)), []
    for is_compiled in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        last = nn.Linear(6, DIM) if head == "linear" else PoolLinear(6, DIM, "avg")
        network, generator = Network(last, flat=head == "linear"), torch.Generator().manual_seed(1)
        objective = Metrix(losses.MultiSimilarity(), "feature", "pos-neg", generator=generator)
        assert "closed form" in objective.explain(network)
        step = torch.compile(objective.step, backend="aot_eager", fullgraph=True) if is_compiled else objective.step
        out = step(network, images, LABELS)
        out.loss.backward()
        found.append([out.loss.detach(), out.mixed.detach(), *(p.grad for p in network.parameters())])
    for compiled, plain in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-6)
