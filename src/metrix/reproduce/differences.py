"""How the set-up of a table or figure differs from the paper's and, where the paper is silent, its reference code's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from metrix.reproduce.datasets import PAPER_DIM, ReproductionData, build_config
from metrix.reproduce.grid import Experiment, Grid
from metrix.train.config import Config

THE_PAPERS = "The set-up is the paper's and, where the paper is silent, its reference code's."
PAPER_WEIGHTS = "tv_in1k"  # timm's name of torchvision's first ImageNet weights
# Settings that need no naming: those that are compared in words, and those that only say how to compute.
COMPARED = {"backbone", "weights", "dim", "batch_size", "epochs", "max_steps", "reduction"}
HOW_TO_COMPUTE = {"layout", "root", "follow_links", "cache", "workers", "device", "checkpoint_steps"}
# Losses whose reference commands decay at other epochs without mixup than with it.
OTHER_DECAY = {"multi-similarity", "proxy-anchor"}


def describe_differences(
    grid: Grid,
    setup: Mapping[str, Any],
    data: ReproductionData,
    experiments: Iterable[Experiment],
    scaled: bool = False,
) -> str:
    """Say in one sentence how the set-up differs from the paper's.

    Args:
        grid: The grid of runs.
        setup: The set-up of the paper's table or figure.
        data: The dataset that was trained on.
        experiments: What the table or figure shows.
        scaled: Whether rows differ in k, which is scaled with the batch.
    """
    configs = [grid.cells(one)[0].config for one in experiments if grid.why_not(one) is None]
    config = grid.cells(Experiment({"loss": "contrastive"}, data, int(setup["dim"])))[0].config
    train, model = config.train, config.model
    network, _, tag = model.backbone.partition(".")
    length = f"{train.max_steps} steps" if train.max_steps else f"{train.epochs} epochs"
    here = {
        "network": (network + (", pretrained" if model.weights else ""), f"{setup['backbone']}, pretrained"),
        "dimensions": (str(model.dim), str(setup["dim"])),
        "batch": (str(train.batch_size), str(setup["batch_size"])),
        "training": (length, f"{setup['epochs']} epochs" if setup.get("epochs") else length),
    }
    differing = [f"{name} {ours} (paper: {paper})" for name, (ours, paper) in here.items() if ours != paper]
    if network == setup["backbone"] and model.weights and (model.weights != "pretrained" or tag != PAPER_WEIGHTS):
        given = f"timm's {model.backbone}" if model.weights == "pretrained" else f"file {model.weights}"
        differing.append(f"weights of {given} (reference code: torchvision's first, resnet50.{PAPER_WEIGHTS})")
    differing += _name_changes(grid, data)
    differing += _name_deviations(data, configs)
    if scaled and train.batch_size != setup["batch_size"]:
        differing.append(f"k = 20 and 40 times {train.batch_size / int(setup['batch_size']):.2g}, like the batch")
    if not data.in_paper:
        differing.insert(0, f"the data, {data.title}, which stands in for the paper's")
    return f"Differences from the paper's set-up: {'; '.join(differing)}." if differing else THE_PAPERS


def _name_deviations(data: ReproductionData, configs: Sequence[Config]) -> Iterator[str]:
    """What the presets of the paper do otherwise than the paper or, where it is silent, its reference code."""
    reductions = {config.loss.loss: config.loss.reduction for config in configs}
    if reductions.get("contrastive") == "mean_nonzero":
        yield (
            "the contrastive loss averages its non-zero terms, as the reference code does (eq. contr: sums; "
            "--reduction sum where all rows are contrastive)"
        )
    if reductions.get("proxy-anchor") == "original":
        yield "proxy anchor as its authors define it: e^γ(s+m) for negatives, averages over proxies (Table 1: e^γ(s-m))"
    if any(config.data.cache != "none" for config in configs):
        yield "random crops of images shrunk to 256 pixels (reference code: of the originals)"
    mixes = {bool(config.mixing.mixup) for config in configs}
    apart = data.name in ("sop", "inshop") or OTHER_DECAY & reductions.keys()
    if data.in_paper and len(mixes) == 2 and apart:
        yield (
            "runs with and without mixup share decay, warm-up and batch norm (the reference commands change them: "
            "5 or 20 epochs between decays without mixup where it is 10 with it)"
        )


def _name_changes(grid: Grid, data: ReproductionData) -> Iterator[str]:
    """The settings that the user or the scale changed for all runs, with their values."""
    here, unchanged = (
        build_config(data, {"loss": "contrastive"}, 0, PAPER_DIM, changes) for changes in (dict(grid.changes), {})
    )
    differing = here.differences_to(unchanged)
    for key in sorted(set(grid.changes) & set(differing) - COMPARED - HOW_TO_COMPUTE):
        yield f"{key.replace('_', ' ')} {differing[key]}"
