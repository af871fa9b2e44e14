"""How many trials fit into a time: each method is trained for a few steps before the search begins."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metrix.core.spaces import LogUniform, OneOf, Space
from metrix.errors import InvalidInput
from metrix.experiments.tuning.methods import TunedMethod
from metrix.experiments.tuning.protocol import REDUCTION, Protocol
from metrix.experiments.tuning.spaces import LENGTH, find_moved
from metrix.experiments.tuning.trials import build_ladder
from metrix.messages import count, format_duration
from metrix.train.config import Config
from metrix.train.watching import Watcher

STEPS, WARM_UP = 8, 3  # of a calibration; the first steps are slower
# With fewer trials than this the best of them says little about a method, and with fewer seeds nothing about chance.
LEAST_TRIALS, MOST_TRIALS = 5, 200
GOOD_TRIALS = 12  # of each method, before another method is added
MARGIN = 1.15  # by which a study takes longer than its runs: start-up, measuring, the page


class _StepTimes(Watcher):
    """Notes when training begins and when each step ends."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.per_epoch = 1

    def begin(self, run: Any, config: Config, part: Any, steps: int, progress: Any) -> None:
        """Note how many batches an epoch has."""
        from metrix.train.batches import build_sampler

        self.per_epoch = build_sampler(config, part).batches_per_epoch

    def step(self, progress: Any, losses: list[float], images: int) -> None:
        """Note the time."""
        self.steps.append(time.monotonic())


def calibrate(config: Config, folder: Path, steps: int = STEPS) -> float:
    """Estimate the seconds of a run by training a few of its steps, with everything around them.

    Args:
        config: of the run
        folder: for the run that is timed; deleted afterwards
        steps: to train
    """
    import shutil

    from metrix.train.loop import train

    shutil.rmtree(folder, ignore_errors=True)
    timed, began = _StepTimes(), time.monotonic()
    try:
        train(config.with_values({"max_steps": steps}), folder, watcher=timed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    whole = time.monotonic() - began
    gaps = [after - before for before, after in zip(timed.steps, timed.steps[1:], strict=False)]
    step = statistics.median(gaps[WARM_UP:] or gaps or [whole])
    around = max(0.0, whole - step * len(timed.steps))
    total = config.train.epochs * timed.per_epoch
    return around + step * min(total, config.train.max_steps or total)


@dataclass(frozen=True)
class CostModel:
    """What trials and winners cost, from the seconds of a run of the usual length, by method.

    A run on all training classes takes longer than one without a fold, unless its steps are given (`by_steps`).
    """

    run_seconds: Mapping[str, float]
    spaces: Mapping[str, Space]
    folds: int
    seeds: int
    cheap: float
    by_steps: bool = False

    def trial_seconds(self, method: str) -> float:
        """The expected duration of a trial: half of those at each stage go on, the cheap one ends none."""
        runs, trained = self.cheap, 0
        for stage, rung in enumerate(build_ladder(self.folds, cheap=0.0)):
            runs += (rung.folds - trained) / REDUCTION**stage
            trained = rung.folds
        return runs * mean_length(self.spaces[method]) * self.run_seconds[method]

    def winner_seconds(self, method: str) -> float:
        """The expected duration of the final runs of a method, which see all training classes."""
        growth = 1.0 if self.by_steps else self.folds / (self.folds - 1)
        return self.seeds * growth * mean_length(self.spaces[method]) * self.run_seconds[method]

    def seconds(self, methods: Sequence[str], trials: int) -> float:
        """The expected duration of a study with so many trials of each method."""
        return MARGIN * sum(trials * self.trial_seconds(one) + self.winner_seconds(one) for one in methods)


def estimate_costs(protocol: Protocol) -> CostModel:
    """What trials and winners of a study cost, as calibrated."""
    by_steps = protocol.base.train.max_steps is not None
    return CostModel(protocol.run_seconds, protocol.spaces, protocol.folds, protocol.seeds, protocol.cheap, by_steps)


def mean_length(space: Space) -> float:
    """The mean of the lengths in a space, as a multiple of the usual one.

    >>> round(mean_length({"length": LogUniform(0.5, 2.0)}), 2), mean_length({})
    (1.08, 1.0)
    """
    given = space.get(LENGTH)
    if given is None:
        return 1.0
    if isinstance(given, OneOf):
        return statistics.fmean(float(value) for value in given.values)  # type: ignore[arg-type]
    if isinstance(given, LogUniform):
        return (given.high - given.low) / math.log(given.high / given.low)
    return (given.low + given.high) / 2


@dataclass(frozen=True)
class Fit:
    """What fits: methods, trials of each, and how long they take by the estimate."""

    methods: tuple[str, ...]
    trials: int
    seconds: float


def fit_folds(
    budget: float, costs: CostModel, methods: Sequence[str], chosen: bool, fewer: int, most: int = MOST_TRIALS
) -> tuple[CostModel, Fit]:
    """The folds, methods and trials that fit into a time.

    Where that leaves few trials, there are fewer folds and no cheap stages, which pay off after some trials only.

    Args:
        budget: seconds
        costs: with as many folds as there should be
        methods: what may be compared
        chosen: whether the user named the methods
        fewer: the folds to fall back to
        most: trials of each method
    """
    try:
        fit = fit_budget(budget, costs, methods, chosen, most)
    except InvalidInput:
        fit = None
    if fit is not None and fit.trials >= min(GOOD_TRIALS, most):
        return costs, fit
    small = replace(costs, folds=min(fewer, costs.folds), cheap=0.0)
    return small, fit_budget(budget, small, methods, chosen, most)


def fit_budget(budget: float, costs: CostModel, methods: Sequence[str], chosen: bool, most: int = MOST_TRIALS) -> Fit:
    """The methods and trials that fit into a time.

    Args:
        budget: seconds
        costs: what trials and winners cost
        methods: what may be compared, the most interesting first
        chosen: whether the user named the methods; otherwise as many are taken as fit, two at least
        most: trials of each method

    Raises:
        InvalidInput: not even the fewest trials and methods fit; the message says what they would take
    """
    fewest = len(methods) if chosen else min(2, len(methods))
    least = min(LEAST_TRIALS, most)
    for number in range(len(methods), fewest - 1, -1):
        taken, trials = tuple(methods[:number]), least if number == fewest else min(GOOD_TRIALS, most)
        if costs.seconds(taken, trials) <= budget:
            while trials < most and costs.seconds(taken, trials + 1) <= budget:
                trials += 1
            return Fit(taken, trials, costs.seconds(taken, trials))
    needed = math.ceil(costs.seconds(methods[:fewest], least) / 60)
    raise InvalidInput(
        f"--budget: expected at least {needed}m, in which {count(least, 'trial')} each of "
        f"{', '.join(methods[:fewest])} and {count(costs.seeds, 'seed')} of each winner fit, got {budget / 60:.3g}m, "
        "in which nothing can be concluded; give more time, fewer methods, shorter training (--epochs, --max-steps) "
        "or a smaller network (--backbone, --image-size, --preset cpu/cars)"
    )


def time_method(
    method: TunedMethod, base: Config, folds: int, folder: Path, warm_up: bool = False, space: Space | None = None
) -> float:
    """The seconds of a run of the usual length on a fold; a method that cannot be trained raises here.

    Settings that are not in the space are moved into it, as for the first trial. With `warm_up`, a step is trained
    before: the first run of a process takes longer, to import and to fill caches.
    """
    config = method.configure(base)
    moved = {key: value for key, value in find_moved(config, space or {}).items() if key != LENGTH}
    config = config.with_values({**moved, "fold": f"1/{folds}", "holdout": 0.0})
    if warm_up:
        calibrate(config, folder / "calibration", steps=1)
    return calibrate(config, folder / "calibration")


def describe_fit(fit: Fit, costs: CostModel, budget: float | None) -> str:
    """The plan in a sentence, for the terminal."""
    each = ", ".join(f"{one} {format_duration(costs.trial_seconds(one))}" for one in fit.methods)
    within = "" if budget is None else f" of {format_duration(budget)}"
    return (
        f"{count(fit.trials, 'trial')} of each of {count(len(fit.methods), 'method')} on {costs.folds} folds, then "
        f"{count(costs.seeds, 'seed')} of each winner: about {format_duration(fit.seconds)}{within} (a trial: {each})"
    )
