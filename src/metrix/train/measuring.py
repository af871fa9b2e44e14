"""Recall@K of a model: what a validation and the end of a run measure."""

from __future__ import annotations

from typing import Any

from metrix.evaluate.retrieval import count_hits
from metrix.train.batches import ImageBatches
from metrix.train.distributed import Team

KS = (1, 2, 4, 8)
KS_LARGE = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}


def measure(batches: ImageBatches, name: str, team: Team) -> dict[str, Any]:
    """Recall@K of a part, of queries against the gallery where the data has one; processes share the queries."""
    dataset, device = batches.dataset, team.device
    ks = KS_LARGE.get(dataset.catalogue.layout, KS)
    share = team.rank, team.size
    if name == "test" and dataset.separate_gallery:
        queries, gallery = dataset.query, dataset.gallery
        vectors, searched = batches.embed(queries, device), batches.embed(gallery, device)
        found = count_hits(vectors, queries.labels, ks, searched, gallery.labels, share)
    else:
        queries = dataset.part(name)
        found = count_hits(batches.embed(queries, device), queries.labels, ks, share=share)
    answered, *hits = team.sum([found.queries, *found.hits.values()])
    recall = {str(k): hit / answered for k, hit in zip(ks, hits, strict=True)}
    return {"recall": recall, "images": len(queries), "classes": queries.num_classes}


def score(found: dict[str, Any]) -> float:
    """The number by which the best model is selected: Recall@1."""
    return float(found["recall"]["1"])
