"""The influence loss against its formula, written out, in float64: value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metrix.core.influence import class_centres, draw_partners, influence_loss, mixed_influence_loss
from metrix.errors import ShapeError


def unit(x: Tensor) -> Tensor:
    return x / x.pow(2).sum(-1, keepdim=True).sqrt()


def literal(vectors: Tensor, labels: Tensor, centres: Tensor, temperature: float) -> Tensor:
    """-1/n Σ_i log( e^{s(v_i, μ_{y_i})/T} / Σ_c e^{s(v_i, μ_c)/T} ), term by term."""
    total = torch.zeros((), dtype=torch.float64)
    for v, y in zip(vectors, labels, strict=True):
        terms = [((v / v.pow(2).sum().sqrt()) @ centre / temperature).exp() for centre in centres]
        total = total - (terms[int(y)] / sum(terms)).log()
    return total / len(vectors)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    z = torch.randn(9, 5, generator=draws, dtype=torch.float64)
    old = unit(torch.randn(9, 5, generator=draws, dtype=torch.float64))
    centres = unit(torch.randn(4, 5, generator=draws, dtype=torch.float64))
    return z, torch.tensor([0, 0, 1, 1, 1, 3, 3, 0, 2]), centres, old


def same_value_and_gradient(fast: object, slow: object, z: Tensor) -> None:
    found = []
    for compute in (fast, slow):
        leaf = z.clone().requires_grad_()
        value = compute(leaf)  # type: ignore[operator]
        value.backward()
        found.append((value.detach(), leaf.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_influence_is_the_formula(batch: tuple[Tensor, ...], temperature: float) -> None:
    z, labels, centres, _ = batch
    same_value_and_gradient(
        lambda x: influence_loss(x, labels, centres, temperature),
        lambda x: literal(x, labels, centres, temperature),
        z,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_mixed_influence_is_the_formula_of_mixed_vectors(batch: tuple[Tensor, ...], temperature: float) -> None:
    z, labels, centres, old = batch
    partners = torch.tensor([1, 0, 4, 2, 3, 6, 5, 0, 8])
    lam = torch.tensor([0.0, 1.0, 0.5, 0.3, 0.9, 0.1, 0.7, 0.6, 0.2], dtype=torch.float64)

    def mixed(x: Tensor) -> Tensor:
        vectors = lam[:, None] * unit(x) + (1 - lam)[:, None] * old[partners]
        return literal(vectors, labels, centres, temperature)

    same_value_and_gradient(
        lambda x: mixed_influence_loss(x, labels, centres, old, partners, lam, temperature), mixed, z
    )


def test_all_new_is_the_clean_loss_and_all_old_has_no_gradient(batch: tuple[Tensor, ...]) -> None:
    z, labels, centres, old = batch
    leaf, partners = z.clone().requires_grad_(), torch.arange(9)
    ones = torch.ones(9, dtype=torch.float64)
    clean = influence_loss(leaf, labels, centres)
    torch.testing.assert_close(mixed_influence_loss(leaf, labels, centres, old, partners, ones), clean)
    mixed_influence_loss(leaf, labels, centres, old, partners, 0 * ones).backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().max() < 1e-12


def test_opposite_vectors_and_half_precision_stay_finite(batch: tuple[Tensor, ...]) -> None:
    z, labels, centres, _ = batch
    half = torch.full((9,), 0.5)
    leaf = z.float().requires_grad_()
    mixed_influence_loss(leaf, labels, centres, -unit(z), torch.arange(9), half).backward()  # v = 0
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad).all()
    low = influence_loss(z.to(torch.bfloat16), labels, centres)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), influence_loss(z, labels, centres), rtol=0.05, atol=0.05)


def test_partners_are_of_the_class_and_another_example() -> None:
    labels = torch.tensor([0, 1, 0, 2, 0, 1])
    draws = torch.Generator().manual_seed(0)
    drawn = torch.stack([draw_partners(labels, draws) for _ in range(60)])
    for row in range(6):
        others = {n for n in range(6) if labels[n] == labels[row] and n != row} or {row}
        assert set(drawn[:, row].tolist()) == others
    again = torch.Generator().manual_seed(0)
    assert (draw_partners(labels, again) == drawn[0]).all()


def test_centres_are_mean_directions() -> None:
    vectors = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
    found = class_centres(vectors, torch.tensor([0, 0, 2]), 3)
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 0.0], [0.0, 1.0]]))


def test_bad_input(batch: tuple[Tensor, ...]) -> None:
    z, labels, centres, old = batch
    with pytest.raises(ShapeError, match="expected dimension 5, of the old model, got 4"):
        influence_loss(z[:, :4], labels, centres)
    with pytest.raises(ShapeError, match="of the old model"):
        mixed_influence_loss(z, labels, centres[:, :3], old, torch.arange(9), torch.ones(9))
