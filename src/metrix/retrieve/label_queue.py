"""The items of an index whose label is worth a look, one after another, most doubtful first.

suspect      the nearest items mostly have one other label (`find_suspects`), most surprising first
unsure       the nearest items are divided between two labels
unlabelled   there is no label yet; those that the nearest items disagree on come first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import LabelError, check_integer, unknown_choice
from metrix.retrieve.decisions import Decision
from metrix.search import LABEL, Hits, Index, Suspect, find_suspects, nearest_others
from metrix.search.class_scores import EnrolledClasses
from metrix.search.suggesting import NearLabelled, compare_with_labelled
from metrix.train.batches import Report, ignore_report

REASONS = ("suspect", "unsure", "unlabelled")
UNSURE = 0.2  # the margin between the shares of two classes below which an item is unsure
NEIGHBOURS = 10


@dataclass(frozen=True)
class Question:
    """An item, the label that it has, and the one that is proposed."""

    id: str
    label: str | None
    proposed: str | None  # None: nothing speaks for another one
    reason: str  # one of REASONS
    said: str  # why it is asked about
    neighbours: tuple[dict[str, Any], ...]  # id, label and similarity, the nearest first


def list_questions(
    index: Index, k: int = NEIGHBOURS, reasons: Sequence[str] = REASONS, report: Report = ignore_report
) -> list[Question]:
    """The items of an index that are worth a look.

    Args:
        index: with labels.
        k: neighbours that an item is compared with.
        reasons: only items for these, of `REASONS`.
        report: is called with the progress.

    Raises:
        LabelError: no item has a label.
    """
    check_integer("k", k, 1)
    check_reasons(reasons)
    classes = EnrolledClasses.read(index.store, lambda done, of: report("reading classes", done, of))
    found: dict[str, Question] = {}
    if "suspect" in reasons and len(classes) > 1:
        suspects = find_suspects(index, k, lambda done, of: report("looking for suspects", done, of))
        found = {str(one.id): _ask_about(one) for one in suspects}
    for reason in ("unsure", "unlabelled"):
        if reason in reasons:
            for one in _compare(index, classes, k, reason, report):
                found.setdefault(one.id, one)
    return list(found.values())


def check_reasons(reasons: Sequence[str]) -> None:
    """An error unless all are of `REASONS`."""
    for name in reasons:
        if name not in REASONS:
            raise unknown_choice("reason", name, REASONS)


def _ask_about(one: Suspect) -> Question:
    near = tuple({"id": str(n.id), "label": n.label, "similarity": n.similarity} for n in one.neighbours)
    said = f"{100 * one.share:.0f} % of the neighbours' similarity says {one.suggested}"
    return Question(str(one.id), one.label, one.suggested, "suspect", said, near)


def _compare(index: Index, classes: EnrolledClasses, k: int, reason: str, report: Report) -> list[Question]:
    """Items without a label, or those whose label is hardly above another in the votes of their neighbours."""
    store, labelled = index.store, reason == "unsure"
    every = np.concatenate([some for some, _ in store.scan()])
    rows = every[(classes.of_row[every] >= 0) == labelled]
    if not len(rows) or (labelled and len(classes) < 2):
        return []
    found = compare_with_labelled(
        lambda places: store.read_vectors(rows[places]),
        len(rows),
        store,
        classes,
        k,
        own=rows if labelled else None,
        progress=lambda done, of: report(f"looking for {reason} items", done, of),
    )
    doubt, proposed = -found.margin, found.best[:, 0]
    chosen = np.arange(len(rows))
    if labelled:
        own = classes.of_row[rows]
        differs = found.best[:, 0] != own
        doubt = np.where(differs, found.shares[:, 0] - np.where(found.best[:, 1] == own, found.shares[:, 1], 0), doubt)
        proposed = np.where(differs, found.best[:, 0], found.best[:, 1])
        chosen = np.flatnonzero(doubt > -UNSURE)
    chosen = chosen[np.argsort(-doubt[chosen], kind="stable")]
    return _describe(index, classes, rows[chosen], found.part(chosen), proposed[chosen], k, reason)


def _describe(
    index: Index,
    classes: EnrolledClasses,
    rows: NDArray[np.int64],
    found: NearLabelled,
    proposed: NDArray[np.int32],
    k: int,
    reason: str,
) -> list[Question]:
    if not len(rows):
        return []
    names = [None if code < 0 else str(classes.names[code]) for code in proposed.tolist()]
    table = index.store.read_table(rows).select(["id", LABEL]).to_pylist()
    near = nearest_others(index.store.read_vectors(rows), index.store, k, rows, classes.labelled)
    hits = Hits.look_up(near, index.store).records()
    listed = []
    for n, record in enumerate(table):
        label = None if record[LABEL] is None else str(record[LABEL])
        shares = [
            f"{100 * share:.0f} % {classes.names[code]}"
            for code, share in zip(found.best[n].tolist(), found.shares[n].tolist(), strict=True)
            if code >= 0
        ]
        neighbours = tuple(
            {"id": str(hit["id"]), "label": hit[LABEL], "similarity": float(hit["similarity"])} for hit in hits[n]
        )
        said = f"the votes of the neighbours: {', '.join(shares)}"
        listed.append(Question(str(record["id"]), label, names[n], reason, said, neighbours))
    return listed


def list_open(questions: Sequence[Question], decided: Mapping[str, Decision]) -> list[Question]:
    """The questions that nobody has decided."""
    return [one for one in questions if one.id not in decided]


def require_labels(index: Index) -> None:
    """An error where there is nothing to compare labels with."""
    if LABEL not in index.columns:
        raise LabelError(
            "label: expected an index with labels, got one without; index class folders or a manifest, or give some "
            "with metrix index --set"
        )
