"""Objectives: from a model and a batch to the loss of one training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from metrix.core.choices import Choice
from metrix.core.compute.derivatives import without_autocast
from metrix.core.compute.micro_batches import embed_alone
from metrix.core.distributed.ranks import ALONE, Batch, Ranks, gather_batch
from metrix.core.factors import register_generator
from metrix.core.labels import as_labels
from metrix.core.loss import AnyLabels, Loss, LossValue
from metrix.core.memory import CrossBatchMemory
from metrix.core.prefixes import WHOLE_ONLY, Prefixes
from metrix.core.relations import GradedLabels, Relation
from metrix.core.sets import Sets
from metrix.core.spaces import Space
from metrix.core.split_model import AnyModel
from metrix.core.tensors import as_tensor
from metrix.core.validation import at_least_float32, refuse_indices, refuse_unusable, unit, unusable_rows
from metrix.errors import InvalidInput, describe_value

if TYPE_CHECKING:
    from typing_extensions import Self


class StepNumbers(NamedTuple):
    """The numbers of one training step, on the host."""

    loss: float
    clean: float
    mixed: float
    left_out_clean: int  # anchors for which the clean loss is undefined
    left_out_mixed: int  # anchors without a mixing pair, or for which the mixed loss is undefined


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What one training step gives; call `loss.backward()`.

    Nothing here asks the device a question before `read`, or one of the two counts, is asked for.
    """

    loss: Tensor  # clean + w · mixed
    clean: Tensor
    mixed: Tensor
    embeddings: Tensor  # (n, d)
    mixup: str  # the mixup type of this step, or none
    pairs: str  # the kind of mixing pairs of this step, or none; all that are drawn from, in a compiled graph
    parts: Mapping[str, LossValue] = field(default_factory=dict)  # "clean loss" and "mixed loss": over which anchors
    of: Loss | None = None  # the loss, for its warnings
    prefixes: tuple[int, ...] = ()  # lengths of the prefixes of the embeddings whose losses are in these
    _numbers: list[StepNumbers] = field(init=False, repr=False, default_factory=list)

    def read(self) -> StepNumbers:
        """Losses and counts, in one transfer from the device; the first call also looks for what went wrong.

        Raises:
            EmbeddingError: embeddings are NaN, infinite or zero.
        """
        if not self._numbers:
            with torch.no_grad():
                self._numbers.append(self._transfer())
        return self._numbers[0]

    @property
    def left_out_clean(self) -> int:
        """Anchors for which the clean loss is undefined."""
        return self.read().left_out_clean

    @property
    def left_out_mixed(self) -> int:
        """Anchors without a mixing pair, or for which the mixed loss is undefined."""
        return self.read().left_out_mixed

    def _transfer(self) -> StepNumbers:
        x = at_least_float32(self.embeddings)
        whole, *shorter = (torch.linalg.vector_norm(x[:, :d], dim=1, keepdim=True) for d in (None, *self.prefixes))
        unusable = torch.stack([unusable_rows(norm).sum() for norm in (whole, *shorter)]).sum()
        counts = [x for part in self.parts.values() for x in (part.usable, part.anchors)]
        packed = [self.loss, self.clean, self.mixed, unusable, *counts]
        on_device = [x.detach() for x in packed if isinstance(x, Tensor)]
        dtype = self.loss.dtype if self.loss.dtype == torch.float64 else torch.float32
        values = iter(torch.stack([x.to(self.loss.device, dtype) for x in on_device]).tolist())
        numbers = [next(values) if isinstance(x, Tensor) else float(x) for x in packed]
        if numbers[3]:
            refuse_unusable(whole)
            for dim, norm in zip(self.prefixes, shorter, strict=True):
                refuse_unusable(norm, f"the first {dim} dimensions of embeddings")
        left_out = {"clean loss": 0, "mixed loss": 0}
        for name, usable, anchors in zip(self.parts, numbers[4::2], numbers[5::2], strict=True):
            left_out[name] = int(anchors - usable)
            if usable == 0 and self.of is not None:
                self.of.warn_unusable(int(anchors), name)
        return StepNumbers(numbers[0], numbers[1], numbers[2], left_out["clean loss"], left_out["mixed loss"])


class Objective(nn.Module):
    """Base class of everything that a training loop can minimise: a loss, with a mixing method or without."""

    loss: nn.Module
    generator: torch.Generator | None = None  # of all random choices; None: torch's default one
    ranks: Ranks = ALONE
    takes_memory = False  # whether past embeddings have a place in this objective
    takes_graded = False  # whether labels that are not one class have a place in this objective
    takes_matryoshka = False  # whether prefixes of the embeddings have a place in this objective
    prefixes: Prefixes = WHOLE_ONLY
    memory: CrossBatchMemory | None
    relation: Relation | None

    def __init__(self) -> None:
        super().__init__()
        self.register_module("memory", None)
        self.register_module("relation", None)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Generator):
            register_generator(value)
        super().__setattr__(name, value)

    def with_relation(self, relation: Relation) -> Self:
        """Let classes be positive to each other in degrees: labels stay integers, and the relation gives Y of two.

        Args:
            relation: `metrix.labels.Hierarchy`, `LabelSets` or `ClassMatrix`, of all classes.

        Returns:
            The objective itself.

        >>> from metrix import Metrix, labels, losses
        >>> objective = Metrix(losses.MultiSimilarity(), mixup="embed")
        >>> objective = objective.with_relation(labels.Hierarchy([0, 0, 1], weight=0.3))
        >>> loss = objective(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        """
        if not isinstance(relation, Relation):
            raise InvalidInput(
                "relation: expected a Hierarchy, LabelSets or ClassMatrix of metrix.labels, got "
                f"{type(relation).__name__}"
            )
        self._require_graded()
        self.relation = relation
        return self

    def _require_graded(self) -> None:
        name, loss = type(self).__name__, type(self.loss).__name__
        if not self.takes_graded:
            raise InvalidInput(
                f"labels: {name} takes one class for each example, not degrees: its mixed examples have labels of "
                "their own making; use Metrix or no mixup (Clean)"
            )
        if not isinstance(self.loss, Loss):
            raise InvalidInput(
                f"labels: {loss} takes one class for each example, not degrees: it is not of the generic form, whose "
                "sums are weighted by labels; choose a loss of Table 1, such as MultiSimilarity"
            )

    def with_memory(self, size: int, dim: int, after: int = 0) -> Self:
        """Add a cross-batch memory: embeddings of past batches become candidates too, without gradient.

        With embedding mixup they are also mixed; features and inputs are mixed within the batch only.

        Args:
            size: how many embeddings are kept, the most recent ones.
            dim: their dimension.
            after: the first steps that only fill the memory.

        Returns:
            The objective itself.

        >>> from metrix import Metrix, losses
        >>> objective = Metrix(losses.MultiSimilarity(), mixup="embed").with_memory(8192, dim=512)
        >>> objective.memory
        CrossBatchMemory(size=8192, dim=512, after=0)
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

    def with_matryoshka(self, dims: int | Sequence[int], weight: float = 1.0) -> Self:
        """Train prefixes of the embeddings too, so that the first numbers of an embedding can stand for it.

        The loss becomes that of the embeddings plus `weight` times that of each prefix, brought to unit norm. Mixing
        pairs and λ are the same for all of them.

        Args:
            dims: lengths of the prefixes; the whole, which is always trained, may be among them.
            weight: of each prefix; 1 is the sum of Matryoshka Representation Learning.

        Returns:
            The objective itself.

        >>> from metrix import Metrix, losses
        >>> objective = Metrix(losses.MultiSimilarity(), mixup="embed").with_matryoshka((2, 4))
        >>> loss = objective(torch.randn(4, 8), torch.tensor([0, 0, 1, 1]))
        """
        name, loss = type(self).__name__, type(self.loss).__name__
        if not self.takes_matryoshka:
            raise InvalidInput(f"matryoshka: expected the clean loss (Clean) or Metrix, got {name}")
        if getattr(self.loss, "of_one_dim", False):
            raise InvalidInput(
                f"matryoshka: expected a loss that compares embeddings of any dimension, got {loss}, whose centres "
                "have that of the whole; choose another one, such as ProxyAnchor or SubCenterArcFace"
            )
        self.prefixes = Prefixes.of(dims, weight)
        return self

    def sets_of(self, batch: Batch) -> Sets:
        """Anchors, positives and negatives of a gathered batch, and the prefixes that are trained."""
        assert isinstance(self.loss, Loss), "a loss of the generic form has sets"
        sets = self.loss.sets(unit(batch.embeddings), batch.labels, batch.division)
        sets.prefixes = self.prefixes.within(sets.examples.shape[1])
        return sets

    def extend(self, sets: Sets) -> Sets:
        """The sets of a batch, with the embeddings of the memory, if there is one, among the candidates."""
        return sets if self.memory is None else self.memory.extend(sets)

    def remember(self, sets: Sets) -> None:
        """Put the examples of a training batch into the memory, if there is one."""
        if self.memory is not None and self.training and torch.is_grad_enabled():
            self.memory.add(sets.examples.detach(), sets.on_host()[1])

    def across_ranks(self, group: Any = None, mix: str = "local") -> Self:
        """Compute the loss of the global batch of several processes from now on, each giving its part of it.

        Gradients averaged over the processes, as DistributedDataParallel does, are those of one process with the
        whole batch. Random choices are those of rank 0. Under torchrun:

            torch.distributed.init_process_group("gloo")
            objective = Metrix(losses.MultiSimilarity(), mixup="embed").across_ranks()

        Args:
            group: a process group of torch.distributed; None is the default one.
            mix: where the partners of mixed features and inputs come from: "local", the part of the process, or
                "global", all parts, whose features or inputs are then gathered too.

        Returns:
            The objective itself.
        """
        self.ranks = Ranks.join(group, mix)
        self.generator = self.ranks.agree_on(self.generator)
        loss: Any = self.loss
        if hasattr(loss, "generator"):  # a loss that draws
            loss.generator = self.ranks.agree_on(loss.generator)
        return self

    def gather(self, embeddings: Tensor, labels: AnyLabels) -> Batch:
        """Embeddings and labels of the global batch, from those of this process."""
        embeddings, given = as_tensor("embeddings", embeddings), as_labels(labels)
        if not isinstance(given, GradedLabels):
            batch = gather_batch(embeddings, given, self.ranks)
            return batch if self.relation is None else batch._replace(labels=GradedLabels(batch.labels, self.relation))
        self._require_graded()
        wider = "several processes" if not self.ranks.alone else "a memory" if self.memory is not None else None
        if self.relation is not None or wider is not None:
            raise InvalidInput(
                "labels: expected the number of a class for each example with "
                f"{wider or 'a relation of classes (with_relation)'}, got labels that are about one batch "
                f"({type(given.relation).__name__}); number the classes and describe them with with_relation"
            )
        return Batch(embeddings, given)

    def step(self, model: AnyModel, inputs: Tensor, labels: Tensor) -> StepOutput:
        """The loss of a batch (n, …) with labels (n,) for a model, ready for `loss.backward()`."""
        raise NotImplementedError

    def explain(self, model: AnyModel | None = None) -> str:
        """What will be computed with this model, in words.

        Raises:
            ModelError: the model cannot be trained with this objective.
        """
        raise NotImplementedError


AcceptedLosses = Literal["generic", "pairs", "proxies", "similarities"]
ACCEPTED_LOSSES: Mapping[AcceptedLosses, str] = {
    "generic": "every loss of the generic form (Table 1)",
    "pairs": "losses of pairs of examples",
    "proxies": "losses with one proxy per class",
    "similarities": "losses of pairs of examples, and recall-at-k",
}


@dataclass(frozen=True)
class Method(Choice):
    """A mixing method.

    Args:
        name, line, reference: as in every table.
        make: the objective, from a loss, the generator of random choices and some settings.
        settings: these settings, by the names of the objective's parameters and of the configuration's keys.
        losses: which losses it goes with.
        mixup: which mixup types it goes with.
        pairs: which kinds of mixing pairs it goes with.
        usual_loss: the loss it has in the paper's comparison.
        defaults: settings whose defaults are its own.
        fixed: settings that cannot be changed, and why.
        space: what `metrix tune` searches by default, by configuration key.
    """

    make: Callable[..., Objective]
    settings: Mapping[str, str]
    losses: AcceptedLosses
    mixup: tuple[str, ...]
    pairs: tuple[str, ...]
    usual_loss: str
    defaults: Mapping[str, Any]
    fixed: Mapping[str, str] = field(default_factory=dict)
    space: Space = field(default_factory=dict)


# Why some methods have no strength.
ONE_LOSS = "real and synthetic examples are in one loss"


class EmbeddingLoss(NamedTuple):
    """What an objective gives for embeddings alone."""

    loss: Tensor  # what to call backward on
    clean: Tensor
    over: LossValue | None = None  # over which anchors it is the mean


class EmbeddingObjective(Objective):
    """Base class of objectives that need nothing of a model but its embeddings."""

    mixup = "embed"
    kinds = "none"  # of mixing pairs

    def parts(self, embeddings: Tensor, labels: Tensor) -> EmbeddingLoss:
        """The loss of embeddings (n, d), which need not be normalised; autocast is off."""
        raise NotImplementedError

    def parts_of(self, batch: Batch) -> EmbeddingLoss:
        """The loss of a gathered batch. Here every process computes all of it; subclasses may divide the anchors."""
        return self.parts(batch.embeddings, batch.labels)

    def forward(self, embeddings: Tensor, labels: AnyLabels, indices_tuple: None = None) -> Tensor:
        """The loss of embeddings (n, d), which need not be normalised; used like a pytorch-metric-learning loss."""
        refuse_indices(indices_tuple)
        batch = self.gather(embeddings, labels)
        with without_autocast(batch.embeddings):
            return self.parts_of(batch).loss

    def step(self, model: AnyModel, inputs: Tensor, labels: AnyLabels) -> StepOutput:
        """The loss of a batch; a model without `features(x)` and `head(z)` is called itself to embed it."""
        embeddings = embed_alone(model, inputs)
        batch = self.gather(embeddings, labels)
        with without_autocast(batch.embeddings):
            loss, clean, over = self.parts_of(batch)
        parts, of = ({}, None) if over is None else ({"clean loss": over}, self.loss)
        mixed = loss.detach() - clean.detach()
        return StepOutput(
            *(loss, clean, mixed, embeddings, self.mixup, self.kinds, parts, of),  # type: ignore[arg-type]
            prefixes=self.prefixes.dims,
        )


class Clean(EmbeddingObjective):
    """A loss without mixup, as an objective.

    Args:
        loss: any module with `forward(embeddings, labels)`, of the generic form or not.

    >>> from metrix import losses
    >>> model = nn.Linear(8, 4)
    >>> out = Clean(losses.MultiSimilarity()).step(model, torch.randn(4, 8), torch.tensor([0, 0, 1, 1]))
    >>> out.loss.backward()
    >>> out.mixup
    'none'
    """

    mixup = "none"
    takes_memory = True
    takes_graded = True
    takes_matryoshka = True

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):
            raise InvalidInput(f"loss: expected a module with forward(embeddings, labels), got {describe_value(loss)}")
        self.loss = loss

    def parts(self, embeddings: Tensor, labels: AnyLabels) -> EmbeddingLoss:
        """The clean loss."""
        return self.parts_of(Batch(embeddings, labels))

    def parts_of(self, batch: Batch) -> EmbeddingLoss:
        """The clean loss; of one of the generic form, each process computes its own share of the anchors."""
        if not isinstance(self.loss, Loss):
            x = at_least_float32(as_tensor("embeddings", batch.embeddings))
            value = self.loss(x, batch.labels)
            prefixes = self.prefixes.within(x.shape[1]) if self.prefixes.dims else WHOLE_ONLY
            for dim in prefixes.dims:
                value = value + prefixes.weight * self.loss(x[:, :dim], batch.labels)
            return EmbeddingLoss(value, value)
        sets = self.sets_of(batch)
        found = self.loss.clean(self.extend(sets))
        self.remember(sets)
        return EmbeddingLoss(found.value, found.value, found)

    def explain(self, model: AnyModel | None = None) -> str:
        """That there is no mixup."""
        return f"no mixup: {type(self.loss).__name__} of the clean batch."
