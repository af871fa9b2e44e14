from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from metrix import Clean, Distil, DistillationLoss, MicroBatched, losses
from metrix.core.distillation import DISTILLATION
from metrix.errors import ChoiceError, EmbeddingError, InvalidInput, MetrixWarning, ShapeError
from metrix.model.split import Split


def network(dim: int = 4, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(8, dim).double()


def inputs(n: int = 6) -> Tensor:
    return torch.randn(n, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_both_networks_see_the_same_mixture() -> None:
    seen: dict[str, list[Tensor]] = {"student": [], "teacher": []}

    class Noting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen["student"].append(x)
            return super().forward(x)

    def teacher(x: Tensor) -> Tensor:
        seen["teacher"].append(x)
        return x

    out = Distil(teacher, strength=0.5, generator=torch.Generator().manual_seed(2)).step(
        Noting(8, 8).double(), inputs()
    )
    assert [len(batches) for batches in seen.values()] == [2, 2]
    assert all(torch.equal(a, b) for a, b in zip(*seen.values(), strict=True))
    torch.testing.assert_close(out.loss, out.clean + 0.5 * out.mixed)
    assert not torch.equal(seen["teacher"][1], inputs())


def test_the_teacher_is_left_alone() -> None:
    teacher = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).double()
    objective = Distil(teacher, generator=torch.Generator())
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    objective.train()
    objective.step(network(), inputs()).loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in teacher.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    assert list(objective.parameters()) == []
    assert objective.state_dict() == {}


def test_labels_of_some_examples() -> None:
    labels = torch.tensor([0, 0, 1, 1, -1, -1])
    loss = losses.MultiSimilarity()
    objective = Distil(network(seed=1), mixup="none", labelled=loss, label_weight=2.0)
    student = network()
    without = Distil(network(seed=1), mixup="none").step(student, inputs()).loss
    own = Clean(loss).step(student, inputs()[:4], labels[:4]).loss
    torch.testing.assert_close(objective.step(student, inputs(), labels).loss, without + 2.0 * own)
    with pytest.raises(InvalidInput, match="labels: expected some with a labelled loss, got none"):
        objective.step(student, inputs())


def test_embeddings_of_another_length_go_through_a_map() -> None:
    objective = Distil(network(7, seed=1), dims=(4, 7), mixup="none")
    assert objective.loss.map is not None
    student = network()
    objective.double().step(student, inputs()).loss.backward()  # type: ignore[no-untyped-call]
    assert objective.loss.map.weight.grad is not None
    assert objective.loss.map.weight.shape == (7, 4)
    assert DistillationLoss({"cosine": 0}, dims=(4, 7)).map is None
    with pytest.raises(InvalidInput, match=r"got 4 of the student and 7 of the teacher; give dims=\(4, 7\)"):
        Distil(network(7, seed=1)).step(student, inputs())


def test_micro_batches_change_nothing() -> None:
    student = Split(network(5), nn.Linear(5, 4).double())
    found = []
    for model in (student, MicroBatched(student, 2)):
        student.zero_grad()
        objective = Distil(network(seed=1), generator=torch.Generator().manual_seed(4))
        out = objective.step(model, inputs())
        out.loss.backward()  # type: ignore[no-untyped-call]
        found.append([out.loss.detach(), *(p.grad.clone() for p in student.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_short_numbers(dtype: torch.dtype) -> None:
    student = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    student[3] = student[2]
    given = student.to(dtype).requires_grad_()
    loss = DistillationLoss()(given, inputs(12).to(dtype))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == torch.float32
    assert given.grad is not None
    assert bool(torch.isfinite(given.grad).all())


def test_a_batch_with_nothing_to_compare_is_said_once() -> None:
    objective = Distil(network(seed=1), {"cosine": 0}, mixup="none")
    with pytest.warns(MetrixWarning, match="nothing can be compared in a batch of 1"):
        out = objective.step(network(), inputs(1))
    assert out.loss.item() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective.step(network(), inputs(1))


def test_mistakes() -> None:
    for make, error, message in (
        (lambda: Distil(3), InvalidInput, "teacher: expected a network"),  # type: ignore[arg-type]
        (lambda: Distil(network(), {"cosin": 1}), ChoiceError, "did you mean 'cosine'"),
        (lambda: Distil(network(), {"cosine": -1}), InvalidInput, "cosine weight: expected a number ≥ 0, got -1"),
        (lambda: Distil(network(), dict.fromkeys(DISTILLATION, 0)), InvalidInput, "expected one that is not 0"),
        (lambda: Distil(network(), mixup="inputs"), ChoiceError, "did you mean 'input'"),
        (lambda: Distil(network(), alpha=0), InvalidInput, "alpha"),
        (lambda: Distil(network(), label_weight=1), InvalidInput, "labelled: expected a loss and a label_weight > 0"),
        (lambda: Distil(network(), generator=3), InvalidInput, "generator"),  # type: ignore[arg-type]
        (lambda: DistillationLoss()(inputs(3), inputs(2)), ShapeError, "as many embeddings of the teacher"),
        (lambda: DistillationLoss()(inputs(3) * float("nan"), inputs(3)), EmbeddingError, "NaN"),
        (lambda: DistillationLoss()(inputs(3), inputs(3) * 0), EmbeddingError, "zero norm"),
        (lambda: DistillationLoss()(inputs(3)[0], inputs(3)), ShapeError, "examples, dimensions"),
    ):
        with pytest.raises(error, match=message):
            make()


def test_it_says_what_it_computes() -> None:
    objective = Distil(network(), {"angle": 0}, alpha=0.2, labelled=losses.NCA(), label_weight=3.0)
    assert objective.explain() == "distillation: distance × 25, cosine × 10, NCA × 3; input mixup, λ ~ Beta(0.2, 0.2)."
