"""Notice an embedding that collapses: positives and negatives become equally similar, and nothing is learnt any more.

Every 10th step measures, on up to 256 embeddings of the batch,

    gap          mean similarity of positives - mean similarity of negatives
    separation   gap / √((var⁺ + var⁻) / 2), which does not depend on the scale of similarities

A network from random weights begins with a small gap: all images look alike to it, although their order may be a good
one. So a small gap alone is no collapse. It is one if, over ten measurements in a row, the mean gap is below 0.02 and
the mean separation is either below 70 % of what it was at the first step or below 0.2, where positives and negatives
cannot be told apart.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

EVERY = 10  # steps
AT_MOST = 256  # embeddings
WINDOW = 10  # measurements
GAP = 0.02
LOST = 0.7  # of the separation at the first step
NONE = 0.2  # a separation that is none


@torch.no_grad()
def measure_separation(embeddings: Tensor, labels: Tensor) -> Tensor | None:
    """Mean similarity of positives, of negatives, and their separation; None for a batch without one of both.

    The fourth number is the share of embeddings whose nearest other one is of their class.

    The result is on the device of the embeddings, which are not waited for; labels are on the host.

    >>> measure_separation(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))[:2]
    tensor([1., 0.])
    """
    f, y = F.normalize(embeddings[:AT_MOST].float(), dim=1), labels[:AT_MOST]
    same = y.unsqueeze(1) == y.unsqueeze(0)
    pairs = torch.stack([same.clone().fill_diagonal_(False), ~same]).flatten(1)  # (2, n²)  positives, negatives
    counts = pairs.sum(1)
    if int(counts.min()) < 2:
        return None
    weights = torch.cat([pairs / counts.unsqueeze(1), pairs / (counts - 1).unsqueeze(1)]).to(f.device)  # (4, n²)
    S = (f @ f.T).flatten()
    means = weights[:2] @ S
    spread = ((weights[2:] * (S - means.unsqueeze(1)).square()).sum() / 2).sqrt()
    # similarities that differ by rounding only have no separation
    separation = torch.where(spread > 1e-6, (means[0] - means[1]) / spread.clamp_min(1e-6), 0.0)
    nearest = S.view(len(f), -1).fill_diagonal_(-torch.inf).argmax(1)
    hits = same.to(f.device).gather(1, nearest.unsqueeze(1)).float().mean(0)
    return torch.cat([means, separation.unsqueeze(0), hits])


class SeparationProbe:
    """Measures the separation in every 10th training step."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Tensor | None:
        """The separation of the embeddings of a step (4,), if it is due and can be measured."""
        due = self.steps % EVERY == 0
        self.steps += 1
        if not due:
            return None
        labelled = (labels >= 0).nonzero().flatten()  # others have -1
        if len(labelled) < len(labels):
            embeddings, labels = embeddings.index_select(0, labelled.to(embeddings.device)), labels[labelled]
        return measure_separation(embeddings, labels)


@dataclass(config=ConfigDict(extra="forbid", strict=True))
class CollapseWatch:
    """What is known of the separation in a run; it is saved and restored with the progress of the run.

    first    separation at the first step
    recent   the last measurements
    noticed  what was found when the embedding collapsed, if it did
    """

    first: float | None = None
    recent: list[Annotated[list[float], Field(min_length=3, max_length=3)]] = field(default_factory=list)
    noticed: dict[str, Any] | None = None

    def add(self, measured: list[float], step: int, epoch: int) -> str | None:
        """Take a measurement; returns the warning if the embedding has collapsed, once in a run."""
        if self.first is None:
            self.first = measured[2]
        self.recent = [*self.recent, measured][-WINDOW:]
        if self.noticed is not None or not self.is_collapsed:
            return None
        positive, negative, separation = self._means()
        self.noticed = {
            "step": step,
            "epoch": epoch,
            "positive_similarity": round(positive, 4),
            "negative_similarity": round(negative, 4),
            "separation": round(separation, 3),
            "separation_at_first_step": round(self.first, 3),
        }
        return describe_collapse(self.noticed)

    @property
    def is_collapsed(self) -> bool:
        """Whether the last measurements are those of a collapsed embedding."""
        if len(self.recent) < WINDOW or self.first is None:
            return False
        positive, negative, separation = self._means()
        return positive - negative < GAP and (separation < LOST * self.first or separation < NONE)

    def to_dict(self) -> dict[str, Any] | None:
        """What the results of a run say: None without a collapse."""
        return None if self.noticed is None else {**self.noticed, "recovered": not self.is_collapsed}

    def _means(self) -> list[float]:
        return [sum(values) / len(values) for values in zip(*self.recent, strict=True)]


def describe_collapse(noticed: dict[str, Any]) -> str:
    """The warning, with its figures and what to do."""
    return (
        f"the embedding has collapsed by step {noticed['step']:,}: examples of one class have similarity "
        f"{noticed['positive_similarity']:.3f} to each other, examples of different classes "
        f"{noticed['negative_similarity']:.3f} (separation {noticed['separation']:.2f}, at the first step "
        f"{noticed['separation_at_first_step']:.2f}). Lower the learning rate (--lr), train the head alone first "
        "(--warmup-epochs 1), choose another loss (--loss multi-similarity), or start with --head-init whiten"
    )
