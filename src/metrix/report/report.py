"""A report on runs: settings, training curves, metrics, classes, galleries, maps, geometry and cost on one page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metrix import __version__
from metrix.errors import check_integer, unknown_choice
from metrix.evaluate import Positivity
from metrix.evaluate.bootstrap import UNITS
from metrix.report.page import Page, Section
from metrix.report.reported_runs import measure_run, read_runs
from metrix.report.sections.classes import build_classes_section
from metrix.report.sections.cost import build_cost_section
from metrix.report.sections.embedding_map import build_map_section
from metrix.report.sections.galleries import build_galleries_section
from metrix.report.sections.geometry import build_geometry_section, geometry_to_dict
from metrix.report.sections.leaderboard import build_leaderboard_section
from metrix.report.sections.metrics import (
    build_metrics_section,
    build_overview_section,
    compare_with_first,
    metrics_to_dict,
)
from metrix.report.sections.positivity import build_positivity_section
from metrix.report.sections.settings import build_settings_section
from metrix.report.sections.training import build_training_section
from metrix.runs.leaderboard import read_leaderboard
from metrix.train.batches import Report, ignore_report


@dataclass(frozen=True)
class ReportOptions:
    """What a report shows; checked on construction."""

    data: str | None = None  # data to measure on, instead of each run's own
    names: tuple[str, ...] | None = None  # of the runs
    ks: tuple[int, ...] | None = None
    resamples: int = 1000
    over: str = "classes"  # what they draw
    classes: int = 10  # on the map
    queries: int = 6  # in a gallery
    test_only: bool = False  # omit what needs the training images
    seed: int = 0
    leaderboards: tuple[Path, ...] = ()  # files of `metrix results --export`, whose rows are shown beside the runs
    reading: Mapping[str, Any] | None = None  # other values for settings of how images are read, as for `open_run`

    def __post_init__(self) -> None:
        for name, least in (("resamples", 0), ("classes", 1), ("queries", 1), ("seed", 0)):
            check_integer(name, getattr(self, name), least)
        if self.over not in UNITS:
            raise unknown_choice("bootstrap unit", self.over, UNITS)


@dataclass(frozen=True)
class ComposedReport:
    """The page, and its numbers for JSON."""

    page: Page
    content: dict[str, Any]


def compose_report(
    paths: Sequence[Path], options: ReportOptions | None = None, report: Report = ignore_report
) -> ComposedReport:
    """Measure runs and compose a page about them.

    A run that is not finished, or whose images are gone, is shown as far as possible, with the reason.

    Args:
        paths: folders of runs; the first is the baseline of comparisons.
        options: what the page shows.
        report: called with the progress.
    """
    options = options or ReportOptions()
    for path in options.leaderboards:
        read_leaderboard(path)  # a damaged file is an error before the runs are measured
    runs = read_runs(paths, options.names, report, options.reading)
    for done, run in enumerate(runs, 1):
        measure_run(run, options.data, options.ks, options.resamples, options.over)
        report("measuring", done, len(runs))
    differences = compare_with_first(runs, options.resamples, options.over)
    geometry, shapes = build_geometry_section(runs, options.test_only, options.seed, report)
    positivity, curves = build_positivity_section(runs, options.test_only, options.seed, report)
    cost, costs = build_cost_section(runs)
    leaderboard = build_leaderboard_section(runs, options.leaderboards) if options.leaderboards else None
    sections: list[Section] = [
        build_overview_section(runs, differences),
        build_settings_section(runs),
        build_training_section(runs),
        build_metrics_section(runs, differences, options.resamples),
        *([] if leaderboard is None else [leaderboard[0]]),
        build_classes_section(runs),
        build_galleries_section(runs, options.data, options.queries, options.seed),
        build_map_section(runs, options.classes, options.seed, report),
        geometry,
        positivity,
        cost,
    ]
    names = [run.name for run in runs]
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
                "name": run.name,
                "run": str(run.folder.path),
                "finished": run.results is not None,
                "missing": run.why or None,
                "settings": run.config.model_dump(mode="json"),
                **metrics_to_dict(run, differences),
                "geometry": geometry_to_dict(shapes, run.name),
                "positivity": _curve_to_dict(curves.get(run.name)),
                "cost": costs[run.name],
            }
            for run in runs
        ],
        **({} if leaderboard is None else {"leaderboard": [json.loads(row.to_line()) for row in leaderboard[1]]}),
    }
    return ComposedReport(page, content)


def _curve_to_dict(curve: Positivity | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    return {
        name: [None if np.isnan(value) else float(value) for value in getattr(curve, name)]
        for name in ("lams", "empirical", "theoretical", "zero")
    }
