"""The sections of a report. Each states what is missing, and why, instead of failing."""

from __future__ import annotations

from collections.abc import Sequence

from metrix.report.page import Text
from metrix.report.reported_runs import ReportedRun


def explain_missing(runs: Sequence[ReportedRun]) -> list[Text]:
    """A block with the reasons why runs could not be measured; empty if all were."""
    lines = [f"{run.name}: {run.why}" for run in runs if run.why]
    return [Text("\n\n".join(lines), "missing")] if lines else []


def name_missing(runs: Sequence[ReportedRun]) -> list[Text]:
    """A block with the names of runs that could not be measured; empty if all were."""
    names = [run.name for run in runs if run.why]
    return [Text(f"{', '.join(names)}: not measured; the overview says why.", "missing")] if names else []
