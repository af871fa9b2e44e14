"""Distil: a student is trained to embed a batch, and mixtures of it, as its teacher does."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metrix.core.compute.derivatives import without_autocast
from metrix.core.compute.micro_batches import embed_alone
from metrix.core.distillation.parts import DistillationLoss
from metrix.core.factors import check_drawing, draw
from metrix.core.objective import Clean, Objective, StepOutput
from metrix.core.settings import check_generator, check_weight
from metrix.core.split_model import AnyModel
from metrix.errors import InvalidInput, MetrixWarning, describe_value, unknown_choice

if TYPE_CHECKING:
    from typing_extensions import Self

MIXUP = ("input", "none")


class Distil(Objective):
    """Trains a student to embed as a frozen teacher does; labels are optional.

        loss = L(X) + strength · L(X̃) + label_weight · labelled loss of X

    L is the distillation loss of the student's and the teacher's embeddings, X the batch and X̃ its mixtures, each
    example with another one:  x̃ = λ x + (1-λ) x', λ ~ Beta(alpha, alpha). Both networks see the same mixture, so that
    it needs no label.

    Args:
        teacher: maps a batch of inputs to embeddings (n, d'); a module is put into evaluation mode, and neither trained
            nor saved with the objective.
        weights: of the parts of the distillation loss: distance, angle and cosine.
        dims: the lengths of the student's and the teacher's embeddings, if they differ: see `DistillationLoss`.
        mixup: "input" or "none".
        strength: weight of the mixtures.
        alpha: λ ~ Beta(alpha, alpha); 1 draws all mixtures alike.
        lam_per: "pair" draws one λ for each mixture, "batch" one for each step.
        labelled: a loss of the labelled examples, those with a label of 0 or more.
        label_weight: its weight.
        generator: of all random choices; None is torch's default one.

    >>> student, teacher = nn.Linear(8, 4), nn.Linear(8, 4)
    >>> out = Distil(teacher).step(student, torch.randn(6, 8))
    >>> out.loss.backward()
    >>> out.mixup
    'input'
    """

    def __init__(
        self,
        teacher: Callable[[Tensor], Tensor],
        weights: Mapping[str, float] | None = None,
        dims: tuple[int, int] | None = None,
        mixup: str = "input",
        strength: float = 1.0,
        alpha: float = 1.0,
        lam_per: str = "pair",
        labelled: nn.Module | None = None,
        label_weight: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not callable(teacher):
            raise InvalidInput(f"teacher: expected a network, from inputs to embeddings, got {describe_value(teacher)}")
        if mixup not in MIXUP:
            raise unknown_choice("mixup", mixup, MIXUP)
        check_drawing(alpha, lam_per)
        self.label_weight = check_weight("label_weight", label_weight)
        if (labelled is None) != (self.label_weight == 0):
            given = "none" if labelled is None else "one"
            raise InvalidInput(
                f"labelled: expected a loss and a label_weight > 0, or neither, got {given} with {label_weight:g}"
            )
        self._teacher = (teacher.eval() if isinstance(teacher, nn.Module) else teacher,)  # in a tuple: no submodule
        self.labelled = None if labelled is None else Clean(labelled)
        self.loss: DistillationLoss = DistillationLoss(weights, dims, labelled)
        if labelled is None and not any(self.loss.weights.values()):
            raise InvalidInput("weights: expected one that is not 0, got none; there would be nothing to train for")
        self.mixup, self.alpha, self.lam_per = mixup, float(alpha), lam_per
        self.strength, self.generator = check_weight("strength", strength), check_generator(generator)
        self._warned = False

    @property
    def teacher(self) -> Callable[[Tensor], Tensor]:
        """The network that is imitated."""
        return self._teacher[0]

    def across_ranks(self, group: Any = None, mix: str = "local") -> Self:
        """As `Objective.across_ranks`; mixtures are of the examples of one process."""
        if self.labelled is not None:
            self.labelled.across_ranks(group)
        return super().across_ranks(group, "local")

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The distillation loss of embeddings alone, (n, d) and (n, d'), without mixup and labels."""
        return self._compare(student, teacher)

    def step(self, model: AnyModel, inputs: Tensor, labels: Tensor | None = None) -> StepOutput:
        """The loss of a batch (n, …) for a student.

        Args:
            model: has `features(x)` and `head(z)`, or is a module that embeds.
            inputs: (n, …), of the student and the teacher.
            labels: (n,), of the labelled loss; examples with a negative one are left out of it.
        """
        student = embed_alone(model, inputs)
        clean = self._compare(student, self._teach(inputs))
        if self.labelled is not None:
            clean = clean + self.label_weight * self._of_labels(student, labels)
        if self.mixup == "none" or self.strength == 0:
            return StepOutput(clean, clean, torch.zeros_like(clean), student, "none", "none")
        mixtures = self.mix(inputs)
        mixed = self._compare(embed_alone(model, mixtures), self._teach(mixtures))
        return StepOutput(clean + self.strength * mixed, clean, mixed, student, "input", "none")

    def mix(self, inputs: Tensor, lam: Tensor | float | None = None) -> Tensor:
        """Each input of a batch (n, …) mixed with another one; λ (n,) is drawn unless it is given."""
        n, generator = len(inputs), self.generator
        if not self.ranks.alone:
            generator = self.ranks.own_generator(generator)
        at = torch.device("cpu") if generator is None else generator.device
        order = torch.randperm(n, generator=generator, device=at).to(inputs.device)
        partners = torch.empty_like(order).scatter_(0, order, order.roll(1))  # nobody's own
        if lam is None:
            shape = (n,) if self.lam_per == "pair" else ()
            lam = draw(shape, self.alpha, generator, inputs.device, inputs.dtype)
        share = torch.as_tensor(lam, dtype=inputs.dtype, device=inputs.device).expand(n)
        share = share.reshape(n, *(1 for _ in inputs.shape[1:]))
        return share * inputs + (1.0 - share) * inputs.index_select(0, partners)

    @torch.no_grad()
    def _teach(self, inputs: Tensor) -> Tensor:
        return self.teacher(inputs)

    def _compare(self, student: Tensor, teacher: Tensor) -> Tensor:
        if not self.ranks.alone:
            division = self.ranks.division(len(student), student.device)
            student, teacher = division.gather(student), division.gather(teacher)
        found = self.loss.compare(student, teacher)
        if found.value.device.type == "cpu" and any(self.loss.weights.values()) and not int(found.terms):
            self._warn_of_nothing(len(student))
        return found.value

    def _of_labels(self, student: Tensor, labels: Tensor | None) -> Tensor:
        assert self.labelled is not None
        if labels is None:
            raise InvalidInput(
                "labels: expected some with a labelled loss, got none; set label_weight=0 without labels"
            )
        rows = (labels >= 0).nonzero().flatten()
        batch = self.labelled.gather(student.index_select(0, rows.to(student.device)), labels[rows.to(labels.device)])
        with without_autocast(student):
            return self.labelled.parts_of(batch).loss

    def _warn_of_nothing(self, n: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"Distil: nothing can be compared in a batch of {n}, whose loss is 0; distances need two examples at "
                "different places, angles three (this is said once)",
                MetrixWarning,
                stacklevel=3,
            )

    def explain(self, model: AnyModel | None = None) -> str:
        """What is computed, in words."""
        parts = ", ".join(f"{name} × {weight:g}" for name, weight in self.loss.weights.items() if weight)
        mixed = "no mixup" if self.mixup == "none" else f"input mixup, λ ~ Beta({self.alpha:g}, {self.alpha:g})"
        labels = "" if self.labelled is None else f", {type(self.loss.labelled).__name__} × {self.label_weight:g}"
        return f"distillation: {parts or 'nothing'}{labels}; {mixed}."

    def extra_repr(self) -> str:
        """The settings."""
        names = ("mixup", "strength", "alpha", "lam_per", "label_weight")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
