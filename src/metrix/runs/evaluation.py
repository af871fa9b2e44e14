"""Measure a run, or embeddings from anywhere: retrieval and clustering on the test part."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix import evaluate
from metrix.errors import InvalidInput
from metrix.evaluate import Clustering, Retrieval
from metrix.runs.embedding import Embedded, TrainedModel, write_or_explain
from metrix.runs.reading import read_embeddings, read_labels
from metrix.train.measuring import KS, KS_LARGE

FORMAT = 1
CLUSTERED_AT_MOST = 200_000_000  # examples x classes; k-means past it takes minutes and is done on request


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled embeddings to measure; with a gallery, they are the queries."""

    vectors: NDArray[Any]  # (n, d)
    labels: NDArray[Any]  # (n,)
    gallery: NDArray[Any] | None = None
    gallery_labels: NDArray[Any] | None = None
    about: dict[str, Any] | None = None  # where they come from

    @property
    def everything(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Queries and gallery together."""
        if self.gallery is None or self.gallery_labels is None:
            return self.vectors, self.labels
        return np.concatenate([self.vectors, self.gallery]), np.concatenate([self.labels, self.gallery_labels])


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was measured, on what."""

    about: dict[str, Any]
    retrieval: Retrieval
    clustering: Clustering | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "format": FORMAT,
            **self.about,
            "retrieval": self.retrieval.to_dict(),
            "clustering": None if self.clustering is None else self.clustering.to_dict(),
        }

    def write_per_class(self, path: Path) -> None:
        """A CSV with a line for each class: its queries and the mean of each measure."""
        per_class = self.retrieval.per_class
        measures = list(self.retrieval.means)

        def write(temporary: Path) -> None:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["label", "queries", *measures])
                for label, row in per_class.items():
                    writer.writerow([label, row["queries"], *(repr(row[name]) for name in measures)])

        write_or_explain(path, write)


def examples_of_run(model: TrainedModel, spec: str | None = None, part: str = "test") -> Examples:
    """Embeddings of a part of a run's data, or of other data; queries and gallery where they are separate."""
    dataset = model.dataset(spec)
    about = {
        "run": str(model.run.path),
        "data": spec if spec is not None else model.config.data.data,
        "layout": dataset.catalogue.layout,
        "part": part,
        "model": model.digest,
    }
    if part == "test" and dataset.separate_gallery:
        queries, gallery = model.embedded("query", spec), model.embedded("gallery", spec)
        about["fingerprint"] = f"{queries.fingerprint}{gallery.fingerprint}"
        return Examples(queries.vectors, queries.labels, gallery.vectors, gallery.labels, about)
    found: Embedded = model.embedded(part, spec)
    about["fingerprint"] = found.fingerprint
    return Examples(found.vectors, found.labels, about=about)


def examples_of_files(
    embeddings: Path, labels: Path | None, gallery: Path | None = None, gallery_labels: Path | None = None
) -> Examples:
    """Embeddings and labels from files; a Parquet file can hold both."""
    if (gallery is None) and (gallery_labels is not None):
        raise InvalidInput("--gallery-labels without --gallery-embeddings: give both, or neither")
    vectors, names = _labelled(embeddings, labels, "--labels")
    about: dict[str, Any] = {"embeddings": str(embeddings)}
    if gallery is None:
        return Examples(vectors, names, about=about)
    searched, searched_names = _labelled(gallery, gallery_labels, "--gallery-labels")
    about["gallery"] = str(gallery)
    return Examples(vectors, names, searched, searched_names, about)


def _labelled(embeddings: Path, labels: Path | None, flag: str) -> tuple[NDArray[Any], NDArray[Any]]:
    if labels is None and embeddings.suffix.lower() != ".parquet":
        raise InvalidInput(f"{embeddings} without labels: give them with {flag} FILE (.csv, .npy, .txt or .parquet)")
    vectors = read_embeddings(embeddings)
    return vectors, read_labels(labels or embeddings, len(vectors), embeddings)


def evaluation(
    examples: Examples,
    ks: tuple[int, ...] | None = None,
    *,
    resamples: int = 1000,
    approximate: bool = False,
    clustered: bool | None = None,
) -> Evaluation:
    """Retrieval and, unless there are very many, clustering (`clustered` True or False decides it)."""
    about = dict(examples.about or {})
    chosen = ks or KS_LARGE.get(about.get("layout", ""), KS)
    searcher = None
    if approximate:
        from metrix.search import Index

        searcher = Index.build(examples.vectors if examples.gallery is None else examples.gallery, kind="approximate")
    retrieval = evaluate.retrieval(
        examples.vectors,
        examples.labels,
        chosen,
        examples.gallery,
        examples.gallery_labels,
        resamples=resamples,
        searcher=searcher,
    )
    vectors, labels = examples.everything
    classes = len(np.unique(labels))
    about |= {"images": len(vectors), "classes": classes, "dim": int(vectors.shape[1])}
    if clustered is None:
        clustered = len(vectors) * classes <= CLUSTERED_AT_MOST
    found = evaluate.clustering(vectors, labels) if clustered else None
    return Evaluation(about, retrieval, found)


def record(model: TrainedModel, result: Evaluation, own_test: bool) -> Path:
    """Write the evaluation into the run: `evaluation.json` for its own test part, another name for other data."""
    mark = result.about["fingerprint"][:12]
    name = "evaluation.json" if own_test else f"evaluation-{result.about['part']}-{mark}.json"
    path = model.run.path / name
    text = json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n"
    write_or_explain(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path
