from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from metrix.core.distillation import DISTILLATION, DistillationLoss
from tests.parity.literal_distillation import LITERAL

BATCHES = (
    "random",
    "two",
    "one",
    "three",
    "duplicates",
    "all_alike",
    "collinear",
    "opposed",
    "far_and_near",
    "teacher_duplicates",
)


def batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of a student (n, 5) and a teacher (n, 7), not normalised, in float64."""
    n = {"two": 2, "one": 1, "three": 3}.get(name, 7)
    generator = torch.Generator().manual_seed(3)
    student, teacher = (torch.randn(n, d, generator=generator, dtype=torch.float64) for d in (5, 7))
    if name == "duplicates":
        student[1], student[4] = student[0], student[0]
        teacher[4] = teacher[0]
    if name == "teacher_duplicates":
        teacher[3], teacher[6] = teacher[2], teacher[2]
    if name == "all_alike":
        student[:] = student[0]
    if name == "collinear":  # after normalisation, on one arc; the teacher's two points on one ray are one point
        student = torch.outer(torch.linspace(-1, 2, n, dtype=torch.float64), student[0]) + student[1]
        teacher[1] = 2.0 * teacher[0]
    if name == "opposed":
        student[3:] = -student[:4]
    if name == "far_and_near":
        student[1] = student[0] + 1e-2 * student[1]
    return student, teacher


def only(part: str) -> dict[str, float]:
    return {name: float(name == part) for name in DISTILLATION}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("part", DISTILLATION)
def test_each_part_is_its_literal_loop(name: str, part: str) -> None:
    student, teacher = batch(name)
    teacher = teacher[:, :5] if DISTILLATION[part].one_space else teacher
    student.requires_grad_()
    unit = F.normalize(student, dim=1)
    expected = LITERAL[part](unit, F.normalize(teacher, dim=1))
    found = DistillationLoss(only(part))(student, teacher)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    wanted = torch.autograd.grad(expected, student)[0]
    gradient = torch.autograd.grad(found, student)[0]
    assert bool(torch.isfinite(gradient).all())
    torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-9)
