"""From which probability on an image is of an enrolled class, measured on a run's held-out classes and kept with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from metrix.errors import InvalidInput, LabelError
from metrix.runs.evaluation import embed_examples
from metrix.runs.output import write_output
from metrix.runs.trained_model import TrainedModel
from metrix.search import LABEL, Index
from metrix.search.calibration import KnownAnswers, answer_items, answer_queries_of_classes
from metrix.search.class_scores import VOTERS, EnrolledClasses
from metrix.search.description import OpenSet
from metrix.search.items import unit_vectors
from metrix.search.open_set import LARGER_SAMPLE, ChosenOpenSet, choose_open_set
from metrix.train.batches import Report, ignore_report

FILE = "open_set.json"


@dataclass(frozen=True, eq=False)
class MeasuredOpenSet:
    """A threshold, and what it was measured on."""

    chosen: ChosenOpenSet
    about: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**self.chosen.to_dict(), **self.about}


def measure_open_set(
    model: TrainedModel,
    target: str,
    wanted: float,
    *,
    data: str | None = None,
    shots: int | None = None,
    k: int = VOTERS,
    resamples: int = 500,
    seed: int = 0,
) -> MeasuredOpenSet:
    """Choose the threshold on a run's test images, as if they were enrolled.

    Args:
        model: of the run, from `open_run`.
        target: `false_accept` or `false_reject`, see `choose_open_set`.
        wanted: the most that this share may be.
        data: other data than the run's own; its test part is used.
        shots: images of each class that are enrolled, drawn at random, the others being queries; by default all are,
            and each is a query without itself.
        k: neighbours that vote.
        resamples: of the bootstrap over classes, for the intervals; 0 for none.
        seed: of the bootstrap and the draw.
    """
    vectors, labels = embed_examples(model, data).everything
    if shots is None:
        index, enrolled = Index.build(vectors, columns={LABEL: labels.tolist()}), len(vectors)
        classes = EnrolledClasses.read(index.store)
        progress = lambda done, of: model.report("asking about images", done, of)  # noqa: E731
        answers = answer_items(index.store, classes, k, sample=LARGER_SAMPLE, seed=seed, progress=progress)
    else:
        rows = draw_shots(labels, shots, np.random.default_rng(seed))
        answers, classes = answer_others(vectors, labels, rows, k)
        enrolled = len(rows)
    chosen = choose_open_set(answers, classes, target, wanted, k=k, resamples=resamples, seed=seed)
    about = {
        "on": str(model.run.path),
        "data": data if data is not None else model.config.data.data,
        "part": "test",
        "shots": shots,
        "enrolled": enrolled,
        "model": model.digest,
    }
    return MeasuredOpenSet(chosen, about)


def measure_index(
    index: Index,
    target: str,
    wanted: float,
    *,
    k: int = VOTERS,
    resamples: int = 500,
    seed: int = 0,
    report: Report = ignore_report,
) -> MeasuredOpenSet:
    """Choose the threshold on the items of an index, each asked about without itself and without its class."""
    if index.adapter is not None:
        raise InvalidInput(
            "--open-set: expected an index whose queries go through the model that made its items, got "
            f"{index.folder}, which was upgraded to another; metrix upgrade chooses it, with labels"
        )
    classes = EnrolledClasses.read(index.store, lambda done, of: report("reading classes", done, of))
    progress = lambda done, of: report("asking about items", done, of)  # noqa: E731
    answers = answer_items(index.store, classes, k, sample=LARGER_SAMPLE, seed=seed, progress=progress)
    chosen = choose_open_set(answers, classes, target, wanted, k=k, resamples=resamples, seed=seed)
    return MeasuredOpenSet(chosen, {"on": str(index.folder), "shots": None, "enrolled": int(classes.sizes.sum())})


def draw_shots(labels: NDArray[Any], shots: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of so many examples of each class, drawn at random, sorted; classes with fewer are left out."""
    order = rng.permutation(len(labels))
    names, codes = np.unique(labels[order], return_inverse=True)
    by_class = order[np.argsort(codes, kind="stable")]
    sizes = np.bincount(codes, minlength=len(names))
    starts = np.cumsum(sizes) - sizes
    kept = [by_class[start : start + shots] for start, size in zip(starts, sizes, strict=True) if size >= shots]
    if not kept:
        raise LabelError(f"--shots: expected classes with {shots} images or more, got none; ask for fewer")
    return np.sort(np.concatenate(kept))


def answer_others(
    vectors: NDArray[Any],
    labels: NDArray[Any],
    rows: NDArray[np.int64],
    k: int = VOTERS,
    among: NDArray[np.int64] | None = None,
) -> tuple[KnownAnswers, EnrolledClasses]:
    """Enrol the examples in `rows`, and ask about the other ones of their classes, with and without the class.

    `among` are rows to ask about; all by default.
    """
    store = Index.build(vectors[rows], columns={LABEL: labels[rows].tolist()}).store
    classes = EnrolledClasses.read(store)
    number = {name: n for n, name in enumerate(classes.names)}
    codes = np.array([number.get(one, -1) for one in labels.tolist()])
    asked = np.setdiff1d(np.flatnonzero(codes >= 0) if among is None else among, rows)
    if not len(asked):
        raise LabelError("--shots: expected classes with more images than are enrolled, to ask about; ask for fewer")
    queries = unit_vectors(vectors[asked])
    return answer_queries_of_classes(queries, codes[asked], store, classes, k), classes


def write_open_set(model: TrainedModel, found: MeasuredOpenSet) -> Path:
    """Keep a threshold in the run's folder, where indexes and `metrix classify` take it from."""
    path = model.run.path / FILE
    text = json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n"
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def read_open_set(run: Path, digest: str) -> OpenSet | None:
    """The threshold that a run's folder has for a model; None if there is none, or it is of another model."""
    path = run / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
        if content["model"] != digest:
            return None
        return OpenSet.model_validate({name: content[name] for name in OpenSet.model_fields})
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise InvalidInput(
            f"{path}: expected what metrix threshold --open-set wrote, got a damaged file; measure it anew"
        ) from error
