"""Whether mixup helped: clean and mixed runs of the same seeds, and how many more seeds would tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput
from metrix.evaluate.seeds import SeedDifferences
from metrix.messages import count
from metrix.runs.comparison import find_differing_settings, format_setting
from metrix.train.config import Config
from metrix.train.fit import average_fit, describe_outlook
from metrix.train.run_folder import RunFolder, open_run_folder
from metrix.train.untrained import TRY, describe_harm

# Keys that change where or how a run computes, but not its result.
_WITHOUT_EFFECT = ("data", "cache", "workers", "device", "checkpoint_steps")


@dataclass(frozen=True)
class Advice:
    """Recall@1 of clean runs and of runs with one kind of mixup, in per cent, seed by seed.

    Args:
        mixup: the mixup of the mixed runs, in a few words.
        seeds: the seeds that both have.
        clean: Recall@1 of the clean runs.
        mixed: Recall@1 of the mixed runs.
        unpaired: folders of runs whose seed the other side does not have.
        unbeaten: how many of the runs did not beat the untrained network.
        fit: MAP@R of training and unseen classes of the clean runs, where they measured it.
    """

    mixup: str
    seeds: tuple[int, ...]
    clean: tuple[float, ...]
    mixed: tuple[float, ...]
    unpaired: tuple[str, ...] = ()
    unbeaten: int = 0
    fit: Mapping[str, float] | None = None

    @property
    def differences(self) -> SeedDifferences:
        """Mixed minus clean, seed by seed."""
        return SeedDifferences(tuple(after - before for before, after in zip(self.clean, self.mixed, strict=True)))

    def sentences(self) -> list[str]:
        """The answer in words: whether mixup helped, by how much, and what more seeds would tell."""
        found = self.differences
        said = [
            f"{self.mixup}: Recall@1 {found.mean:+.1f} ± {found.margin:.1f} points against the clean loss, over "
            f"{count(len(self.seeds), 'seed')} (95 % interval of paired differences)."
        ]
        if found.decided:
            said.append(f"Mixup {'helped' if found.mean > 0 else 'harmed'}: the interval excludes zero.")
        if outlook := describe_outlook(self.fit):
            said.append(outlook)
        if self.unbeaten:
            runs = count(len(self.clean) + len(self.mixed), "run")
            said.append(
                f"In {self.unbeaten} of {runs} no epoch beat the untrained network: fix that first, more seeds will "
                f"not; try {TRY}."
            )
        if found.decided or self.unbeaten:
            return said
        needed = found.seeds_needed()
        said.append(
            "This does not tell whether mixup helped: with so many seeds, only a difference of about "
            f"{found.detectable():.1f} points would be found four times out of five."
        )
        if needed is None:
            said.append("If there is a difference, it is too small to be found with 1,000 seeds.")
        else:
            more = max(1, needed - len(self.seeds))
            said.append(
                f"If the difference is as large as it looks, {count(more, 'more seed')} of each "
                f"({needed} in all) would show it four times out of five."
            )
        return said

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = self.differences
        return {
            "mixup": self.mixup,
            "seeds": list(self.seeds),
            "clean_recall@1": list(self.clean),
            "mixed_recall@1": list(self.mixed),
            "mean_difference": found.mean,
            "margin": found.margin,
            "decided": found.decided,
            "detectable": found.detectable(),
            "seeds_needed": found.seeds_needed(),
            "unpaired": list(self.unpaired),
            "unbeaten": self.unbeaten,
            "fit": None if self.fit is None else dict(self.fit),
        }


def advise(paths: Sequence[Path]) -> list[Advice]:
    """Say for each kind of mixup among runs whether it helped, against the clean runs with the same seeds.

    Args:
        paths: finished runs of `metrix train`: clean ones (`--mixup none`) and mixed ones, in any order, that differ
            in seed and mixup only.

    Raises:
        InvalidInput: a run is unfinished or has other settings or images, or fewer than two seeds are paired.
    """
    runs = [open_run_folder(path) for path in paths]
    configs = [run.config for run in runs]
    _check_alike(runs, configs)
    clean = {config.train.seed: run for run, config in zip(runs, configs, strict=True) if not config.mixing.mixup}
    groups: dict[str, dict[int, RunFolder]] = {}
    names: dict[str, str] = {}
    for run, config in zip(runs, configs, strict=True):
        if config.mixing.mixup:
            key = config.mixing.model_dump_json()
            groups.setdefault(key, {})[config.train.seed] = run
            names[key] = _describe(config)
    if not clean or not groups:
        missing = "clean runs (--mixup none)" if not clean else "runs with mixup"
        raise InvalidInput(f"runs: expected clean and mixed runs of the same seeds, got no {missing}")
    return [_pair(names[key], clean, mixed) for key, mixed in groups.items()]


def _pair(name: str, clean: dict[int, RunFolder], mixed: dict[int, RunFolder]) -> Advice:
    seeds = tuple(sorted(clean.keys() & mixed.keys()))
    alone = [run for seed, run in clean.items() if seed not in mixed]
    alone += [run for seed, run in mixed.items() if seed not in clean]
    if len(seeds) < 2:
        raise InvalidInput(
            f"{name}: expected at least 2 seeds with a clean and a mixed run each, got {len(seeds)}; train both sides "
            "with --seed 0, --seed 1, …"
        )
    sides = [tuple(_recall(side[seed]) for seed in seeds) for side in (clean, mixed)]
    paired = [side[seed].results or {} for side in (clean, mixed) for seed in seeds]
    unbeaten = sum(bool(describe_harm(results)) for results in paired)
    fit = average_fit(paired[: len(seeds)])
    return Advice(name, seeds, sides[0], sides[1], tuple(str(run.path) for run in alone), unbeaten, fit)


def _recall(run: RunFolder) -> float:
    results = run.results
    if results is None:
        raise InvalidInput(f"{run.path} is not finished; resume it with metrix train --resume {run.path}")
    if results["test"] is None:
        raise InvalidInput(f"{run.path} was trained on all classes and has no figures to compare; leave it out")
    return 100.0 * float(results["test"]["recall"]["1"])


def _check_alike(runs: Sequence[RunFolder], configs: Sequence[Config]) -> None:
    """Raise `InvalidInput` unless the runs differ in seed and mixing only, and have the same images."""
    ignored = {"seed", *_WITHOUT_EFFECT, *type(configs[0].mixing).model_fields}
    differing = {key: v for key, v in find_differing_settings(list(configs)).items() if key not in ignored}
    if differing:
        told = "; ".join(f"{key} {' and '.join(dict.fromkeys(map(format_setting, v)))}" for key, v in differing.items())
        raise InvalidInput(f"runs: expected runs that differ in seed and mixup only, got {told}")
    prints = {json.loads((run.path / "environment.json").read_text("utf-8"))["data_fingerprint"] for run in runs}
    if len(prints) > 1:
        raise InvalidInput("runs: expected runs on the same data, got runs on different ones")


def _describe(config: Config) -> str:
    """The mixup and the settings of mixing that are not the defaults."""
    mixing, usual = config.mixing, type(config.mixing)(mixup_method=config.mixing.mixup_method)
    changed = [
        f"{key} {getattr(mixing, key)}"
        for key in type(mixing).model_fields
        if key not in ("mixup", "mixup_method") and getattr(mixing, key) != getattr(usual, key)
    ]
    return ", ".join([mixing.describe(), *changed])
