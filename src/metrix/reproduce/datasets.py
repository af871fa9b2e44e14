"""What a reproduction trains on, and with which settings.

On the paper's datasets the settings are the paper's. Any other data stands in for them: `glyphs` with a
small network, a folder of images with the settings of CUB200.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, unknown_choice
from metrix.reproduce.paper import DATASETS, Recipe
from metrix.train import presets
from metrix.train.config import Config, LossChoice
from metrix.train.names import LOSSES

GLYPHS = ("glyphs", "glyphs-mini")
PAPER_DIM, PAPER_BATCH = 512, 100
MANY = 4  # k up to here is input mixup's, which does not depend on the batch

# Small and short: a step takes milliseconds, so that the whole grid takes minutes.
QUICK: dict[str, Any] = {"train_classes": 30, "batch_size": 48, "max_steps": 100}
QUICK_SEEDS = 2


@dataclass(frozen=True)
class Data:
    """A dataset by the name that the tables have for it."""

    name: str
    spec: str

    @property
    def in_paper(self) -> bool:
        """Whether the paper has numbers on it."""
        return self.name in DATASETS

    @property
    def title(self) -> str:
        """The name in a heading."""
        return DATASETS.get(self.name, self.name)

    @cached_property
    def mark(self) -> str:
        """What tells these images from others: their fingerprint; wherever they are, it is the same."""
        if self.spec in GLYPHS:
            return self.spec
        from metrix.data.opening import read_catalogue

        return read_catalogue(self.spec, layout=self.name if self.in_paper else None).fingerprint()


def chosen(given: Sequence[str]) -> list[Data]:
    """The datasets of `--data NAME=PATH`, repeated; glyphs without any.

    >>> chosen(["cars=~/cars196"])[0].name
    'cars'
    """
    found: dict[str, Data] = {}
    for text in given:
        name, equals, spec = text.partition("=")
        if not equals and text in GLYPHS:
            spec = text
        if not name or not spec:
            raise InvalidInput(
                f"--data {text!r}: accepted is NAME=PATH, such as cars=~/cars196, with the paper's names "
                f"({', '.join(DATASETS)}) or one of your own; or {' or '.join(GLYPHS)} alone"
            )
        if name in found:
            raise InvalidInput(f"--data {name} was given twice, {found[name].spec!r} and {spec!r}: give one")
        if spec not in GLYPHS:
            spec = os.path.expanduser(spec.removeprefix(f"{name}:"))  # cub=cub:PATH says the layout twice
            place = Path(spec.partition(":")[2] or spec).expanduser()
            if not place.exists():
                raise InvalidInput(f"--data {text!r}: {place} is not there; accepted is a folder or a manifest")
        found[name] = Data(name, spec)
    return list(found.values()) or [Data("glyphs", "glyphs")]


def settings(data: Data, recipe: Recipe, seed: int, dim: int, changes: dict[str, Any]) -> Config:
    """The settings of one run: of the dataset, then the method, then what the user changed.

    `dim` is the paper's; a stand-in's embedding is smaller in proportion. So is k where all pairs of a
    batch could be mixed.
    """
    recipe = dict(recipe)
    loss = recipe.pop("loss")
    method = recipe.get("scheme", loss)
    if loss not in LOSSES:
        raise unknown_choice("loss", loss, LOSSES)
    if data.in_paper:
        base = _preset(data.name, method)
        values: dict[str, Any] = _dim_of(method, dim)
    elif data.spec in GLYPHS:
        base = presets.preset("glyphs").with_values({**dict.fromkeys(LossChoice.model_fields), "loss": loss})
        values = {"dim": max(8, base.model.dim * dim // PAPER_DIM), **_of_loss(loss)}
    else:
        base = _preset("cub", method)
        values = {**_dim_of(method, dim), "layout": None}
    if "mixup_method" not in recipe:  # other methods have defaults of their own
        values |= {"mixup": (), "lam_per": "pair"}
    values |= {"data": data.spec, "loss": loss, **recipe, "seed": seed, **changes}
    config = base.with_values(values)
    return config.with_values({"hard_negatives": _scaled(config)})


def _preset(dataset: str, method: str) -> Config:
    name = f"paper/{dataset}/{method}"
    if name in presets.names():
        return presets.preset(name)
    return presets.preset(f"paper/{dataset}").with_values({**dict.fromkeys(LossChoice.model_fields), "loss": method})


def _dim_of(method: str, dim: int) -> dict[str, Any]:
    """The table's, unless the authors of the method have one of their own."""
    return {} if "dim" in presets.BASELINES.get(method, {}) else {"dim": dim}


def _of_loss(loss: str) -> dict[str, Any]:
    """The parameters of a loss and the learning rate of its proxies, as the paper's presets have them."""
    kept = {*LossChoice.model_fields, "proxy_lr"}
    return {key: value for key, value in presets.LOSSES.get(loss, {}).items() if key in kept}


def _scaled(config: Config) -> tuple[int | None, ...] | None:
    """k in proportion to the batch, where it is not the few of input mixup."""
    given = config.mixing.hard_negatives
    if given is None:
        return None
    share = config.train.batch_size / PAPER_BATCH
    return tuple(k if k is None or k < MANY else max(1, round(k * share)) for k in given)
