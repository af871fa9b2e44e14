"""Recall@K of a model: what a validation and the end of a run measure."""

from __future__ import annotations

from typing import Any

import torch

from metrix.data.training_parts import FEW_CLASSES
from metrix.evaluate.retrieval import count_hits
from metrix.train.batches import ImageBatches, relate_classes
from metrix.train.distributed import Team
from metrix.train.fit import measure_fit

KS = (1, 2, 4, 8)
KS_LARGE = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}


def measure(batches: ImageBatches, name: str, team: Team, fit: bool = False) -> dict[str, Any]:
    """Recall@K of a part, of queries against the gallery where the data has one; processes share the queries.

    Where classes are positive to each other in degrees, also NDCG@K. Images of a query's own sequence do not count.
    With `fit`, also how well the network fits its training classes: see `metrix.train.fit`.
    """
    dataset, device = batches.dataset, team.device
    ks = KS_LARGE.get(dataset.catalogue.layout, KS)
    share = team.rank, team.size
    if name == "test" and dataset.separate_gallery:
        queries, gallery = dataset.query, dataset.gallery
        vectors, searched = batches.embed(queries, device).to(device), batches.embed(gallery, device).to(device)
        relation = relate_classes(batches.config, dataset, queries.class_names)
        tracks = queries.sequences, gallery.sequences
        found = count_hits(vectors, queries.labels, ks, searched, gallery.labels, share, relation, *tracks)
    else:
        queries = dataset.part(name)
        relation = relate_classes(batches.config, dataset, queries.class_names)
        vectors = batches.embed(queries, device).to(device)
        found = count_hits(vectors, queries.labels, ks, share=share, relation=relation, sequences=queries.sequences)
    answered, *hits = team.sum([found.queries, *found.hits.values()])
    recall = {str(k): hit / answered for k, hit in zip(ks, hits, strict=True)}
    measured = {"recall": recall, "images": len(queries), "classes": queries.num_classes}
    if queries.num_classes < FEW_CLASSES:
        measured["few_classes"] = True
    if found.ndcg is not None:
        gains = team.sum_tensor(torch.tensor(list(found.ndcg.values()), dtype=torch.float64)).tolist()
        measured["ndcg"] = {str(k): gain / answered for k, gain in zip(ks, gains, strict=True)}
    if fit and relation is None:
        measured["fit"] = measure_fit(batches, team, queries, vectors)
    return measured


def score(found: dict[str, Any]) -> float:
    """The number by which the best model is selected: Recall@1."""
    return float(found["recall"]["1"])
