"""The second half of the demo's search: which character is this, or is it none of those that are enrolled?

Characters never seen in training are divided at random into three groups. On the first, the threshold is chosen as
`metrix threshold --open-set` does; the second is enrolled; the third is unknown. Images of the second and the third
are then classified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.experiments.demo import Demonstration
from metrix.retrieve.classify import Classifier, Prediction
from metrix.retrieve.queries import Queries
from metrix.runs.trained_model import PartEmbeddings, open_run
from metrix.search import LABEL, Index
from metrix.search.calibration import answer_items
from metrix.search.class_scores import VOTERS, EnrolledClasses
from metrix.search.description import OpenSet
from metrix.search.open_set import LARGER_SAMPLE, choose_open_set

FALSE_ACCEPT = 0.1  # share of the images of unknown characters that may be taken for an enrolled one
UNKNOWN = (
    0.2  # share of the characters that are not enrolled; the others are enrolled and choose the threshold by halves
)


@dataclass(frozen=True)
class DemoClasses:
    """Images of enrolled and of unknown characters, and the answers to them.

    labelled     the first image of an enrolled character that got a label, and its character
    unknown      the first image of an unknown character that was found to be so, and its character
    right, wrong, missed   how many images of enrolled characters got their label, another one, or none
    rejected, accepted     how many images of unknown characters got no label, or one
    """

    classifier: Classifier
    labelled: tuple[Prediction, str] | None
    unknown: tuple[Prediction, str] | None
    right: int
    wrong: int
    missed: int
    rejected: int
    accepted: int

    @property
    def shown(self) -> list[tuple[Prediction, str]]:
        """The answers to show, with the true character of each."""
        return [one for one in (self.labelled, self.unknown) if one is not None]

    @property
    def tally(self) -> str:
        """How all images were answered, in a sentence."""
        known, unknown = self.right + self.wrong + self.missed, self.rejected + self.accepted
        return (
            f"Of {known:,} images of enrolled characters, {self.right:,} got their label, {self.wrong:,} another one, "
            f"and {self.missed:,} were called unknown; of {unknown:,} images of characters that are not enrolled, "
            f"{self.rejected:,} were called unknown."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        measured = self.classifier.measured
        counts = {name: getattr(self, name) for name in ("right", "wrong", "missed", "rejected", "accepted")}
        return {
            "threshold": None if measured is None else measured.model_dump(),
            "shown": [{**one.to_dict(), "truth": truth} for one, truth in self.shown],
            **counts,
        }


def classify_demo(found: Demonstration, queries: int = 200) -> DemoClasses:
    """Classify images of characters never seen in training with the first run with Metrix.

    Args:
        found: the finished demo
        queries: images of enrolled characters, and of unknown ones, drawn at random
    """
    model = open_run(found.runs / "metrix-seed-0")
    test, paths = model.embed("test"), model.open_data().test.paths
    rng = np.random.default_rng(0)
    names = rng.permutation(np.unique(test.labels))
    edges = np.round(np.array([UNKNOWN, (1 + UNKNOWN) / 2]) * len(names)).astype(int)
    unknown, enrolled, others = (np.flatnonzero(np.isin(test.labels, part)) for part in np.split(names, edges))
    chosen = _choose_threshold(test.vectors[others], test.labels[others])
    index = Index.build(
        test.vectors[enrolled],
        ids=[paths[row] for row in enrolled.tolist()],
        columns={LABEL: test.labels[enrolled].tolist()},
    )
    classes = EnrolledClasses.read(index.store)
    classifier = Classifier(index, classes, chosen.calibration, chosen.probability, chosen)
    own = rng.permutation(len(enrolled))[:queries]
    known = _classify(classifier, test, paths, enrolled[own], own)
    foreign = _classify(classifier, test, paths, rng.permutation(unknown)[:queries])
    missed = sum(one.unknown for one, _ in known)
    right = sum(one.label == truth for one, truth in known)
    rejected = sum(one.unknown for one, _ in foreign)
    return DemoClasses(
        classifier,
        next((answer for answer in known if not answer[0].unknown), None),
        next((answer for answer in foreign if answer[0].unknown), None),
        right,
        len(known) - right - missed,
        missed,
        rejected,
        len(foreign) - rejected,
    )


def _choose_threshold(vectors: NDArray[np.float32], labels: NDArray[np.str_]) -> OpenSet:
    store = Index.build(vectors, columns={LABEL: labels.tolist()}).store
    classes = EnrolledClasses.read(store)
    answers = answer_items(store, classes, VOTERS, sample=LARGER_SAMPLE)
    return choose_open_set(answers, classes, "false_accept", FALSE_ACCEPT, resamples=0).open_set


def _classify(
    classifier: Classifier,
    test: PartEmbeddings,
    paths: Sequence[str],
    rows: NDArray[np.intp],
    own: NDArray[np.intp] | None = None,
) -> list[tuple[Prediction, str]]:
    """The answers to some test images, with their characters; `own` are their rows in the index, if they are in it."""
    of_index = (-1,) * len(rows) if own is None else tuple(own.tolist())
    names = tuple(paths[row] for row in rows.tolist())
    asked = Queries(names, test.vectors[rows], of_index, (None,) * len(rows))
    return list(zip(classifier.predict_queries(asked), test.labels[rows].tolist(), strict=True))
