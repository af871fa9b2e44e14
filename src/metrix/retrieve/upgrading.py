"""A new model under an old index: queries go through the new one and an adapter, items keep their vectors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, LabelError, check_integer
from metrix.messages import count
from metrix.retrieve.adapter_measures import MeasuredAdapters, measure_adapters
from metrix.retrieve.encoder import ImageEncoder, fingerprint
from metrix.retrieve.engine_choice import open_query_engine
from metrix.retrieve.vector_pairs import VectorPairs, pair_images, pair_items
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.search import LABEL, Fingerprint, Index, Threshold
from metrix.search.adapters import FittedAdapter, fit_adapter, require_kind
from metrix.search.calibration import KnownAnswers, require_several, score_as_unknown
from metrix.search.class_scores import VOTERS, EnrolledClasses, score_classes
from metrix.search.cross_pairs import count_cross_pairs
from metrix.search.description import BeforeUpgrade, IndexAdapter, OpenSet
from metrix.search.open_set import choose_open_set
from metrix.train.batches import Report, ignore_report
from metrix.train.run_folder import open_run_folder

MOST = 2000  # images that are embedded again by default
SUFFICE = 1000
FALSE_ACCEPT = 0.1  # wanted of the threshold of unknown, where none was chosen before


@dataclass(frozen=True, eq=False)
class Upgraded:
    """An index and the adapter for it, with what was measured."""

    index: Index
    kind: str
    measured: MeasuredAdapters
    pairs: VectorPairs
    threshold: Threshold | None
    open_set: OpenSet | None
    remarks: tuple[str, ...]
    kept: bool  # False: only measured

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "index": str(self.index.folder),
            "adapter": self.kind,
            "pairs": len(self.pairs),
            "kept": self.kept,
            **self.measured.to_dict(),
            "threshold": None if self.threshold is None else self.threshold.model_dump(),
            "open_set": None if self.open_set is None else self.open_set.model_dump(),
        }


def upgrade_index(
    index: Index,
    run: Path,
    *,
    images: Sequence[str | os.PathLike[str]] = (),
    old_run: Path | None = None,
    most: int = MOST,
    kind: str | None = None,
    keep: bool = True,
    resamples: int = 1000,
    seed: int = 0,
    report: Report = ignore_report,
) -> Upgraded:
    """Let the queries of an index go through the model of another run.

    Args:
        index: of images, in a folder.
        run: of the new model.
        images: to fit on, which both models embed; by default the items of the index whose images are at hand.
        old_run: the run that made the items, if it has moved; it is needed with `images` only.
        most: images that are embedded.
        kind: of the adapter, a key of ADAPTERS; by default that of the highest Recall@1 on held-out classes.
        keep: False only measures.
        resamples: of the bootstrap, for intervals.
        seed: of the images that are drawn, of what is held out, and of the bootstrap.
        report: is called with the progress.
    """
    check_integer("most", most, 1)
    made_by = index.description.model_of_items
    if made_by is None:
        raise InvalidInput(
            f"{index.folder}: expected an index of a run's vectors, got one that names no model; fit an adapter in "
            "Python on pairs of vectors: metrix.search.adapters.fit_adapter"
        )
    model = open_run(run, report)
    new = _require_new(index, made_by, model)
    if kind is not None:
        require_kind(kind, new.dim, index.dim)
    encoder = ImageEncoder(model, index.description.data)
    if images:
        old = _open_old(index, made_by, old_run, report)
        pairs = pair_images(images, encoder, old, most, seed=seed, report=report)
    else:
        pairs = pair_items(index, encoder, most, seed, report)
    kinds = None if kind is None else [kind]
    measured = measure_adapters(
        pairs.new, pairs.old, pairs.labels, kinds, resamples=resamples, seed=seed, report=report
    )
    groups = pairs.labels if measured.held_out == "classes" else None
    adapter = fit_adapter(pairs.new, pairs.old, measured.chosen, groups, seed)
    remarks = [_describe_few(pairs)] if len(pairs) < SUFFICE else []
    remarks += _describe_loss(measured)
    before = _before(index, made_by)
    threshold = _choose_threshold(before, measured, pairs, resamples, seed, remarks)
    open_set = _choose_open_set(before, measured, pairs, seed, remarks)
    if keep:
        _keep(index, adapter, new, before, measured, pairs, threshold, open_set)
    return Upgraded(index, measured.chosen, measured, pairs, threshold, open_set, tuple(remarks), keep)


def _require_new(index: Index, made_by: Fingerprint, model: TrainedModel) -> Fingerprint:
    if model.embedder.takes_vectors:
        raise InvalidInput(f"--run: expected a run on images, got {model.run.path}, which was trained on vectors")
    new = fingerprint(model, index.description.data)
    if (new.digest, new.view) == (made_by.digest, made_by.view):
        raise InvalidInput(
            f"--run: expected another model than made {index.folder}, got the same ({model.run.path}); there is "
            "nothing to upgrade" + ("; --undo takes the adapter away" if index.adapter is not None else "")
        )
    return new


def _open_old(index: Index, made_by: Fingerprint, old_run: Path | None, report: Report) -> ImageEncoder:
    place = old_run or (None if made_by.run is None else Path(made_by.run))
    if place is None or not place.is_dir():
        raise InvalidInput(
            f"--images: expected the run that made the items, to embed them by it, too, got nothing in {place}; give "
            "--old RUN, or leave --images out to use the images of the index"
        )
    whole = open_run_folder(place).config.model.dim
    model = open_run(place, report, dim=made_by.dim if made_by.dim < whole else None, force_dim=True)
    made_by.require(fingerprint(model, index.description.data))
    return ImageEncoder(model, index.description.data, open_query_engine(made_by.engine, model))


def _before(index: Index, made_by: Fingerprint) -> BeforeUpgrade:
    now = index.description
    if now.adapter is not None:
        return now.adapter.before
    return BeforeUpgrade(model=made_by, threshold=now.threshold, open_set=now.open_set)


def _describe_few(pairs: VectorPairs) -> str:
    return (
        f"the adapter is fitted on {pairs.whence} only; {SUFFICE:,} often suffice, and more images bring it closer to "
        "the old model"
    )


def _describe_loss(measured: MeasuredAdapters) -> list[str]:
    """A warning where it is certain that queries through the adapter find less than those of the old model."""
    found = measured.searches[measured.chosen]
    if found.difference_interval is None or found.difference_interval[1] >= 0:
        return []
    low, high = (100 * bound for bound in found.difference_interval)
    return [
        f"queries through the adapter find less than those of the old model: Recall@1 {100 * found.difference:+.1f} "
        f"points ({low:+.1f} to {high:+.1f}); rather let the old model answer until the items are embedded again"
    ]


def _choose_threshold(
    before: BeforeUpgrade,
    measured: MeasuredAdapters,
    pairs: VectorPairs,
    resamples: int,
    seed: int,
    remarks: list[str],
) -> Threshold | None:
    """The similarity of the same thing, for the same target as before, on held-out pairs of a query and an item."""
    was = before.threshold
    if was is None:
        return None
    try:
        if pairs.labels is None:
            raise LabelError("labels: expected some, got none")
        counted = count_cross_pairs(
            measured.mapped[measured.chosen], pairs.old, pairs.labels, min(resamples, 500), seed
        )
        found = counted.threshold(was.target, was.wanted)
    except InvalidInput as error:
        remarks.append(
            f"the threshold {was.similarity:.4f} of the same thing holds for queries of the old model only, and is set "
            f"aside: {error}"
        )
        return None
    remarks.append(
        f"the threshold of the same thing ({was.target} {was.wanted:g}) is chosen anew, on {pairs.whence}: "
        f"{found.similarity:.4f}, before {was.similarity:.4f}"
    )
    return found


def _choose_open_set(
    before: BeforeUpgrade, measured: MeasuredAdapters, pairs: VectorPairs, seed: int, remarks: list[str]
) -> OpenSet | None:
    """From which probability on a query is of an enrolled class, with held-out queries through the adapter."""
    if pairs.labels is None:
        if before.open_set is not None:
            remarks.append(
                "the threshold of unknown holds for queries of the old model only, and is set aside: no labels"
            )
        return None
    target, wanted = ("false_accept", FALSE_ACCEPT)
    if before.open_set is not None:
        target, wanted = before.open_set.target, before.open_set.wanted
    k = VOTERS if before.open_set is None else before.open_set.calibration.k
    store = Index.build(pairs.old, columns={LABEL: list(pairs.labels)}).store
    classes = EnrolledClasses.read(store)
    queries = measured.mapped[measured.chosen]
    codes = classes.of_row.astype("int64")
    try:
        require_several(classes)
        found = (classes.sizes[codes] > 1).nonzero()[0]
        known = score_classes(queries[found], store, classes, k, own=found)
        unknown, unknown_codes = score_as_unknown(queries, codes, store, classes, k)
        answers = KnownAnswers(known, codes[found], unknown, unknown_codes)
        chosen = choose_open_set(answers, classes, target, wanted, k=k, resamples=0, seed=seed).open_set
    except InvalidInput as error:
        remarks.append(f"no threshold of unknown holds for queries of the new model: {error}")
        return None
    remarks.append(
        f"probabilities of metrix classify are calibrated anew, on {count(len(queries), 'image')} of "
        f"{count(len(classes), 'class')}: below {chosen.probability:.3f} unknown, {target.replace('_', ' ')} {wanted:g}"
    )
    return chosen


def _keep(
    index: Index,
    adapter: FittedAdapter,
    new: Fingerprint,
    before: BeforeUpgrade,
    measured: MeasuredAdapters,
    pairs: VectorPairs,
    threshold: Threshold | None,
    open_set: OpenSet | None,
) -> None:
    now = index.description.adapter
    record = IndexAdapter(
        kind=adapter.kind,
        file="",  # it is named when it is written
        pairs=len(pairs),
        measured=measured.to_dict(),
        mapped=0 if now is None else now.mapped,
        before=before,
    )
    if open_set is not None:  # of the whole index, so that a classifier notices how it changes
        classes = EnrolledClasses.read(index.store)
        open_set = open_set.model_copy(update={"items": int(classes.sizes.sum()), "classes": len(classes)})
    index.keep_adapter(adapter, record, new, threshold, open_set)
