"""Parity and laws on the GPUs of this machine; skipped where there is none.

Expected are the literal formulas on the CPU, in float64. CUDA computes in float64, too; MPS has float32 only.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metrix import Metrix, MetrixWarning
from tests.devices.conftest import PRESENT
from tests.losses_table import LITERAL, LITERAL_WITH_KINDS, TABLE, WITH_KINDS
from tests.parity import batches
from tests.parity.test_mixed_loss import CLASSES, DIM, factors

if not PRESENT:
    pytest.skip("this machine has neither CUDA nor MPS", allow_module_level=True)

BATCHES = ("balanced", "unbalanced", "singletons", "duplicates")


@pytest.fixture(autouse=True)
def _unusable_batches_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetrixWarning)
        yield


def put(given: Any, device: torch.device) -> Any:
    """A copy of a tensor or a module on the device, in the widest floating point numbers that it has."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return copy.deepcopy(given).to(dtype).to(device)


def near(name: str, device: torch.device) -> float:
    return 1e-3 if device.type == "mps" else TABLE[name].tolerance


def differentiate(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    grads = torch.autograd.grad(value, leaves, allow_unused=True) if value.requires_grad else [None] * len(leaves)
    found = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True)]
    return [x.detach().cpu().double() for x in (value, *found)]


def assert_equal(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("labels_there", [True, False], ids=["labels there", "labels here"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", LITERAL)
def test_clean_losses(name, batch, labels_there, device):
    case, labels = TABLE[name], batches.labels_of(batch)
    loss, x = case.build(CLASSES, DIM), batches.points(batch, DIM).requires_grad_()
    expected = case.literal_clean(loss, F.normalize(x, dim=1), labels)
    expected = torch.zeros((), dtype=torch.float64) if expected is None else expected
    there, leaf = put(loss, device), put(x.detach(), device).requires_grad_()
    value = there(leaf, labels.to(device) if labels_there else labels)
    assert value.device.type == device.type
    assert_equal(
        differentiate(value, [leaf, *there.parameters()]),
        differentiate(expected, [x, *loss.parameters()]),
        near(name, device),
    )


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("name", "kind"), LITERAL_WITH_KINDS)
def test_embedding_mixup(name, kind, batch, device):
    case, labels = TABLE[name], batches.labels_of(batch)
    loss, x = case.build(CLASSES, DIM), batches.points(batch, DIM).requires_grad_()
    f, lam = F.normalize(x, dim=1), factors(name, kind, len(x))

    def f_lam(i, j, share):
        return F.normalize(share * f[i] + (1 - share) * f[j], dim=0)

    expected = case.literal_mixed(loss, f, labels, f_lam, lam, kind)
    expected = torch.zeros((), dtype=torch.float64) if expected is None else expected
    there, leaf = put(loss, device), put(x.detach(), device).requires_grad_()
    value = Metrix(there, "embed").mixed(leaf, labels, lam=put(lam, device), pairs=kind)
    assert_equal(
        differentiate(value, [leaf, *there.parameters()]),
        differentiate(expected, [x, *loss.parameters()]),
        near(name, device),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "kind"), WITH_KINDS)
def test_laws(name, kind, seed, device):
    """The order of the batch does not matter; nor does swapping the partners of all pairs, and λ with 1-λ."""
    generator = torch.Generator().manual_seed(seed)
    x = put(torch.randn(9, DIM, generator=generator), device).requires_grad_()
    labels = torch.randint(CLASSES, (9,), generator=generator)
    lam, order = put(torch.rand(9, 9, generator=generator), device), torch.randperm(9, generator=generator)
    objective = Metrix(put(TABLE[name].build(CLASSES, DIM), device), "embed", kind)
    if TABLE[name].roles == "proxy anchors" and kind == "anc-neg":  # λ has a row for each proxy
        lam = lam[:CLASSES]
        reordered = lam[:, order]
    else:
        reordered = lam[order][:, order]
    first = differentiate(objective.mixed(x, labels, lam), [x])
    assert_equal(differentiate(objective.mixed(x[order], labels[order], reordered), [x]), first, near(name, device))
    if kind in ("pos-pos", "neg-neg"):
        assert_equal(differentiate(objective.mixed(x, labels, (1 - lam).T), [x]), first, near(name, device))
