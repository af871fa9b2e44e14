"""What a validation and the end of a run measure."""

from __future__ import annotations

from typing import Any

from metrix.evaluate.retrieval import recall_counts
from metrix.train.batches import Images
from metrix.train.distributed import Team

KS = (1, 2, 4, 8)
KS_LARGE = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}


def measured(source: Images, name: str, team: Team) -> dict[str, Any]:
    """Recall@K of a part; of queries against the gallery where there is one. Each process answers its share."""
    dataset, device = source.dataset, team.fabric.device
    ks = KS_LARGE.get(dataset.catalogue.layout, KS)
    share = team.rank, team.size
    if name == "test" and dataset.separate_gallery:
        queries, gallery = dataset.query, dataset.gallery
        vectors, searched = source.embed(queries, device), source.embed(gallery, device)
        found = recall_counts(vectors, queries.labels, ks, searched, gallery.labels, share)
    else:
        queries = dataset.part(name)
        found = recall_counts(source.embed(queries, device), queries.labels, ks, share=share)
    answered, *hits = team.added([found.queries, *found.hits.values()])
    recall = {str(k): hit / answered for k, hit in zip(ks, hits, strict=True)}
    return {"recall": recall, "images": len(queries), "classes": queries.num_classes}


def score(found: dict[str, Any]) -> float:
    """What models are selected by: Recall@1."""
    return float(found["recall"]["1"])
