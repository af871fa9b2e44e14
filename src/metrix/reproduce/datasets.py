"""The datasets of a reproduction and the configuration of each of its runs.

On its four datasets, the paper's own settings apply. Other data stands in for them: `glyphs` with a small network, any
other folder or manifest with the paper's settings for CUB200.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrix.errors import InvalidInput, unknown_choice
from metrix.reproduce.paper import DATASETS, Recipe
from metrix.train import presets
from metrix.train.config import Config
from metrix.train.names import LOSSES
from metrix.train.sections import LossChoice

if TYPE_CHECKING:
    from metrix.data.catalogue import Catalogue

GLYPHS = ("glyphs", "glyphs-mini")
PAPER_DIM, PAPER_BATCH = 512, 100
SCALED_FROM = 4  # smaller k are those of input mixup and do not grow with the batch

# --quick: a step takes milliseconds, and the whole grid minutes.
QUICK: dict[str, Any] = {"train_classes": 30, "batch_size": 48, "max_steps": 100}
SEEDS, QUICK_SEEDS = 3, 2


@dataclass(frozen=True)
class ReproductionData:
    """A dataset: its name in the tables, and what `metrix.data.open` takes to open it."""

    name: str
    spec: str
    root: str | None = None
    follow_links: bool = False

    @property
    def in_paper(self) -> bool:
        """Whether the paper reports numbers on this dataset."""
        return self.name in DATASETS

    @property
    def title(self) -> str:
        """The name shown in headings."""
        return DATASETS.get(self.name, self.name)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the images themselves, independently of the folder they are in."""
        if self.spec in GLYPHS:
            return self.spec
        return self.catalogue.fingerprint()

    @cached_property
    def catalogue(self) -> Catalogue:
        """Its images, classes and parts."""
        from metrix.data.opening import read_catalogue

        layout = self.name if self.in_paper else None
        return read_catalogue(self.spec, layout=layout, root=self.root, follow_links=self.follow_links)


def choose_data(given: Sequence[str], root: str | None = None, follow_links: bool = False) -> list[ReproductionData]:
    """Parse the values of `--data NAME=PATH`; without any, the dataset is glyphs.

    Args:
        given: the values.
        root: the folder that the paths of a manifest are relative to.
        follow_links: follow symbolic links that lead out of the folder of the data.

    >>> choose_data(["digits=glyphs-mini"])
    [ReproductionData(name='digits', spec='glyphs-mini', root=None, follow_links=False)]
    """
    found: dict[str, ReproductionData] = {}
    for text in given:
        name, equals, spec = text.partition("=")
        if not equals and text in GLYPHS:
            spec = text
        if not name or not spec:
            raise InvalidInput(
                f"--data: expected NAME=PATH, such as cars=~/cars196, got {text!r}; NAME is one of the paper's "
                f"({', '.join(DATASETS)}) or your own, and {' or '.join(GLYPHS)} needs no path"
            )
        if name in found:
            raise InvalidInput(f"--data: {name} was given twice, as {found[name].spec!r} and {spec!r}; give one")
        if spec not in GLYPHS:
            spec = os.path.expanduser(spec.removeprefix(f"{name}:"))  # cub=cub:PATH says the layout twice
            place = Path(spec.partition(":")[2] or spec).expanduser()
            if not place.exists():
                raise InvalidInput(f"--data {text}: expected a folder or a manifest, but {place} does not exist")
        found[name] = ReproductionData(name, spec, root, follow_links)
    return list(found.values()) or [ReproductionData("glyphs", "glyphs")]


# The preset `glyphs` is tuned for one loss; w is the paper's here, and the learning rate suits all losses.
PAPER_ON_GLYPHS: dict[str, Any] = {"strength": 0.4, "lr": 3e-3}
_PROXY_LR_ON_GLYPHS = {"proxy-anchor": 1e-2}  # 100 times the learning rate of the network is too much here


def build_config(data: ReproductionData, recipe: Recipe, seed: int, dim: int, changes: dict[str, Any]) -> Config:
    """Build the configuration of one run: the dataset's settings, then the method's, then the user's changes.

    Args:
        data: The dataset to train on.
        recipe: Configuration keys of the method, from the paper's tables.
        seed: Seed of the run.
        dim: Embedding dimension in the paper. On glyphs the embedding is smaller in proportion, and k hard negatives
            are scaled with the batch size.
        changes: Configuration keys that the user sets for all runs.
    """
    recipe = dict(recipe)
    loss = recipe.pop("loss")
    method = recipe.get("scheme", loss)
    if loss not in LOSSES:
        raise unknown_choice("loss", loss, LOSSES)
    if data.in_paper:
        base = _choose_preset(data.name, method)
        values: dict[str, Any] = _dim_of(method, dim)
    elif data.spec in GLYPHS:
        base = presets.preset("glyphs").with_values(PAPER_ON_GLYPHS)
        base = base.with_values({**dict.fromkeys(LossChoice.model_fields), "loss": loss})
        values = {"dim": max(8, base.model.dim * dim // PAPER_DIM), **_loss_settings(loss)}
    else:
        base = _choose_preset("cub", method)
        values = {**_dim_of(method, dim), "layout": None}
    if "mixup_method" not in recipe:  # other mixing methods bring their own defaults
        values["mixup"] = ()
    values |= {"data": data.spec, "loss": loss, **recipe, "seed": seed, **changes}
    config = base.with_values(values)
    return config.with_values({"hard_negatives": _scale_hard_negatives(config)})


def _choose_preset(dataset: str, method: str) -> Config:
    name = f"paper/{dataset}/{method}"
    if name in presets.list_presets():
        return presets.preset(name)
    return presets.preset(f"paper/{dataset}").with_values({**dict.fromkeys(LossChoice.model_fields), "loss": method})


def _dim_of(method: str, dim: int) -> dict[str, Any]:
    """The dimension of the paper's table, unless the authors of the method use their own."""
    return {} if "dim" in presets.BASELINES.get(method, {}) else {"dim": dim}


def _loss_settings(loss: str) -> dict[str, Any]:
    """The parameters of a loss and the learning rate of its proxies in the paper's presets."""
    kept = {*LossChoice.model_fields, "proxy_lr"}
    found = {key: value for key, value in presets.LOSSES.get(loss, {}).items() if key in kept}
    return found if loss not in _PROXY_LR_ON_GLYPHS else {**found, "proxy_lr": _PROXY_LR_ON_GLYPHS[loss]}


def _scale_hard_negatives(config: Config) -> tuple[int | None, ...] | None:
    """Scale k in proportion to the batch, except the small k of input mixup."""
    given = config.mixing.hard_negatives
    if given is None:
        return None
    share = config.train.batch_size / PAPER_BATCH
    return tuple(k if k is None or k < SCALED_FROM else max(1, round(k * share)) for k in given)
