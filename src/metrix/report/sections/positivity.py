"""Positivity: how often a mixed example acts as a positive."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from metrix.errors import MetrixError
from metrix.evaluate import Positivity
from metrix.report.figures.positivity import draw_positivity
from metrix.report.page import Block, Section, Text
from metrix.report.reported_runs import ReportedRun, measured_runs
from metrix.report.sections import name_missing
from metrix.runs.analysis import build_analysed_loss, measure_positivity
from metrix.runs.evaluation import Examples
from metrix.train.batches import Report

EXAMPLES = 3000  # training examples to measure on at most, of classes drawn at random


def build_positivity_section(
    runs: Sequence[ReportedRun], test_only: bool, seed: int, report: Report
) -> tuple[Section, dict[str, Positivity]]:
    """P(Pos(a,v)) against λ on the training embeddings, with each run's own loss (eq. prob)."""
    if test_only:
        told = "Positivity needs the embeddings of the training data, which --test-only omits."
        return Section("Positivity", [Text(told, "missing")]), {}
    found: dict[str, Positivity] = {}
    why: list[str] = []
    shown = measured_runs(runs)
    for done, one in enumerate(shown, 1):
        try:
            train = _draw_classes(one.train, seed)
            loss = build_analysed_loss(one.config, {}, len(np.unique(train.labels)))
            found[one.name] = measure_positivity(train, loss, one.config, seed)
        except MetrixError as error:
            why.append(f"{one.name}: {error}")
        report("positivity", done, len(shown))
    blocks: list[Block] = []
    if found:
        about = (
            "How often a mixture of a positive and a negative acts as a positive, against its factor λ: measured on "
            "the training embeddings with the run's loss and, for multi-similarity, predicted by theory (eq. prob). "
            "Where a loss is flat, as a hinge is in part, the derivative is 0, which counts as positive; the dotted "
            "line is this part."
        )
        alone = {"": next(iter(found.values()))} if len(runs) == 1 else found
        blocks += [Text(about), draw_positivity(alone, order=[run.name for run in runs])]
    blocks += [Text("\n\n".join(why), "missing")] if why else []
    return Section("Positivity", [*blocks, *name_missing(runs)]), found


def _draw_classes(train: Examples, seed: int) -> Examples:
    """Whole classes at random, with about EXAMPLES examples in total."""
    if len(train.labels) <= EXAMPLES:
        return train
    names, counts = np.unique(train.labels, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    enough = np.searchsorted(np.cumsum(counts[order]), EXAMPLES) + 1
    kept = np.isin(train.labels, names[order[: max(enough, 2)]])
    return dataclasses.replace(train, vectors=train.vectors[kept], labels=train.labels[kept])
