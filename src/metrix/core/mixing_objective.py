"""What objectives share that mix inputs, features or embeddings: a step is the clean loss plus w times a mixed loss."""

from __future__ import annotations

import torch
from torch import Tensor

from metrix.core.compute.micro_batches import embed, without_micro_batches
from metrix.core.distributed.ranks import Batch
from metrix.core.loss import AnyLabels, Loss
from metrix.core.mixup import MIXUP_TYPES
from metrix.core.objective import Objective, StepOutput
from metrix.core.sets import Sets
from metrix.core.split_model import AnyModel, SplitModel, check_model
from metrix.core.validation import refuse_indices, unit
from metrix.errors import InvalidInput


class MixingObjective(Objective):
    """Base class of objectives with a mixed loss beside the clean one, of any mixup type."""

    loss: Loss
    strength: float  # w of eq. loss-final

    @property
    def mixup_types(self) -> tuple[str, ...]:
        """The mixup types, one of which a step has."""
        raise NotImplementedError

    def draw_step(self) -> tuple[str, str]:
        """The mixup type and the kind of mixing pairs of a step."""
        raise NotImplementedError

    def mixed_of(
        self, model: SplitModel | None, source: Tensor, batch: Batch, sets: Sets, mixup: str, kind: str
    ) -> tuple[Tensor, int]:
        """The mixed loss of a step, and how many anchors were left out.

        `source` are the inputs or features of this process, whichever are mixed, or the embeddings of `sets`.
        """
        raise NotImplementedError

    def forward(self, embeddings: Tensor, labels: AnyLabels, indices_tuple: None = None) -> Tensor:
        """The loss of embeddings alone, for embedding mixup.

        Args:
            embeddings: (n, d); they need not be normalised.
            labels: (n,), integers, names of classes, or, where the objective takes them, labels in degrees
                (`metrix.labels`).
            indices_tuple: always None; it is there because pytorch-metric-learning's losses have it.

        Returns:
            The clean loss plus `strength` times the mixed loss, a scalar.
        """
        if any(MIXUP_TYPES[name].mixes != "embeddings" for name in self.mixup_types):
            raise InvalidInput(
                f"mixup={self.mixup_types} needs the model: call objective.step(model, inputs, labels), or choose "
                "mixup='embed', which needs only embeddings"
            )
        refuse_indices(indices_tuple)
        return self._step(None, None, None, embeddings, labels).loss

    def step(self, model: AnyModel, inputs: Tensor, labels: AnyLabels) -> StepOutput:
        """The loss of a batch, with any mixup type.

        Args:
            model: has `features(x)` and `head(z)`, as `metrix.Embedder` and `metrix.split(module, at=LAYER)` do.
            inputs: (n, …), what `model.features` takes.
            labels: (n,), as in `forward`.

        Returns:
            The loss to call `backward()` on, its two parts, the embeddings, and what was drawn.
        """
        split = check_model(model)
        mixes_features = any(MIXUP_TYPES[name].mixes == "features" for name in self.mixup_types)
        features, embeddings = embed(split, inputs, keep_features=mixes_features and self.strength > 0)
        return self._step(without_micro_batches(split), inputs, features, embeddings, labels)

    def _step(
        self,
        model: SplitModel | None,
        inputs: Tensor | None,
        features: Tensor | None,
        embeddings: Tensor,
        labels: AnyLabels,
    ) -> StepOutput:
        """eq. loss-final: the clean loss, then the mixed loss of what a mixup type of the step mixes."""
        mixup, kind = self.draw_step()
        batch = self.gather(embeddings, labels)
        with torch.autocast(batch.embeddings.device.type, enabled=False):
            own = self.sets_of(batch)
            sets = self.extend(own)
            self.remember(own)
            clean, left_out_clean = self.loss.clean(sets)
        mixed, left_out_mixed = torch.zeros_like(clean), 0
        if self.strength > 0:
            mixes = MIXUP_TYPES[mixup].mixes
            sets = sets if mixes == "embeddings" else own  # a memory has no features and no inputs
            source = {"inputs": inputs, "features": features, "embeddings": sets.examples}[mixes]
            assert source is not None, "inputs are given, and features kept, where they are mixed"
            mixed, left_out_mixed = self.mixed_of(model, source, batch, sets, mixup, kind)
        loss = clean + self.strength * mixed
        return StepOutput(loss, clean, mixed, embeddings, mixup, kind, left_out_clean, left_out_mixed)

    def sets_of(self, batch: Batch) -> Sets:
        """Anchors, positives and negatives of a gathered batch."""
        return self.loss.sets(unit(batch.embeddings), batch.labels, batch.division)
