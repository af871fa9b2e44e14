"""Pictures of two models, one trained without and one with Metrix: retrieved images and maps of the embedding space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metrix.report.figures.maps import choose_examples, draw_class_map, draw_utilization_maps, project_to_plane
from metrix.report.figures.nearest import NeighbourSearch, build_gallery
from metrix.report.page import Block, Gallery, SideBySide
from metrix.runs.evaluation import Examples, embed_examples
from metrix.runs.mixed_examples import mix_examples
from metrix.runs.trained_model import open_run

QUERIES, NEAREST = 8, 5
CLASSES = (10, 15, 20)
SHOWN = {"training": 250, "queries": 60}  # points on a map, few enough to tell them apart


def draw_retrieval(runs: Mapping[str, Path], seed: int = 0) -> Gallery:
    """Show the nearest test images to some queries, for each model (fig. retrieval)."""
    models = {who: open_run(path) for who, path in runs.items()}
    found = {who: embed_examples(model) for who, model in models.items()}
    first, dataset = next(iter(found.values())), next(iter(models.values())).open_data()
    queries = dataset.query if dataset.separate_gallery else dataset.test
    searched = dataset.gallery if dataset.separate_gallery else dataset.test
    searchers = {who: NeighbourSearch(one.vectors, one.gallery) for who, one in found.items()}
    rows = choose_differing_queries(searchers, first, seed)
    return build_gallery(
        searchers,
        rows,
        first.labels,
        lambda row: _pixels(queries.image(row)),
        first.gallery_labels,
        lambda row: _pixels(searched.image(row)),
        k=NEAREST,
        caption=f"The {NEAREST} nearest test images, framed by whether they belong to the query's class. "
        "Queries are drawn at random from those for which the models differ in the number of correct neighbours.",
        name="retrieval",
    )


def choose_differing_queries(searchers: Mapping[str, NeighbourSearch], examples: Examples, seed: int = 0) -> list[int]:
    """Draw queries at random for which the models differ in the number of correct neighbours."""
    draws = np.random.default_rng(seed)
    sample = np.sort(draws.permutation(len(examples.labels))[:2000])
    names = examples.labels if examples.gallery_labels is None else examples.gallery_labels
    right = []
    for searcher in searchers.values():
        ids, _ = searcher.nearest(sample.tolist(), NEAREST)
        right.append((names[ids] == examples.labels[sample, None]).sum(1))
    differ = np.flatnonzero(np.ptp(np.stack(right), axis=0) > 0)
    pool = sample[differ] if len(differ) else sample
    return [int(row) for row in draws.permutation(pool)[:QUERIES]]


def draw_maps(runs: Mapping[str, Path], seed: int = 0) -> Iterator[Block]:
    """Map the test embeddings of some classes to the plane, for each model (fig. tsne)."""
    found = {who: embed_examples(open_run(path)).everything for who, path in runs.items()}
    labels = next(iter(found.values()))[1]
    for count in CLASSES:
        picked = choose_examples(labels, count, seed=seed)
        names = [str(name) for name in labels[picked.rows]]
        drawn: list[Block] = []
        before = None
        for who, (vectors, _) in found.items():
            before = project_to_plane(vectors[picked.rows], seed, like=before)
            title = f"{len(picked.classes)} classes, {who}"
            drawn.append(draw_class_map(before, names, name=f"tsne-{count}-{len(drawn) + 1}", title=title))
        yield SideBySide(drawn)


def draw_utilization(run: Path, seed: int = 0) -> SideBySide:
    """Map test queries and their nearest training embeddings, clean and mixed, of a model trained with mixup."""
    model = open_run(run)
    train, queries = embed_examples(model, part="train"), embed_examples(model).vectors
    draws = torch.Generator().manual_seed(seed)
    mixed = np.concatenate(list(mix_examples(model, train, model.config.mixing.mixup[0], 1, draws)))
    picks = np.random.default_rng(seed)
    return SideBySide(
        draw_utilization_maps(
            _some(train.vectors, SHOWN["training"], picks),
            _some(mixed, SHOWN["training"], picks),
            _some(queries, SHOWN["queries"], picks),
            name="utilization",
            caption="The embedding space with clean training examples only, and with mixed ones added. Lines connect "
            "each test query to its nearest training example; d² is computed from the points shown.",
            seed=seed,
        )
    )


def _some(rows: NDArray[Any], count: int, draws: np.random.Generator) -> NDArray[Any]:
    return rows[np.sort(draws.permutation(len(rows))[:count])]


def _pixels(image: torch.Tensor) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
