"""An objective is a loss and the way it is trained: one step, from a model and a batch to a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from metrix.core.choices import Choice
from metrix.core.compute.micro_batches import embed
from metrix.core.distributed.ranks import ALONE, Batch, Ranks, gather_batch
from metrix.core.loss import Loss
from metrix.core.memory import CrossBatchMemory
from metrix.core.sets import Sets
from metrix.core.split_model import AnyModel, check_model, is_split
from metrix.core.validation import at_least_float32, unit
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class StepOutput:
    """What one training step gives; `loss` is what to call backward on."""

    loss: Tensor  # clean + w · mixed
    clean: Tensor
    mixed: Tensor
    embeddings: Tensor  # (n, d)
    mixup: str  # the mixup type of this step, or none
    pairs: str  # the kind of mixing pairs of this step, or none
    left_out_clean: int  # anchors for which the clean loss is undefined
    left_out_mixed: int  # anchors without a mixing pair, or for which the mixed loss is undefined


class Objective(nn.Module):
    """Base of all that a loop can train: a loss with a mixing method, or without one."""

    loss: nn.Module
    generator: torch.Generator | None = None  # of all random choices; None: torch's default one
    ranks: Ranks = ALONE
    takes_memory = False  # whether past embeddings have a place in this objective
    memory: CrossBatchMemory | None

    def __init__(self) -> None:
        super().__init__()
        self.register_module("memory", None)

    def with_memory(self, size: int, dim: int, after: int = 0) -> Self:
        """From now on the last `size` embeddings of past batches are candidates too, without gradient.

        Embeddings of dimension `dim` go in with every training step, and count after the first `after` steps.
        With embedding mixup they are also mixing partners; mixed features and inputs are those of the batch.

        >>> objective = Metrix(losses.MultiSimilarity(), mixup="embed").with_memory(8192, dim=512)
        """
        name, loss = type(self).__name__, type(self.loss).__name__
        if not self.takes_memory:
            raise InvalidInput(f"memory: expected the clean loss (Clean) or Metrix, got {name}")
        if not isinstance(self.loss, Loss):
            raise InvalidInput(
                "memory: expected a loss of Table 1 whose positives and negatives are examples, got "
                f"{loss}, which has no set of candidates to extend"
            )
        if self.loss.candidate_role == "proxies":
            raise InvalidInput(
                "memory: expected a loss whose positives and negatives are examples, such as multi-similarity, got "
                f"{loss}, whose positives and negatives are proxies"
            )
        self.memory = CrossBatchMemory(size, dim, after)
        return self

    def extend(self, sets: Sets) -> Sets:
        """The sets of a batch with the memory among the candidates, if there is one."""
        return sets if self.memory is None else self.memory.extend(sets)

    def remember(self, sets: Sets) -> None:
        """Put the examples of a training batch into the memory, if there is one."""
        if self.memory is not None and self.training and torch.is_grad_enabled():
            self.memory.add(sets.examples.detach(), sets.example_labels)

    def across_ranks(self, group: Any = None, mix: str = "local") -> Self:
        """From now on the loss of the global batch of all processes of a group of torch.distributed.

        Each process gives its own part of the batch; gradients averaged over the processes, as
        DistributedDataParallel does, are those of one process with the whole batch. Random choices are those
        of rank 0. `mix` says where the partners of mixed features and inputs come from: "local", the part of
        the process, or "global", all parts, whose features or inputs are then gathered too.

        >>> objective = Metrix(losses.MultiSimilarity(), mixup="embed").across_ranks()   # under torchrun
        """
        self.ranks = Ranks.join(group, mix)
        self.generator = self.ranks.agree_on(self.generator)
        loss: Any = self.loss
        if hasattr(loss, "generator"):  # a loss that draws
            loss.generator = self.ranks.agree_on(loss.generator)
        return self

    def gather(self, embeddings: Tensor, labels: Tensor) -> Batch:
        """Embeddings and labels of the global batch: the one place where parts of a batch come together."""
        return gather_batch(embeddings, labels, self.ranks)

    def step(self, model: AnyModel, inputs: Tensor, labels: Tensor) -> StepOutput:
        """One training step of a model on a batch."""
        raise NotImplementedError

    def explain(self, model: AnyModel | None = None) -> str:
        """What is computed with this model; an error here says that model and objective do not fit."""
        raise NotImplementedError


class MixingSettings(Protocol):
    """What a configuration says about mixing; each mixing method reads what it has a use for."""

    @property
    def mixup(self) -> tuple[str, ...]:
        """Mixup types."""

    @property
    def pairs(self) -> tuple[str, ...]:
        """Kinds of mixing pairs."""

    @property
    def strength(self) -> float:
        """w of eq. loss-final."""

    @property
    def alpha(self) -> float:
        """λ ~ Beta(alpha, alpha)."""

    @property
    def hard_negatives(self) -> tuple[int | None, ...] | None:
        """How many negatives of an anchor are mixed, for each mixup type; None: as the method has it."""

    @property
    def lam_per(self) -> str:
        """One λ for each pair, or for each batch."""

    @property
    def instance_temperature(self) -> float | None:
        """T of a cross-entropy over instances, if that is the loss of mixed examples."""


AcceptedLosses = Literal["generic", "pairs", "proxies"]
ACCEPTED_LOSSES: Mapping[AcceptedLosses, str] = {
    "generic": "every loss of the generic form (Table 1)",
    "pairs": "losses of pairs of examples",
    "proxies": "losses with proxies",
}


@dataclass(frozen=True)
class Method(Choice):
    """A mixing method.

    build       makes the objective from a loss, the settings and the generator of random choices
    losses      which losses it goes with
    mixup       which mixup types
    pairs       which kinds of mixing pairs
    usual_loss  the loss it has in the paper's comparison
    defaults    its own defaults of settings
    fixed       settings that cannot be changed, and why
    """

    build: Callable[[nn.Module, MixingSettings, torch.Generator | None], Objective]
    losses: AcceptedLosses
    mixup: tuple[str, ...]
    pairs: tuple[str, ...]
    usual_loss: str
    defaults: Mapping[str, Any]
    fixed: Mapping[str, str] = field(default_factory=dict)


# Why some methods have no strength.
ONE_LOSS = "real and synthetic examples are in one loss"


class Parts(NamedTuple):
    """What an objective gives for embeddings alone."""

    loss: Tensor  # what to call backward on
    clean: Tensor
    left_out: int  # anchors for which the loss is undefined


class EmbeddingObjective(Objective):
    """Base of objectives that need nothing of a model but its embeddings."""

    mixup = "embed"
    kinds = "none"  # of mixing pairs

    def parts(self, embeddings: Tensor, labels: Tensor) -> Parts:
        """The loss of embeddings (n, d), which need not be normalised; autocast is off."""
        raise NotImplementedError

    def parts_of(self, batch: Batch) -> Parts:
        """The loss of a gathered batch; each of several processes computes all of it, unless it knows better."""
        return self.parts(batch.embeddings, batch.labels)

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: None = None) -> Tensor:
        """The loss of embeddings (n, d), which need not be normalised: where a PML loss stood."""
        if indices_tuple is not None:
            raise InvalidInput("indices_tuple was given: all pairs of the batch are used, leave the miner out")
        batch = self.gather(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.parts_of(batch).loss

    def step(self, model: AnyModel, inputs: Tensor, labels: Tensor) -> StepOutput:
        """One training step; without `features(x)` and `head(z)`, the model itself embeds."""
        if is_split(model):
            _, embeddings = embed(check_model(model), inputs, keep_features=False)
        else:
            assert isinstance(model, nn.Module), "a model has features and head, or is a module that embeds"
            embeddings = model(inputs)
        batch = self.gather(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            loss, clean, left_out = self.parts_of(batch)
        mixed = loss.detach() - clean.detach()
        return StepOutput(loss, clean, mixed, embeddings, self.mixup, self.kinds, left_out, 0)


class Clean(EmbeddingObjective):
    """Any loss of embeddings and labels, without mixup.

    The loss may be of the generic form or not: a module with `forward(embeddings, labels)`.

    >>> out = Clean(losses.MultiSimilarity()).step(model, images, labels)
    >>> out.loss.backward()
    """

    mixup = "none"
    takes_memory = True

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):
            raise InvalidInput(f"loss: expected a module with forward(embeddings, labels), got {loss!r}")
        self.loss = loss

    def parts(self, embeddings: Tensor, labels: Tensor) -> Parts:
        """The loss itself."""
        return self.parts_of(Batch(embeddings, labels))

    def parts_of(self, batch: Batch) -> Parts:
        """The loss itself; one of the generic form with the own share of the anchors only."""
        if isinstance(self.loss, Loss):
            sets = self.loss.sets(unit(batch.embeddings), batch.labels, batch.division)
            value, left_out = self.loss.clean(self.extend(sets))
            self.remember(sets)
        else:
            value, left_out = self.loss(at_least_float32(batch.embeddings), batch.labels), 0
        return Parts(value, value, left_out)

    def explain(self, model: AnyModel | None = None) -> str:
        """There is nothing to explain about a clean loss."""
        return f"no mixup: {type(self.loss).__name__} of the clean batch."
