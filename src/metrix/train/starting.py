"""The weights that a network starts from, where the user has not said which."""

from __future__ import annotations

from metrix.data import glyphs
from metrix.model.backbones import GLYPHS_CNN, PRETRAINED, RESNET50_V1
from metrix.model.mlp import MLP_BACKBONE
from metrix.train.config import Config

# backbones without pretrained weights that could be had by their name
UNTRAINED = (GLYPHS_CNN, MLP_BACKBONE, RESNET50_V1)


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
