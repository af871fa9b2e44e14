"""A report on runs: everything that is known of them on one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metrix import __version__
from metrix.errors import check_integer
from metrix.evaluate import Positivity
from metrix.report.page import Page, Section
from metrix.report.reported_runs import measure, read_subjects
from metrix.report.sections.cost import cost_section
from metrix.report.sections.embedding_map import map_section
from metrix.report.sections.galleries import retrieved_section
from metrix.report.sections.geometry import geometry_as_json, geometry_section
from metrix.report.sections.measures import (
    differences_of,
    measures_as_json,
    measures_section,
    overview_section,
)
from metrix.report.sections.positivity import positivity_section
from metrix.report.sections.settings import settings_section
from metrix.report.sections.training import training_section
from metrix.train.batches import Report, ignore_report


@dataclass(frozen=True)
class Choices:
    """What a report shows; checked when it is made."""

    data: str | None = None  # measure on other data than each run's own
    names: tuple[str, ...] | None = None
    ks: tuple[int, ...] | None = None
    resamples: int = 1000
    classes: int = 10  # of the map
    queries: int = 6  # of a gallery
    test_only: bool = False  # leave out what needs the training images
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("resamples", 0), ("classes", 1), ("queries", 1), ("seed", 0)):
            check_integer(name, getattr(self, name), least)


@dataclass(frozen=True)
class Composed:
    """The page, and its numbers as plain values."""

    page: Page
    content: dict[str, Any]


def composed(paths: Sequence[Path], choices: Choices | None = None, report: Report = ignore_report) -> Composed:
    """Measure runs and put together the page; the first run is the baseline.

    A run that is not finished, or whose images are gone, is shown as far as it is known.
    """
    choices = choices or Choices()
    subjects = read_subjects(paths, choices.names, report)
    for done, subject in enumerate(subjects, 1):
        measure(subject, choices.data, choices.ks, choices.resamples)
        report("measuring", done, len(subjects))
    differences = differences_of(subjects, choices.resamples)
    geometry, shapes = geometry_section(subjects, choices.test_only, choices.seed, report)
    positivity, curves = positivity_section(subjects, choices.test_only, choices.seed, report)
    cost, costs = cost_section(subjects)
    sections: list[Section] = [
        overview_section(subjects, differences),
        settings_section(subjects),
        training_section(subjects),
        measures_section(subjects, differences),
        retrieved_section(subjects, choices.data, choices.queries, choices.seed),
        map_section(subjects, choices.classes, choices.seed, report),
        geometry,
        positivity,
        cost,
    ]
    names = [subject.name for subject in subjects]
    title = names[0] if len(names) == 1 else " and ".join([", ".join(names[:-1]), names[-1]])
    if len(title) > 80:
        title = f"{len(names)} runs"
    about = f"Report on {len(names)} run{'s' if len(names) > 1 else ''}" + (
        f"; {names[0]} is the baseline of comparisons." if len(names) > 1 else "."
    )
    page = Page(title, sections, about, f"Made with metrix {__version__}.")
    content = {
        "runs": [
            {
                "name": subject.name,
                "run": str(subject.run.path),
                "finished": subject.results is not None,
                "missing": subject.why or None,
                "settings": subject.config.model_dump(mode="json"),
                **measures_as_json(subject, differences),
                "geometry": geometry_as_json(shapes, subject.name),
                "positivity": _curve_as_json(curves.get(subject.name)),
                "cost": costs[subject.name],
            }
            for subject in subjects
        ]
    }
    return Composed(page, content)


def _curve_as_json(curve: Positivity | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    return {
        name: [None if np.isnan(value) else float(value) for value in getattr(curve, name)]
        for name in ("lams", "empirical", "theoretical", "zero")
    }
