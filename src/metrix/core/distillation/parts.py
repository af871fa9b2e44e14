"""What of a teacher's embeddings a student is trained to have, and how much each part weighs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metrix.core.choices import Choice, by_name
from metrix.core.compute.derivatives import without_autocast
from metrix.core.distillation.relational import Compared, compare_angles, compare_directions, compare_distances
from metrix.core.settings import check_weight
from metrix.core.tensors import as_tensor
from metrix.core.validation import unit
from metrix.errors import InvalidInput, ShapeError, check_integer, unknown_choice


@dataclass(frozen=True)
class DistillationPart(Choice):
    """A loss of a student's embeddings against the teacher's.

    Args:
        name, line, reference: as in every table.
        compare: from unit embeddings of student and teacher to the loss.
        weight: how much it weighs by default.
        one_space: whether both embeddings must be in one space.
    """

    compare: Callable[[Tensor, Tensor], Compared]
    weight: float
    one_space: bool = False


RKD = "Park et al., CVPR 2019"
DISTILLATION: dict[str, DistillationPart] = by_name(
    DistillationPart("distance", "distances of pairs, as multiples of their mean", RKD, compare_distances, 25.0),
    DistillationPart("angle", "angles of triplets", RKD, compare_angles, 50.0),
    DistillationPart(
        "cosine",
        "1 - cosine to the teacher's embedding",
        "after Romero et al., ICLR 2015",
        compare_directions,
        10.0,
        one_space=True,
    ),
)


class DistillationLoss(nn.Module):
    """The loss of a student's embeddings against those of its teacher: Σ weight · part.

    Distances and angles do not depend on the space of the teacher; cosines do. If the embeddings have different
    lengths, a linear map from the student's to the teacher's is learnt with the student; it is used for the cosines
    only, and not needed any more once the student is trained.

    Args:
        weights: of parts of the table `DISTILLATION`, by name; others have their defaults, 0 leaves one out.
        dims: the lengths of the student's and the teacher's embeddings, if they differ.
        labelled: the loss of labelled examples that is trained with it, if one is (see `Distil`).

    >>> loss = DistillationLoss({"cosine": 0})
    >>> student, teacher = torch.randn(8, 4, requires_grad=True), torch.randn(8, 16)
    >>> loss(student, teacher).backward()
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        dims: tuple[int, int] | None = None,
        labelled: nn.Module | None = None,
    ) -> None:
        super().__init__()
        for name in weights or {}:
            if name not in DISTILLATION:
                raise unknown_choice("distillation loss", name, DISTILLATION)
        chosen = {name: part.weight for name, part in DISTILLATION.items()} | dict(weights or {})
        self.weights = {name: check_weight(f"{name} weight", value) for name, value in chosen.items()}
        self.map: nn.Linear | None = None
        if dims is not None and dims[0] != dims[1] and self.needs_one_space:
            own, wanted = (check_integer("dims", length, least=1) for length in dims)
            self.map = nn.Linear(own, wanted, bias=False)
        self.labelled = labelled

    @property
    def needs_one_space(self) -> bool:
        """Whether a part is compared that needs both embeddings in one space."""
        return any(DISTILLATION[name].one_space and weight > 0 for name, weight in self.weights.items())

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The loss of embeddings (n, d) and (n, d'), which need not be normalised; the teacher's get no gradient."""
        return self.compare(student, teacher).value

    def compare(self, student: Tensor, teacher: Tensor) -> Compared:
        """The loss, and over how many pairs, triplets and examples it is; 0 if there is nothing to compare."""
        student, teacher = as_tensor("student", student), as_tensor("teacher", teacher)
        with without_autocast(student):
            s, t = unit(student), unit(teacher.detach())
            if len(s) != len(t):
                raise ShapeError(
                    f"expected as many embeddings of the teacher as of the student, {len(s)}, got {len(t)}"
                )
            t = t.to(s.dtype)
            value, terms = s.sum() * 0.0, torch.zeros((), device=s.device)
            for name, weight in self.weights.items():
                part = DISTILLATION[name]
                if weight == 0:
                    continue
                found = part.compare(self._bring_over(s, t) if part.one_space else s, t)
                value, terms = value + weight * found.value, terms + found.terms
            return Compared(value, terms)

    def _bring_over(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The student's embeddings in the space of the teacher's."""
        if self.map is not None:
            return unit(student @ self.map.weight.T.to(student.dtype))
        if student.shape[1] != teacher.shape[1]:
            raise InvalidInput(
                f"dims: expected embeddings of one length to compare by cosine, got {student.shape[1]} of the student "
                f"and {teacher.shape[1]} of the teacher; give dims=({student.shape[1]}, {teacher.shape[1]}) to learn a "
                "linear map, or leave the cosine out (weight 0)"
            )
        return student

    def extra_repr(self) -> str:
        """The weights."""
        return ", ".join(f"{name}={weight:g}" for name, weight in self.weights.items())
