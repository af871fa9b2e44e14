"""The sections of a report: each takes runs and gives blocks, and says what is missing instead of failing."""

from __future__ import annotations

from collections.abc import Sequence

from metrix.report.page import Text
from metrix.report.reported_runs import Subject


def reasons(subjects: Sequence[Subject]) -> list[Text]:
    """Why some runs could not be measured, in one block; nothing if all were."""
    lines = [f"{subject.name}: {subject.why}" for subject in subjects if subject.why]
    return [Text("\n\n".join(lines), "missing")] if lines else []


def missing(subjects: Sequence[Subject]) -> list[Text]:
    """Which runs are not shown; nothing if all are."""
    names = [subject.name for subject in subjects if subject.why]
    return [Text(f"{', '.join(names)}: not measured; the overview says why.", "missing")] if names else []
