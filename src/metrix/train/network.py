"""The network of a run: what the data needs, the weights it starts from, and how much of it is trained."""

from __future__ import annotations

from typing import Any

from torch import nn

from metrix.data import Dataset, Part, glyphs
from metrix.errors import InvalidInput
from metrix.model import Embedder
from metrix.model.backbones import GLYPHS_CNN, PRETRAINED, RESNET50_V1
from metrix.model.mlp import MLP_BACKBONE
from metrix.train.config import Config
from metrix.train.sections import Model

# backbones without pretrained weights that could be had by their name
UNTRAINED = (GLYPHS_CNN, MLP_BACKBONE, RESNET50_V1)
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


def with_usual_weights(config: Config) -> Config:
    """The configuration with pretrained weights, where there are some and photos to train on.

    Characters (`glyphs`) and backbones without weights of their own start from random ones.

    >>> with_usual_weights(Config().with_values({"data": "photos"})).model.weights
    'pretrained'
    >>> with_usual_weights(Config().with_values({"data": "glyphs"})).model.weights is None
    True
    """
    if config.data.data in glyphs.NAMES or config.model.backbone in UNTRAINED:
        return config
    return config.with_values({"weights": PRETRAINED})


def describe_start(config: Config) -> str:
    """A sentence on random weights where pretrained ones would have been usual; else empty."""
    usual = with_usual_weights(config).model.weights
    if config.model.weights is not None or (usual is None and config.model.backbone != RESNET50_V1):
        return ""
    where = "--weights FILE" if usual is None else f"--weights {PRETRAINED}"
    return (
        f"the weights of {config.model.backbone} are random: it learns to see from these images alone, which takes "
        f"many of them; {where} starts from a network that was trained before"
    )


def count_parameters(*modules: nn.Module) -> tuple[int, int]:
    """How many parameters are trained, and how many there are.

    >>> count_parameters(nn.Linear(2, 3))
    (9, 9)
    """
    found = [p for module in modules for p in module.parameters()]
    return sum(p.numel() for p in found if p.requires_grad), sum(p.numel() for p in found)


def describe_footprint(trained: int, total: int) -> str:
    """How much of the network and the loss is trained, in words; nothing if all of it is.

    >>> describe_footprint(90, 1000)
    '90 of 1,000 parameters are trained (9 %)'
    """
    if trained == total:
        return ""
    return f"{trained:,} of {total:,} parameters are trained ({100 * trained / max(total, 1):.3g} %)"
