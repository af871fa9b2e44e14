"""Which class of an index an image is of, with a probability, or "unknown".

    from metrix import Classifier

    classifier = Classifier.fit("photos.index")
    for found in classifier.predict(["query.jpg"]):
        print(found.query, found.label, found.probability)     # label is None for unknown

Nothing is trained: images that are added to the index are enrolled.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, MetrixWarning, ShapeError, check_integer, describe_value
from metrix.messages import count
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.indexing import describe_skipped
from metrix.retrieve.queries import Queries, embed_queries, find_prefix, open_encoder
from metrix.runs.open_set import read_open_set
from metrix.search import Hits, Index
from metrix.search.calibration import answer_items, class_probabilities, fit_calibration, known_probability
from metrix.search.class_scores import TEMPERATURE, VOTERS, ClassScores, EnrolledClasses, score_classes
from metrix.search.description import Calibration, OpenSet
from metrix.search.filters import read_filter
from metrix.search.items import unit_vectors
from metrix.train.batches import Report, ignore_report

EVEN = 0.5  # the probability from which on a query is known, where none was chosen
MOST_CLASSES = 5  # of an answer
AT_ONCE = 2048  # queries that are searched together
CHANGED = 0.2  # share of the items or classes by which an index may change before its threshold is doubtful


@dataclass(frozen=True)
class ClassProbability:
    """A class that a query may be of."""

    label: Any
    probability: float
    votes: float  # its share of the weighted votes of the nearest items
    similarity: float  # the cosine with its centroid


@dataclass(frozen=True)
class Prediction:
    """The answer to a query: the label, None for unknown, and what speaks for it."""

    query: str
    label: Any  # None: unknown
    probability: float  # that `best` is right
    known: float  # the probability of being of any enrolled class
    best: Any  # the most likely class, also of an unknown query; None if nothing was found
    classes: tuple[ClassProbability, ...]  # the most likely first
    neighbours: tuple[dict[str, Any], ...]  # id, similarity and columns, the nearest first

    @property
    def unknown(self) -> bool:
        """Whether the query is of no enrolled class."""
        return self.label is None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "unknown": self.unknown}


class Classifier:
    """Answers with classes of an index. Make one with `Classifier.fit`.

    Attributes:
        threshold: the probability of being of any enrolled class below which a query is unknown.
        calibration: the numbers that make probabilities of similarities.
        measured: what the threshold was chosen for; None if it was not: then it is a half, or was given.
    """

    def __init__(
        self,
        index: Index,
        classes: EnrolledClasses,
        calibration: Calibration,
        threshold: float,
        measured: OpenSet | None = None,
        run: Path | None = None,
        report: Report = ignore_report,
    ) -> None:
        self.index, self.classes, self.calibration = index, classes, calibration
        self.threshold, self.measured = threshold, measured
        self._run, self._report = run, report
        self._encoder: ImageEncoder | None = None
        self._given: float | None = None  # the threshold that the user gave
        self._of_items = index.adapter is None  # whether it is that of items by their own vectors, too
        self._for_items: Classifier | None = None  # where that is another one

    @classmethod
    def fit(
        cls,
        index: Index | str | os.PathLike[str],
        *,
        run: str | os.PathLike[str] | None = None,
        k: int | None = None,
        threshold: float | None = None,
        report: Report = ignore_report,
    ) -> Classifier:
        """A classifier of what an index holds; centroids are computed, and probabilities calibrated if need be.

        Calibration and threshold are those that `metrix threshold --open-set` stored in the index, else in its run.
        Where neither has them, up to 1,000 items of the index are asked about, each without itself and without its
        class, and the threshold is a half.

        Args:
            index: an index with labels, or its folder.
            run: the run that it was built with, if it has moved.
            k: neighbours that vote; 10, or those of the stored calibration.
            threshold: the probability of being of any enrolled class below which a query is unknown.
            report: is called with the progress.

        Raises:
            LabelError: the index has no labels, one class, or one image of each class and no stored calibration.
        """
        if not isinstance(index, Index | str | os.PathLike):
            raise InvalidInput(f"index: expected an index or its folder, got {describe_value(index)}")
        opened = index if isinstance(index, Index) else Index.open(index)
        if threshold is not None:
            threshold = _check_probability(threshold)
        if k is not None:
            check_integer("k", k, 1)
        classes = EnrolledClasses.read(opened.store, lambda done, of: report("reading classes", done, of))
        folder = None if run is None else Path(run)
        stored = _find_stored(opened, folder)
        if stored is not None and k in (None, stored.calibration.k):
            chosen = stored.probability if threshold is None else threshold
            found = cls(opened, classes, stored.calibration, chosen, stored, folder, report)
        else:
            calibration = _calibrate(opened, classes, k or VOTERS, report)
            chosen = EVEN if threshold is None else threshold
            found = cls(opened, classes, calibration, chosen, None, folder, report)
        found._given = threshold
        return found

    def for_items(self) -> Classifier:
        """The classifier of items of the index by their own vectors.

        It is another one after `metrix upgrade`: items keep the vectors of the old model, and what holds for queries of
        the new one says nothing of their similarities. It has the calibration and the threshold from before the
        upgrade; without them, it is calibrated on the items.

        Raises:
            LabelError: there is one class, or one image of each, so that it cannot be calibrated.
        """
        if not self._of_items and self._for_items is None:
            self._for_items = self._fit_for_items()
        return self._for_items or self

    def _fit_for_items(self) -> Classifier:
        record, k = self.index.description.adapter, self.calibration.k
        before = None if record is None else record.before.open_set
        if before is not None and before.calibration.k != k:
            before = None
        if before is not None:
            calibration = before.calibration
        else:  # without a stored calibration, this one is already of items
            fitted = self.measured is None
            calibration = self.calibration if fitted else _calibrate(self.index, self.classes, k, self._report)
        usual = EVEN if before is None else before.probability
        chosen = usual if self._given is None else self._given
        found = Classifier(self.index, self.classes, calibration, chosen, before, self._run, self._report)
        found._of_items = True
        return found

    def on(self, index: Index) -> Classifier:
        """The same on the index as it was opened another time."""
        found = Classifier(
            index, self.classes, self.calibration, self.threshold, self.measured, self._run, self._report
        )
        found._given, found._of_items = self._given, self._of_items
        found._for_items = None if self._for_items is None else self._for_items.on(index)
        return found

    @property
    def caution(self) -> str:
        """A sentence if the index has changed much since its threshold was chosen; empty if not."""
        then = self.measured
        if then is None and not self._of_items:
            return (
                "probabilities are calibrated on items by the vectors of the model that made them, and queries go "
                "through another one: expect too many unknown; repeat metrix upgrade on items with labels"
            )
        if then is None:
            return ""
        now = {"items": int(self.classes.sizes.sum()), "classes": len(self.classes)}
        before = {"items": then.items, "classes": then.classes}
        if all(abs(now[name] - before[name]) <= CHANGED * before[name] for name in now):
            return ""
        return (
            f"the threshold was chosen on {count(before['items'], 'item')} of {before['classes']:,} classes, now there "
            f"are {now['items']:,} of {now['classes']:,}; choose it anew: metrix threshold INDEX --open-set"
        )

    @property
    def encoder(self) -> ImageEncoder:
        """What images go through: the model that the index was built with."""
        if self._encoder is None:
            self._encoder = open_encoder(self.index, self._run, self._report)
        return self._encoder

    def predict(
        self, images: Sequence[str | os.PathLike[str]], where: Sequence[str] = (), **reading: Any
    ) -> list[Prediction]:
        """The class of each image: files, folders, lists of paths or manifests, as for `embed_queries`.

        Those that cannot be read are left out, with a warning. Images of the index do not vote for themselves.
        """
        queries = embed_queries(self.encoder, self.index, images, report=self._report, **reading)
        if queries.skipped:
            warnings.warn(describe_skipped(queries.skipped), MetrixWarning, stacklevel=2)
        return self.predict_queries(queries, where)

    def predict_queries(
        self, queries: Queries, where: Sequence[str] = (), threshold: float | None = None
    ) -> list[Prediction]:
        """The class of each query; `threshold` is for these queries another one than the classifier's."""
        if queries.are_items and not self._of_items:
            return self.for_items().predict_queries(queries, where, threshold)
        dim = queries.vectors.shape[1]
        if dim != self.index.dim:
            raise ShapeError(f"queries: expected dimension {self.index.dim}, as the index has, got {dim}")
        own = np.asarray(queries.own, dtype=np.int64) if any(row >= 0 for row in queries.own) else None
        found: list[Prediction] = []
        for start in range(0, len(queries.names), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            mine = None if own is None else own[some]
            found += self._predict(queries.names[some], queries.vectors[some], mine, where, threshold)
            if len(queries.names) > AT_ONCE:
                self._report("classifying", min(start + AT_ONCE, len(queries.names)), len(queries.names))
        return found

    def predict_vectors(self, vectors: object, where: Sequence[str] = ()) -> list[Prediction]:
        """The class of each vector (q, d), at any scale."""
        unit = self.index.adapt(vectors)
        none = (None,) * len(unit)
        return self.predict_queries(Queries(tuple(map(str, range(len(unit)))), unit, (-1,) * len(unit), none), where)

    def _predict(
        self,
        names: Sequence[str],
        vectors: NDArray[np.float32],
        own: NDArray[np.int64] | None,
        where: Sequence[str],
        threshold: float | None,
    ) -> list[Prediction]:
        threshold = self.threshold if threshold is None else threshold
        chosen = read_filter(where, self.index.columns)
        scores = score_classes(
            unit_vectors(vectors, "queries"), self.index.store, self.classes, self.calibration.k, own=own, where=chosen
        )
        probability = class_probabilities(scores, self.calibration)
        known = known_probability(scores, self.calibration)
        shares = _share_votes(scores, self.classes)
        records = Hits.look_up(scores.neighbours, self.index.store).records()
        found = []
        for n, name in enumerate(names):
            order = [m for m in np.argsort(-probability[n], kind="stable").tolist() if scores.classes[n, m] >= 0]
            listed = tuple(
                ClassProbability(
                    self.classes.names[scores.classes[n, m]],
                    float(probability[n, m]),
                    float(shares[n, m]),
                    float(scores.centroids[n, m]),
                )
                for m in order[:MOST_CLASSES]
            )
            best = listed[0] if listed else None
            label = None if best is None or known[n] < threshold else best.label
            sure = 0.0 if best is None else best.probability
            found.append(Prediction(name, label, sure, float(known[n]), best and best.label, listed, tuple(records[n])))
        return found


def _check_probability(given: object) -> float:
    if not isinstance(given, Real) or isinstance(given, bool) or not 0 <= float(given) <= 1:
        raise InvalidInput(f"threshold: expected a probability from 0 to 1, got {describe_value(given)}")
    return float(given)


def _calibrate(index: Index, classes: EnrolledClasses, k: int, report: Report) -> Calibration:
    """The numbers that fit the items of an index best, each asked about without itself and without its class."""
    answers = answer_items(index.store, classes, k, progress=lambda done, of: report("calibrating", done, of))
    return fit_calibration(answers, k)


def _find_stored(index: Index, run: Path | None) -> OpenSet | None:
    """The threshold that was chosen for an index, or for the run that it was built with."""
    if index.description.open_set is not None:
        return index.description.open_set
    made_by = index.description.model
    if index.adapter is not None:  # what was chosen for the run holds for items of its model
        return None
    folder = run if run is not None else None if made_by is None or made_by.run is None else Path(made_by.run)
    if made_by is None or folder is None or find_prefix(index.description, folder) is not None:
        return None  # the run's is of whole embeddings
    return read_open_set(folder, made_by.digest)


def _share_votes(scores: ClassScores, classes: EnrolledClasses) -> NDArray[np.float64]:
    """The share (q, m) of the weighted votes that each candidate has."""
    near = scores.neighbours
    codes = np.where(near.rows < 0, -1, classes.of_row[np.maximum(near.rows, 0)])
    weights = np.where(codes < 0, 0.0, np.exp((near.similarities.astype(np.float64) - 1) / TEMPERATURE))
    mine = scores.classes[:, :, None] == codes[:, None, :]
    total = np.maximum(weights.sum(axis=1), np.finfo(np.float64).tiny)
    return np.asarray((mine * weights[:, None, :]).sum(axis=2) / total[:, None])
