"""Retrieval and clustering measures of a run, or of embeddings from files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metrix import evaluate
from metrix.core.compute.device_memory import block_bytes
from metrix.core.prefixes import check_prefix
from metrix.core.relations import Relation
from metrix.data.class_relations import describe_relation
from metrix.data.layouts.manifest import read_cell
from metrix.data.layouts.vectors import NAME as VECTORS
from metrix.data.training_parts import has_test_part
from metrix.data.vector_files import read_embeddings, read_labels, read_sequences
from metrix.errors import InvalidInput, LabelError
from metrix.evaluate import Clustering, Comparison, Retrieval
from metrix.extras import has_extra
from metrix.machine.devices import choose_device
from metrix.messages import first_few
from metrix.runs.class_table import list_classes, summarise_classes
from metrix.runs.output import write_csv, write_output
from metrix.runs.trained_model import TrainedModel
from metrix.train.batches import relate_classes
from metrix.train.measuring import KS, KS_LARGE

FORMAT = 1
CLUSTERED_AT_MOST = 200_000_000  # examples × classes; above it k-means takes minutes, so it must be asked for


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled embeddings to measure; if there is a gallery, `vectors` are the queries."""

    vectors: NDArray[Any]  # (n, d)
    labels: NDArray[Any]  # (n,)
    gallery: NDArray[Any] | None = None
    gallery_labels: NDArray[Any] | None = None
    about: dict[str, Any] | None = None  # where they come from, for reports
    relation: Relation | None = None  # how relevant classes are to each other, by their number in `classes`
    classes: NDArray[Any] | None = None  # sorted, with a relation
    sequences: NDArray[np.str_] | None = None  # (n,) "" for none; examples of a query's own do not count
    gallery_sequences: NDArray[np.str_] | None = None

    @property
    def every_sequence(self) -> NDArray[np.str_] | None:
        """The sequences of queries and gallery together."""
        if self.sequences is None or self.gallery_sequences is None:
            return self.sequences
        return np.concatenate([self.sequences, self.gallery_sequences])

    @property
    def arguments(self) -> dict[str, Any]:
        """Embeddings, labels and sequences, as `evaluate.retrieval` takes them."""
        return {
            "embeddings": self.vectors,
            "labels": _number(self, self.labels),
            "gallery": self.gallery,
            "gallery_labels": _number(self, self.gallery_labels),
            "sequences": self.sequences,
            "gallery_sequences": self.gallery_sequences,
        }

    def shorten(self, dim: int, trained: Sequence[int] = (), force_dim: bool = False) -> Examples:
        """The same examples with the first `dim` numbers of each embedding, of unit length.

        Args:
            dim: how many.
            trained: prefixes that the model was trained for.
            force_dim: take another one.
        """
        whole = int(self.vectors.shape[1])
        wanted = check_prefix(dim, whole, trained, force_dim)
        if wanted == whole:
            return self
        gallery = None if self.gallery is None else shorten_rows(self.gallery, wanted)
        about = {**(self.about or {}), "dim_of_whole": whole}
        return replace(self, vectors=shorten_rows(self.vectors, wanted), gallery=gallery, about=about)

    def without_sequences(self) -> Examples:
        """The same examples, of which all others count for a query."""
        return replace(self, sequences=None, gallery_sequences=None)

    @property
    def everything(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Queries and gallery together."""
        if self.gallery is None or self.gallery_labels is None:
            return self.vectors, self.labels
        return np.concatenate([self.vectors, self.gallery]), np.concatenate([self.labels, self.gallery_labels])


def shorten_rows(vectors: NDArray[Any], dim: int) -> NDArray[np.float32]:
    """The first numbers of vectors (n, d), of unit length; where they are all zero, they stay so."""
    part = np.asarray(vectors[:, :dim], np.float64)
    norms = np.linalg.norm(part, axis=1, keepdims=True)
    return np.asarray(part / np.where(norms > 0, norms, 1.0), np.float32)


@dataclass(frozen=True, eq=False)
class PrefixMeasure:
    """How well a prefix of the embeddings retrieves, beside the whole."""

    dim: int
    retrieval: Retrieval
    difference: Comparison  # to the whole, query by query

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"dim": self.dim, **self.retrieval.to_dict(), "difference": self.difference.to_dict()}


def measure_prefixes(
    examples: Examples, dims: Sequence[int], whole: Retrieval, *, resamples: int = 1000
) -> tuple[PrefixMeasure, ...]:
    """Measure prefixes of embeddings: Recall@1 and the others, and their paired differences to the whole.

    Args:
        examples: the embeddings.
        dims: lengths of the prefixes.
        whole: the measures of the whole embeddings, with Recall@1.
        resamples: of the bootstrap, for intervals; 0 for none.
    """
    if examples.relation is not None:
        return ()
    ks, over, found = whole.ks, whole.over or "classes", []
    for dim in dims:
        short = examples.shorten(dim, force_dim=True)
        measured = evaluate.retrieval(**short.arguments, ks=ks, resamples=resamples, over=over)
        measured = replace(measured, query_labels=whole.query_labels)
        found.append(
            PrefixMeasure(dim, measured, evaluate.compare(whole, measured, resamples=max(resamples, 1), over=over))
        )
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The measures, and what was measured."""

    about: dict[str, Any]
    retrieval: Retrieval
    clustering: Clustering | None
    refinement: Comparison | None = None  # of the refined search to the plain one, query by query
    prefixes: tuple[PrefixMeasure, ...] = ()  # that the model was trained for

    @property
    def examples(self) -> str:
        """What was measured, as tables call it: images, or vectors that a network was trained on."""
        return "vectors" if self.about.get("layout") == VECTORS else "images"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "format": FORMAT,
            **self.about,
            "retrieval": self.retrieval.to_dict(),
            "clustering": None if self.clustering is None else self.clustering.to_dict(),
            "per_class": None if self.retrieval.confusion is None else summarise_classes(self.retrieval).to_dict(),
            **({} if self.refinement is None else {"refinement": self.refinement.to_dict()}),
            **({"prefixes": [one.to_dict() for one in self.prefixes]} if self.prefixes else {}),
        }

    def write_per_class(self, path: Path) -> None:
        """Write a CSV with one line per class, the worst first: its images and queries, the mean of each measure, and
        the class that most of its wrong queries find first."""
        measures = list(self.retrieval.means)
        header = ["label", "images", "queries", *measures, "confused_with", "confused_queries"]
        rows = []
        for row in list_classes(self.retrieval):
            other = "" if row.confused_with is None else row.confused_with
            values = (repr(row.measures[name]) for name in measures)
            rows.append([row.label, row.images, row.queries, *values, other, row.confused])
        write_csv(path, header, rows)


def embed_examples(model: TrainedModel, spec: str | None = None, part: str = "test") -> Examples:
    """Embed a part of a run's data, or of the data `spec`; the test part gives queries and gallery if they differ."""
    dataset = model.open_data(spec)
    if part == "test" and not has_test_part(dataset.catalogue):
        raise InvalidInput(
            f"{model.run.path if spec is None else spec} has no test classes, so that nothing can be measured: "
            "expected some; give --data with classes that were not trained on, or measure a run that keeps some"
        )
    about = {
        "run": str(model.run.path),
        "data": spec if spec is not None else model.config.data.data,
        "layout": dataset.catalogue.layout,
        "part": part,
        "model": model.digest,
    }
    if part == "test" and dataset.separate_gallery:
        queries, gallery = model.embed("query", spec), model.embed("gallery", spec)
        about["fingerprint"] = f"{queries.fingerprint}{gallery.fingerprint}"
        examples = Examples(queries.vectors, queries.labels, gallery.vectors, gallery.labels, about)
        examples = replace(examples, sequences=queries.sequences, gallery_sequences=gallery.sequences)
    else:
        found = model.embed(part, spec)
        about["fingerprint"] = found.fingerprint
        examples = Examples(found.vectors, found.labels, about=about, sequences=found.sequences)
    if examples.sequences is not None:  # with other sequences, queries have other galleries
        listed = [None if one is None else one.tolist() for one in (examples.sequences, examples.gallery_sequences)]
        about["fingerprint"] += hashlib.sha256(repr(listed).encode()).hexdigest()
    if spec is not None and dataset.catalogue.categories is None and dataset.catalogue.separator is None:
        return examples  # other data, of plain classes
    classes = np.unique(examples.everything[1])
    relation = relate_classes(model.config, dataset, classes.tolist())
    if relation is None:
        return examples
    about["labels"] = describe_relation(relation)
    return replace(examples, relation=relation, classes=classes)


def read_examples(
    embeddings: Path, labels: Path | None, gallery: Path | None = None, gallery_labels: Path | None = None
) -> Examples:
    """Read embeddings and labels from files; a Parquet file can hold both."""
    if (gallery is None) and (gallery_labels is not None):
        raise InvalidInput("--gallery-labels: expected --gallery-embeddings with it, got none; give both, or neither")
    vectors, names, sequences = _read_labelled(embeddings, labels, "--labels")
    about: dict[str, Any] = {"embeddings": str(embeddings)}
    if gallery is None:
        return Examples(vectors, names, about=about, sequences=sequences)
    searched, searched_names, others = _read_labelled(gallery, gallery_labels, "--gallery-labels")
    about["gallery"] = str(gallery)
    if sequences is None or others is None:  # nothing of the gallery is of a query's sequence
        sequences = others = None
    return Examples(vectors, names, searched, searched_names, about, sequences=sequences, gallery_sequences=others)


def _read_labelled(
    embeddings: Path, labels: Path | None, flag: str
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.str_] | None]:
    if labels is None and embeddings.suffix.lower() != ".parquet":
        raise InvalidInput(f"{embeddings} has no labels: give them with {flag} FILE (.csv, .npy, .txt or .parquet)")
    vectors, table = read_embeddings(embeddings), labels or embeddings
    sequences = read_sequences(table, len(vectors))
    texts = None if sequences is None else np.array([read_cell(value) for value in sequences], dtype=np.str_)
    return vectors, read_labels(table, len(vectors), embeddings), texts


def evaluate_examples(
    examples: Examples,
    ks: tuple[int, ...] | None = None,
    *,
    resamples: int = 1000,
    over: str = "classes",
    approximate: bool = False,
    clustered: bool | None = None,
    expand: int = 0,
    rerank: int = 0,
    per_class: bool = False,
) -> Evaluation:
    """Measure retrieval and clustering.

    Args:
        examples: the embeddings
        ks: the K of Recall@K; the usual ones of the dataset by default
        resamples: bootstrap resamples, for confidence intervals
        over: what they draw: classes, or queries
        approximate: search an approximate index instead of all of the gallery
        clustered: whether to measure clustering; None does unless there are very many examples and classes, or faiss is
            not installed
        expand: search again with each query expanded by so many neighbours (αQE); 0 for none
        rerank: re-rank so many neighbours of each query by k-reciprocal sets; 0 for none
        per_class: whether to count which classes are confused

    Raises:
        LabelError: if all that can be found is of one class: no answer could be wrong, every measure would be 100 %
    """
    _require_two_classes(examples)
    about = dict(examples.about or {})
    chosen = ks or KS_LARGE.get(about.get("layout", ""), KS)
    if examples.relation is not None and (approximate or expand or rerank):
        raise InvalidInput(
            "--approximate, --expand, --rerank: expected none of them for a run whose labels have degrees "
            "(category_weight, or several labels of an example), which are measured by a plain, exact search; leave "
            "them out"
        )
    searcher = None
    if approximate:
        from metrix.search import Index

        searcher = Index.build(examples.vectors if examples.gallery is None else examples.gallery, kind="ivf")
    on_gpu = {"embeddings": _put_on_gpu(examples.vectors), "gallery": _put_on_gpu(examples.gallery)}
    retrieval = evaluate.retrieval(
        **{**examples.arguments, **on_gpu},
        ks=chosen,
        resamples=resamples,
        over=over,
        searcher=searcher,
        confusion=per_class and not (expand or rerank),
        relation=examples.relation,
    )
    if examples.classes is not None:
        names = retrieval.confusion and replace(retrieval.confusion, names=examples.classes)
        retrieval = replace(retrieval, query_labels=examples.labels[retrieval.query_rows], confusion=names)
    refinement = None
    if expand or rerank:
        if approximate:
            raise InvalidInput("--approximate: expected a plain search, got --expand or --rerank; give one of them")
        plain, retrieval = (
            retrieval,
            _measure_refined(examples, chosen, expand, rerank, resamples=resamples, over=over, per_class=per_class),
        )
        refinement = evaluate.compare(plain, retrieval, resamples=max(resamples, 1), over=over)
        about |= {"expand": expand, "rerank": rerank}
    vectors, labels = examples.everything
    classes = len(np.unique(labels))
    about |= {"images": len(vectors), "classes": classes, "dim": int(vectors.shape[1])}
    if clustered is None:
        clustered = len(vectors) * classes <= CLUSTERED_AT_MOST and has_extra("faiss")
    found = evaluate.clustering(vectors, labels) if clustered else None
    return Evaluation(about, retrieval, found, refinement)


def _put_on_gpu(vectors: NDArray[Any] | None) -> Any:
    """A copy on the GPU that computes, if it is CUDA and has the room; else the vectors as they are."""
    device = choose_device()
    if vectors is None or device.type != "cuda" or vectors.nbytes > block_bytes(device):
        return vectors
    return torch.tensor(vectors, device=device)


def _require_two_classes(examples: Examples) -> None:
    searched = examples.labels if examples.gallery_labels is None else examples.gallery_labels
    names = np.unique(searched)
    if len(names) < 2:
        raise LabelError(
            f"expected examples of two classes or more to measure on, got {len(searched):,} of the class "
            f"{first_few(names)} only: no answer could be wrong, and every measure would be 100 %; test on more "
            "classes (--unseen in training, --data here)"
        )


def _number(examples: Examples, labels: NDArray[Any] | None) -> NDArray[Any] | None:
    """Labels as numbers of the relation's classes, if there is one."""
    if labels is None or examples.classes is None:
        return labels
    return np.searchsorted(examples.classes, labels)


class _RefinedSearch:
    """A search with query expansion and re-ranking, in which no query takes part in its own refinement."""

    def __init__(self, examples: Examples, expand: int, rerank: int) -> None:
        from metrix.search import Index
        from metrix.search.sequences import SEQUENCE

        self.queries, self.shared, self.expand, self.rerank = examples.vectors, examples.gallery is None, expand, rerank
        self.sequences = examples.sequences
        gallery = examples.vectors if examples.gallery is None else examples.gallery
        searched = examples.sequences if examples.gallery is None else examples.gallery_sequences
        columns = None if searched is None else {SEQUENCE: list(searched)}
        self.index = Index.build(gallery, columns=columns)

    def search_rows(self, rows: NDArray[np.intp], k: int, /) -> NDArray[np.int64]:
        """The neighbours of some queries; what is of a query's own sequence takes no part in its refinement either."""
        from metrix.search.sequences import group_by_sequence

        found = np.full((len(rows), k), -1, dtype=np.int64)
        sequences = [""] * len(rows) if self.sequences is None else [self.sequences[row] for row in rows.tolist()]
        for numbers, where in group_by_sequence(sequences):
            some = rows[numbers]
            own = some.tolist() if self.shared else None
            here = self.index.search(
                self.queries[some], k, where=where, own=own, expand=self.expand, rerank=self.rerank
            ).rows
            found[numbers, : here.shape[1]] = here
        return found


def _measure_refined(
    examples: Examples, ks: tuple[int, ...], expand: int, rerank: int, *, resamples: int, over: str, per_class: bool
) -> Retrieval:
    found = evaluate.retrieval(
        **examples.arguments,
        ks=ks,
        resamples=resamples,
        over=over,
        searcher=_RefinedSearch(examples, expand, rerank),
        loss_sample=1,
        confusion=per_class,
    )
    return replace(found, search_loss=None, loss_sample=0)  # it is compared with the plain search on all queries


def write_evaluation(model: TrainedModel, result: Evaluation, own_test: bool) -> Path:
    """Write an evaluation into the run's folder: as `evaluation.json` if it is of its own test part (`own_test`)."""
    mark = result.about["fingerprint"][:12]
    name = "evaluation.json" if own_test else f"evaluation-{result.about['part']}-{mark}.json"
    path = model.run.path / name
    text = json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n"
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path
