"""What distillation must not depend on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from metrix import Distil, DistillationLoss
from metrix.core.compute import blocks
from metrix.core.distillation import DISTILLATION

RELATIONAL = {name: float(not part.one_space) for name, part in DISTILLATION.items()}


def embeddings(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, 6, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


def rotation(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0]


@given(n=st.integers(2, 9), seed=st.integers(0, 999))
def test_the_order_of_examples_changes_nothing(n: int, seed: int) -> None:
    student, teacher = embeddings(n, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    loss = DistillationLoss()
    torch.testing.assert_close(loss(student[order], teacher[order]), loss(student, teacher))


@given(n=st.integers(2, 9), seed=st.integers(0, 999))
def test_relations_do_not_depend_on_rotations_of_either_space(n: int, seed: int) -> None:
    student, teacher = embeddings(n, seed)
    loss = DistillationLoss(RELATIONAL)
    expected = loss(student, teacher)
    torch.testing.assert_close(loss(student, teacher @ rotation(seed)), expected)
    torch.testing.assert_close(loss(student @ rotation(seed), teacher), expected)
    assert float(DistillationLoss()(student, teacher @ rotation(seed))) != pytest.approx(
        float(DistillationLoss()(student, teacher)), rel=1e-6
    )


@given(n=st.integers(2, 9), seed=st.integers(0, 999))
def test_a_student_like_its_teacher_has_no_loss(n: int, seed: int) -> None:
    _, teacher = embeddings(n, seed)
    assert float(DistillationLoss()(3.0 * teacher, teacher)) == pytest.approx(0, abs=1e-9)
    assert float(DistillationLoss(RELATIONAL)(teacher @ rotation(1), teacher)) == pytest.approx(0, abs=1e-9)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = embeddings(9)
    student.requires_grad_()

    def both() -> tuple[Tensor, Tensor]:
        loss = DistillationLoss()(student, teacher)
        return loss, torch.autograd.grad(loss, student)[0]

    whole = both()
    monkeypatch.setattr(blocks, "BLOCK", 200)  # two examples of 9 × 9 numbers
    for found, expected in zip(both(), whole, strict=True):
        torch.testing.assert_close(found, expected)


@given(n=st.integers(2, 9), seed=st.integers(0, 999))
def test_each_example_is_mixed_with_another(n: int, seed: int) -> None:
    objective = Distil(lambda x: x, generator=torch.Generator().manual_seed(seed))
    inputs = torch.eye(n)
    partners = objective.mix(inputs, lam=0.0).argmax(1)
    assert sorted(partners.tolist()) == list(range(n))
    assert bool((partners != torch.arange(n)).all())
    torch.testing.assert_close(objective.mix(inputs, lam=1.0), inputs)
    mixed = objective.mix(inputs)
    torch.testing.assert_close(mixed.sum(1), torch.ones(n))
