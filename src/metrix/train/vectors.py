"""Runs on precomputed vectors: the network that they need, and their standardisation."""

from __future__ import annotations

from typing import Any

from metrix.data import Dataset, Part
from metrix.errors import InvalidInput
from metrix.model import Embedder
from metrix.model.backbones import PRETRAINED
from metrix.model.mlp import MLP_BACKBONE
from metrix.train.config import Config, Model

POOL = "avg"  # of the single position of a vector, which is the vector itself


def vector_length(dataset: Dataset) -> int | None:
    """The length of the vectors of a dataset; None if it has images."""
    vectors = dataset.catalogue.vectors
    return None if vectors is None else int(vectors.shape[1])


def name_examples(config: Config) -> str:
    """What a run is trained on, as tables call it: images or vectors.

    >>> name_examples(Config())
    'images'
    """
    return "vectors" if config.model.backbone == MLP_BACKBONE else "images"


def fit_network(config: Config, dataset: Dataset) -> tuple[Config, str]:
    """The configuration with a network that takes the data, and a sentence if it is not the one asked for.

    Raises:
        InvalidInput: a network of images was asked for and the data are vectors, or the reverse
    """
    model, length = config.model, vector_length(dataset)
    if length is None:
        if model.backbone == MLP_BACKBONE:
            raise InvalidInput(
                f"backbone: expected a network of images, such as resnet50, with the images of {config.data.data}, got "
                f"{MLP_BACKBONE!r}, which takes vectors"
            )
        return config, ""
    usual = Model.model_fields["backbone"].default, Model.model_fields["pool"].default
    if model.backbone not in (MLP_BACKBONE, usual[0]):
        raise InvalidInput(
            f"backbone: expected {MLP_BACKBONE!r} with the vectors of {config.data.data}, got {model.backbone!r}, "
            "which takes images; leave it out"
        )
    if model.pool not in (POOL, usual[1]):
        raise InvalidInput(f"pool: expected nothing with vectors, which have no positions to pool, got {model.pool!r}")
    if config.data.image_size is not None:
        raise InvalidInput(f"image_size: expected nothing with vectors, got {config.data.image_size}; leave it out")
    if model.backbone == MLP_BACKBONE and model.pool == POOL:
        return config, ""
    changes: dict[str, Any] = {"backbone": MLP_BACKBONE, "pool": POOL}
    if model.backbone != MLP_BACKBONE and model.weights == PRETRAINED:
        changes["weights"] = None  # of the network of images
    fitted = config.with_values(changes)
    layers = ", ".join(map(str, model.hidden)) or "no hidden layer"
    return fitted, f"the network is {MLP_BACKBONE} ({layers}): the data are vectors of {length:,} numbers"


def standardise_vectors(embedder: Embedder, part: Part) -> None:
    """Set the standardisation of a network of vectors to that of the training vectors; others stay as they are."""
    if embedder.takes_vectors:
        embedder.standardise(part.batch(range(len(part)))[0])
