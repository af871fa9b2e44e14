"""What `metrix evaluate --rerank` measures: each query searched among all others, which refine it without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metrix.runs.evaluation import Examples, evaluate_examples
from metrix.search import Index


def examples(seed: int = 0, n: int = 90) -> Examples:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 9
    return Examples(rng.standard_normal((9, 6))[labels] + 0.9 * rng.standard_normal((n, 6)), labels)


@pytest.mark.parametrize(("expand", "rerank"), [(3, 0), (0, 40), (2, 40)])
def test_a_query_is_left_out_of_its_own_refinement(expand: int, rerank: int) -> None:
    given = examples()
    hits = []
    for q in range(len(given.labels)):
        others = np.delete(np.arange(len(given.labels)), q)
        found = Index.build(given.vectors[others]).search(given.vectors[[q]], 1, expand=expand, rerank=rerank)
        hits.append(given.labels[others[found.ids[0, 0]]] == given.labels[q])
    result = evaluate_examples(given, (1, 4), resamples=20, clustered=False, expand=expand, rerank=rerank)
    assert result.retrieval.means["recall@1"] == pytest.approx(np.mean(hits), abs=1e-12)
    plain = evaluate_examples(given, (1, 4), resamples=20, clustered=False)
    assert result.refinement is not None
    assert result.refinement["recall@1"].a == plain.retrieval.means["recall@1"]
    assert result.retrieval.search_loss is None


def test_a_separate_gallery_is_searched_whole() -> None:
    given, searched = examples(), examples(1)
    both = Examples(given.vectors, given.labels, searched.vectors, searched.labels)
    result = evaluate_examples(both, (1,), resamples=20, clustered=False, expand=3, rerank=30)
    found = Index.build(searched.vectors).search(given.vectors, 1, expand=3, rerank=30).ids[:, 0]
    assert result.retrieval.means["recall@1"] == pytest.approx((searched.labels[found] == given.labels).mean())


@pytest.mark.parametrize(("expand", "rerank"), [(3, 0), (2, 40)])
@pytest.mark.parametrize("separate", [False, True])
def test_what_is_of_a_querys_sequence_takes_no_part(expand: int, rerank: int, separate: bool) -> None:
    given, searched = examples(), examples(1) if separate else examples()
    tracks = np.array([f"track {n % 5}" if n % 3 else "" for n in range(90)])
    hits = []
    for q in range(90):
        there = np.flatnonzero((tracks != tracks[q]) | (tracks[q] == ""))
        others = there if separate else there[there != q]
        found = Index.build(searched.vectors[others]).search(given.vectors[[q]], 1, expand=expand, rerank=rerank)
        hits.append(searched.labels[others[found.ids[0, 0]]] == given.labels[q])
    both = Examples(given.vectors, given.labels, sequences=tracks)
    if separate:
        both = replace(both, gallery=searched.vectors, gallery_labels=searched.labels, gallery_sequences=tracks)
    result = evaluate_examples(both, (1,), resamples=20, clustered=False, expand=expand, rerank=rerank)
    assert result.retrieval.means["recall@1"] == pytest.approx(np.mean(hits), abs=1e-12)
    plain = evaluate_examples(both, (1,), resamples=20, clustered=False)
    approximate = evaluate_examples(both, (1,), resamples=20, clustered=False, approximate=True).retrieval
    assert approximate.search_loss is not None
    assert approximate.means["recall@1"] + approximate.search_loss["recall@1"] == pytest.approx(
        plain.retrieval.means["recall@1"]
    )
