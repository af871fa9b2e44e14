"""Objectives through the compiler: one graph, and the numbers of the plain computation."""

from __future__ import annotations

import pytest
import torch

from metrix import Clean, Metrix
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
