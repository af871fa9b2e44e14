"""Reads what a caller asks to be measured into a `Task`: embeddings, labels, degrees and sequences, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError, ShapeError, check_integer
from metrix.evaluate.graded import as_graded
from metrix.evaluate.task import Sequences, Task
from metrix.evaluate.vectors import Array, Vectors, as_numpy, number_classes, read_labels

if TYPE_CHECKING:
    from metrix.core.relations import Relation

MISSING = ("", "nan", "none", "<na>", "nat")  # what a table has where there is no sequence


def read_ks(ks: Sequence[int]) -> tuple[int, ...]:
    """The cut-offs, checked, each once."""
    given = [ks] if isinstance(ks, int) else list(ks)
    if not given:
        raise InvalidInput("ks: expected at least one cut-off, as in ks=(1, 2, 4, 8), got none")
    return tuple(dict.fromkeys(check_integer("ks", k, least=1) for k in given))


def read_task(
    embeddings: object,
    labels: object,
    gallery: object = None,
    gallery_labels: object = None,
    relation: Relation | None = None,
    sequences: object = None,
    gallery_sequences: object = None,
) -> tuple[Task, Array, Array]:
    """The checked task, the labels of the queries as given, and the names of the classes in order."""
    given: Any = labels
    if hasattr(given, "relation") and hasattr(given, "numbers"):  # GradedLabels, without importing torch for them
        if relation is not None or gallery is not None:
            raise InvalidInput(
                "labels: expected the numbers of classes with a relation or a gallery, got labels that are about one "
                "batch; number the classes, and give their relation"
            )
        labels, relation = given.numbers, given.relation
    if (gallery is None) != (gallery_labels is None):
        missing = "gallery_labels" if gallery_labels is None else "gallery"
        raise InvalidInput(f"gallery and gallery_labels go together: {missing} is missing")
    if (sequences is None or gallery is None) and gallery_sequences is not None:
        missing = "gallery" if gallery is None else "sequences"
        raise InvalidInput(f"gallery_sequences: expected {missing} with them, got none")
    if sequences is not None and gallery is not None and gallery_sequences is None:
        raise InvalidInput("sequences: expected gallery_sequences with them, as there is a gallery, got none")
    queries = Vectors.read(embeddings)
    query_labels = read_labels(labels, len(queries))
    if gallery is None:
        names, (numbers,) = number_classes(query_labels)
        found = None if sequences is None else _number_sequences([(sequences, len(queries))])
        task = Task(queries, queries, numbers, numbers, shared=True, sequences=found)
        every_label = [query_labels]
    else:
        searched = Vectors.read(gallery, "gallery embeddings")
        if searched.dim != queries.dim:
            raise ShapeError(
                f"embeddings of {queries.dim} columns and gallery embeddings of {searched.dim}: expected the same "
                "number, as embeddings of one model have"
            )
        every_label = [query_labels, read_labels(gallery_labels, len(searched), "gallery labels")]
        names, (query_class, gallery_class) = number_classes(*every_label)
        both = [(sequences, len(queries)), (gallery_sequences, len(searched))]
        found = None if sequences is None else _number_sequences(both)
        task = Task(queries, searched, query_class, gallery_class, shared=False, sequences=found)
    if relation is None:
        return task, query_labels, names
    return as_graded(task, relation, *every_label), query_labels, np.arange(relation.num_classes)


def _number_sequences(given: Sequence[tuple[object, int]]) -> Sequences:
    """Sequences of queries, or of queries and gallery, by number; -1 where there is none."""
    read = [_read_sequences(values, count) for values, count in given]
    known = [values for values, _ in read if len(values)]
    numbers = iter(number_classes(*known)[1] if known else ())
    found = []
    for values, there in read:
        here = np.full(len(there), -1, dtype=np.intp)
        if len(values):
            here[there] = next(numbers)
        found.append(here)
    return Sequences(found[0], found[-1])


def _read_sequences(given: Any, count: int) -> tuple[Array, NDArray[np.bool_]]:
    """The sequences of the examples that have one, and which do."""
    values = as_numpy(given) if hasattr(given, "dtype") else np.array(list(given), dtype=object)
    if values.ndim != 1 or len(values) != count:
        raise ShapeError(f"sequences: expected shape ({count},), one for each embedding, got {values.shape}")
    there = np.ones(count, dtype=np.bool_)
    if values.dtype.kind not in "iub":
        there = np.array([str(value).strip().lower() not in MISSING for value in values.tolist()], dtype=np.bool_)
    present = values[there]
    return read_labels(present.tolist() if present.dtype.kind == "O" else present, len(present), "sequences"), there


def select_answerable(task: Task) -> NDArray[np.intp]:
    """The rows of the queries that can find an example of their class.

    Raises:
        LabelError: there is none.
    """
    wanted = np.flatnonzero(task.relevant > 0)
    if len(wanted) == 0:
        where = "another member" if task.shared else "a member in the gallery"
        outside = "" if task.sequences is None else " outside its own sequence"
        raise LabelError(
            f"none of the {len(task.queries)} queries has {where} of its class{outside}, so nothing can be found; "
            "check that the labels are classes, not ids"
        )
    return wanted
