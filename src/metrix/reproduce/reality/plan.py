"""The plan of a reality check: what was asked for, what is trained on each dataset, and the file that keeps it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, check_integer
from metrix.experiments.tuning.budget import LEAST_TRIALS, MARGIN, CostModel
from metrix.experiments.tuning.methods import TunedMethod, parse_method
from metrix.experiments.tuning.protocol import StudyData
from metrix.experiments.tuning.spaces import build_space
from metrix.experiments.tuning.starting import FEWER_FOLDS
from metrix.messages import count, format_duration
from metrix.reproduce.budget import parse_duration
from metrix.train.config import Config, parse_config

PLAN = "plan.json"
FORMAT = 1


@dataclass(frozen=True)
class CheckRequest:
    """What a user asks of a reality check; what is empty or `None` is chosen by metrix."""

    data: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    budget: str | None = None
    trials: int | None = None
    folds: int | None = None
    seeds: int | None = None
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Raise `InvalidInput` unless it makes sense."""
        for name, value, least in (
            ("--trials", self.trials, 1),
            ("--folds", self.folds, 2),
            ("--seeds", self.seeds, 2),
        ):
            if value is not None:
                check_integer(name, value, least=least)
        if self.budget is not None:
            parse_duration(self.budget)

    def to_dict(self) -> dict[str, Any]:
        """What was asked for, as plain values."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return {key: value for key, value in plain.items() if value not in (None, [], {})}


@dataclass(frozen=True)
class PlannedData:
    """A dataset of a plan: seconds of a run of each method, as timed, and of all its runs, as estimated."""

    name: str
    base: Config
    fingerprint: str
    run_seconds: dict[str, float]
    seconds: float
    share: float | None  # of the budget, in seconds

    @property
    def study_data(self) -> StudyData:
        """What the study's runs are known by."""
        return StudyData(self.name, self.fingerprint)


@dataclass(frozen=True)
class ListedTraining:
    """What will be trained of a method on a dataset, with estimated seconds: a run, all trials, all final runs."""

    data: str
    method: str
    run: float
    trials: int
    search: float
    seeds: int
    winners: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class CheckPlan:
    """Everything that a reality check will train."""

    asked: dict[str, Any]
    datasets: tuple[PlannedData, ...]
    methods: tuple[TunedMethod, ...]
    trials: int
    folds: int
    seeds: int
    cheap: float
    fixed: tuple[str, ...]  # settings that the user gave; they are not searched

    @property
    def seconds(self) -> float:
        """How long all runs take, by the estimate."""
        return sum(data.seconds for data in self.datasets)

    @property
    def least_seconds(self) -> float:
        """The smallest budget in which anything can be concluded."""
        names = [method.name for method in self.methods]
        return sum(
            dataclasses.replace(self.cost_of(data), folds=min(self.folds, FEWER_FOLDS), cheap=0.0).seconds(
                names, LEAST_TRIALS
            )
            for data in self.datasets
        )

    def list_methods(self) -> list[ListedTraining]:
        """What will be trained, a line for each dataset and method."""
        return [
            ListedTraining(
                data.name,
                method.name,
                data.run_seconds[method.name],
                self.trials,
                MARGIN * self.trials * costs.trial_seconds(method.name),
                self.seeds,
                MARGIN * costs.winner_seconds(method.name),
            )
            for data in self.datasets
            for costs in [self.cost_of(data)]
            for method in self.methods
        ]

    def cost_of(self, data: PlannedData) -> CostModel:
        """What trials and winners cost on a dataset."""
        return build_costs(data.base, self.methods, self.fixed, data.run_seconds, self.folds, self.seeds, self.cheap)

    def describe(self) -> str:
        """The plan in a sentence."""
        methods, datasets = count(len(self.methods), "method"), count(len(self.datasets), "dataset")
        within = f" of {self.asked['budget']}" if "budget" in self.asked else ""
        return (
            f"{count(self.trials, 'trial')} of each of {methods} on {count(self.folds, 'fold')} of {datasets}, then "
            f"{count(self.seeds, 'seed')} of each winner: about {format_duration(self.seconds)}{within}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the file; the reverse of `plan_from_dict`."""
        return {
            "format": FORMAT,
            **{key: getattr(self, key) for key in ("asked", "trials", "folds", "seeds", "cheap", "fixed")},
            "methods": [method.name for method in self.methods],
            "datasets": [
                {**{field.name: getattr(data, field.name) for field in dataclasses.fields(data)}, "base": base}
                for data in self.datasets
                for base in [data.base.model_dump(mode="json")]
            ],
        }


def plan_from_dict(plain: Mapping[str, Any]) -> CheckPlan:
    """The plan that `CheckPlan.to_dict` wrote."""
    return CheckPlan(
        **{key: plain[key] for key in ("asked", "trials", "folds", "seeds", "cheap")},
        fixed=tuple(plain["fixed"]),
        methods=tuple(parse_method(name) for name in plain["methods"]),
        datasets=tuple(PlannedData(**{**data, "base": parse_config(data["base"])}) for data in plain["datasets"]),
    )


def build_costs(
    base: Config,
    methods: Sequence[TunedMethod],
    fixed: Sequence[str],
    run_seconds: Mapping[str, float],
    folds: int,
    seeds: int,
    cheap: float,
) -> CostModel:
    """What trials and winners of some methods cost on a dataset."""
    spaces = {method.name: build_space(method, base, {}, dict.fromkeys(fixed)) for method in methods}
    return CostModel(run_seconds, spaces, folds, seeds, cheap, base.train.max_steps is not None)


def read_plan(folder: Path, request: CheckRequest) -> CheckPlan | None:
    """The plan that a folder has; None if there is none.

    Raises:
        InvalidInput: it is of another request, or damaged
    """
    file = folder / PLAN
    if not file.is_file():
        return None
    try:
        plan = plan_from_dict(json.loads(file.read_text("utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{file} is damaged ({error}); restore it, or choose another --output") from error
    asked = request.to_dict()
    different = [key for key in sorted({*asked, *plan.asked}) if asked.get(key) != plan.asked.get(key)]
    if asked and different:
        told = ", ".join(f"{key} {plan.asked.get(key, 'not given')}" for key in different)
        raise InvalidInput(
            f"{folder} has a reality check that began with other settings ({told}), and its methods are only "
            "comparable with equal ones; continue it without settings, or choose another --output"
        )
    return plan
