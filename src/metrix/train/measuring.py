"""What a validation and the end of a run measure."""

from __future__ import annotations

from typing import Any

import torch

from metrix import evaluate
from metrix.train.sources import Images

KS = (1, 2, 4, 8)
KS_LARGE = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}


def measured(source: Images, name: str, device: torch.device) -> dict[str, Any]:
    """Recall@K of a part; of queries against the gallery where there is one."""
    dataset = source.dataset
    ks = KS_LARGE.get(dataset.catalogue.layout, KS)
    if name == "test" and dataset.separate_gallery:
        queries, gallery = dataset.query, dataset.gallery
        recall = evaluate.recall_at_k(
            source.embed(queries, device),
            queries.labels,
            ks=ks,
            gallery=source.embed(gallery, device),
            gallery_labels=gallery.labels,
        )
        return {"recall": _by_name(recall), "images": len(queries), "classes": queries.num_classes}
    part = dataset.part(name)
    recall = evaluate.recall_at_k(source.embed(part, device), part.labels, ks=ks)
    return {"recall": _by_name(recall), "images": len(part), "classes": part.num_classes}


def score(found: dict[str, Any]) -> float:
    """What models are selected by: Recall@1."""
    return float(found["recall"]["1"])


def _by_name(recall: dict[int, float]) -> dict[str, float]:
    return {str(k): float(value) for k, value in recall.items()}
