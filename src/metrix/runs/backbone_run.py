"""A pretrained backbone as the model of a run without training, which every verb takes: index, evaluate, export."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from metrix.core.head import PoolLinear
from metrix.data import glyphs
from metrix.data.cache import SHORT_SIDE
from metrix.errors import ChoiceError, InvalidInput
from metrix.files import lock
from metrix.model import Embedder
from metrix.model.backbones import PRETRAINED, build_backbone
from metrix.model.saving import WEIGHTS_FILE, ImageView
from metrix.train.config import Config
from metrix.train.run_folder import LOCK, RunFolder

POOL = "avg"


def find_model_run(given: Path, beside: Path, data: str, overwrite: bool = False) -> Path:
    """The folder of the run that a user named, by its path or as a backbone, whose run is then written.

    Args:
        given: the folder of a run, or the name of a backbone with pretrained weights.
        beside: the folder of an index; the run of a backbone `photos.index` is built with is `photos.model`.
        data: the images, which `metrix evaluate` measures the network on.
        overwrite: replace the run of another backbone.

    Raises:
        InvalidInput: it is neither.
    """
    name = os.fspath(given)
    if given.exists() or os.sep in name:
        return given
    folder = beside.with_suffix(".model")
    before = _read_backbone(folder)
    if before == name:
        return folder
    if before is not None and not overwrite:
        raise InvalidInput(
            f"{folder} holds the network {before}, got {name}: choose another name with -o, or give --overwrite"
        )
    try:
        write_backbone_run(name, folder, data)
    except ChoiceError as error:
        raise InvalidInput(
            f"{name!r}: expected a run (a folder that metrix train wrote) or a backbone, got neither: {error}"
        ) from error
    return folder


def _read_backbone(folder: Path) -> str | None:
    """The backbone of a complete run in a folder; None if there is none."""
    run = RunFolder(folder)
    return run.config.model.backbone if (run.model / WEIGHTS_FILE).is_file() else None


def write_backbone_run(name: str, folder: Path, data: str) -> RunFolder:
    """Write a run whose model is a pretrained backbone: its average-pooled features, at unit norm, are the embedding.

    Args:
        name: of the backbone.
        folder: of the run.
        data: of the run.

    Raises:
        ChoiceError: there is no such backbone.
        ModelError: its weights are not on this machine and cannot be downloaded.
    """
    channels = build_backbone(name, PRETRAINED).channels
    embedder = Embedder(name, channels, POOL, PRETRAINED)
    linear = next(layer for layer in embedder.head.modules() if isinstance(layer, PoolLinear)).linear
    with torch.no_grad():
        linear.weight.copy_(torch.eye(channels))
        linear.bias.zero_()
    path = data if data in glyphs.NAMES else os.path.abspath(data)
    values = {"data": path, "backbone": name, "dim": channels, "pool": POOL, "weights": PRETRAINED, "epochs": 0}
    config = Config().with_values(values)
    embedder.view = ImageView("folder", None if config.data.cache == "none" else SHORT_SIDE)
    run = RunFolder(folder)
    with lock(folder / LOCK):  # one of several processes at a time
        run.start(config, "")
        embedder.save(run.model)
    return run
