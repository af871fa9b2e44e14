"""What a study compares and how, and how far it goes: what its files say."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from metrix.core.spaces import Space
from metrix.experiments.tuning.methods import TunedMethod, parse_method
from metrix.experiments.tuning.spaces import space_from_dict, space_to_dict
from metrix.train.config import Config, parse_config

FORMAT = 1
KEPT = ("metric", "folds", "seeds", "cheap", "run_seconds", "code", "storage", "prefix")  # plain values of a protocol
REDUCTION = 2  # of successive halving: the better half goes on


@dataclass(frozen=True)
class StudyData:
    """The dataset of a study, as its cells know it."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Protocol:
    """What a study compares, and how.

    base          settings of all trials, unless they are searched
    metric        recall@1 or map@r, of the fold's classes: what is maximised
    folds, seeds  folds of the training classes; runs of each winner
    cheap         share of the length at which a trial is first tried, 0 for none
    run_seconds   of a run of the usual length on a fold, by method, as calibrated
    code          version of the code that trains, when the study began
    storage       Optuna's, without a password; None: study.db in the folder
    prefix        of the names in a storage, which other studies may share; the folder may be renamed
    """

    base: Config
    methods: tuple[TunedMethod, ...]
    spaces: dict[str, Space]
    metric: str
    folds: int
    seeds: int
    cheap: float
    data: StudyData
    run_seconds: dict[str, float]
    code: str
    storage: str | None = None
    prefix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for study.json."""
        return {
            "format": FORMAT,
            "data": {"name": self.data.name, "fingerprint": self.data.fingerprint},
            "methods": [method.name for method in self.methods],
            "spaces": {name: space_to_dict(space) for name, space in self.spaces.items()},
            **{key: getattr(self, key) for key in KEPT},
            "base": self.base.model_dump(mode="json"),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Protocol:
        """The reverse of `to_dict`."""
        return cls(
            base=parse_config(plain["base"]),
            methods=tuple(parse_method(name) for name in plain["methods"]),
            spaces={name: space_from_dict(space) for name, space in plain["spaces"].items()},
            data=StudyData(**plain["data"]),
            **{key: plain[key] for key in KEPT},
        )


@dataclass(frozen=True)
class Plan:
    """How far the search goes: trials of each method, and when the study ends (seconds of `time.time`)."""

    trials: int | None = None  # None: as many as fit
    deadline: float | None = None
    budget: float | None = None  # seconds, as it was asked for
    seen: float | None = None  # when a process last handed out a trial

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self.deadline is None else self.deadline - time.time()
