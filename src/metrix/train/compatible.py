"""Training that stays compatible with the model of an old run: see `metrix.core.influence`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from metrix.core.factors import draw
from metrix.core.influence import class_centres, draw_partners, influence_loss, mixed_influence_loss
from metrix.errors import InvalidInput
from metrix.model import Embedder
from metrix.model.saving import RUN_MODEL, WEIGHTS_FILE
from metrix.train.batches import ImageBatches
from metrix.train.config import Config
from metrix.train.distributed import Team
from metrix.train.frozen_network import FrozenNetwork, open_frozen_network

KEY = "compatible_with"


class Influence:
    """What the old model says of a batch, weighted; it is no module, so that nothing trains or saves the old network.

    Args:
        old: the old network, frozen.
        digest: (32,) of its weights.
        weight: of the influence loss.
        strength: of its mixed part; 0 for none.
        alpha: λ ~ Beta(alpha, alpha).
        generator: of λ and of what is mixed.
    """

    def __init__(
        self,
        old: FrozenNetwork,
        digest: Tensor,
        weight: float,
        strength: float,
        alpha: float,
        generator: torch.Generator,
    ) -> None:
        self.old, self.digest, self.generator = old, digest, generator
        self.weight, self.strength, self.alpha = weight, strength, alpha
        self.centres = torch.empty(0)

    def __call__(self, inputs: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The weighted influence loss of a batch."""
        found = influence_loss(embeddings, labels, self.centres)
        if self.strength > 0:
            partners = draw_partners(labels, self.generator)
            lam = draw((len(labels),), self.alpha, self.generator, torch.device("cpu"), torch.float32)
            mixed = mixed_influence_loss(embeddings, labels, self.centres, self.old(inputs), partners, lam)
            found = found + self.strength * mixed
        return self.weight * found

    def find_centres(self, batches: ImageBatches, team: Team) -> None:
        """Embed the training images by the old network; draws no random number."""
        with torch.random.fork_rng(devices=[]):
            vectors = batches.embed(batches.part, team.device, self.old)
        self.centres = class_centres(vectors, batches.part.labels, batches.part.num_classes).to(team.device)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {"centres": self.centres.cpu(), "digest": self.digest}

    def load(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Continue with what `tensors` gave; an error if the old run has another model now."""
        if not torch.equal(tensors["digest"], self.digest):
            raise InvalidInput(
                f"{KEY}: expected the model that training began with, got another in the same place; restore it, or "
                "start a new run"
            )
        self.centres = tensors["centres"].to(device)


def build_influence(config: Config, embedder: Embedder, generator: torch.Generator) -> Influence | None:
    """The influence of the old model that a configuration names; None if it names none.

    Raises:
        InvalidInput: there is no such run, its embeddings have another length, or something else is trained with that
            gives the old network no images.
    """
    train = config.train
    if train.compatible_with is None:
        for key in ("compatible_weight", "compatible_strength"):
            if getattr(train, key) != (default := type(train).model_fields[key].default):
                raise InvalidInput(f"{key}: expected {default} without {KEY}, got {getattr(train, key)}; name the run")
        return None
    if config.model.views > 0:
        raise InvalidInput(f"{KEY}: expected views=0, as the old model needs images, got {config.model.views}")
    if config.distil.teacher is not None:
        raise InvalidInput(f"{KEY}: expected no teacher with it, got {config.distil.teacher}; leave one out")
    if train.scheme != "none":
        raise InvalidInput(f"{KEY}: expected scheme none, got {train.scheme}, which trains slices of the embedding")
    old = open_frozen_network(Path(train.compatible_with), KEY, embedder, train.micro_batch)
    if old.dim != config.model.dim:
        raise InvalidInput(
            f"dim: expected {old.dim}, as {train.compatible_with} has, got {config.model.dim}: embeddings of two "
            f"lengths cannot be compatible; give --dim {old.dim}"
        )
    weights = Path(train.compatible_with) / RUN_MODEL / WEIGHTS_FILE
    digest = torch.frombuffer(bytearray(hashlib.sha256(weights.read_bytes()).digest()), dtype=torch.uint8)
    return Influence(old, digest, train.compatible_weight, train.compatible_strength, config.mixing.alpha, generator)
