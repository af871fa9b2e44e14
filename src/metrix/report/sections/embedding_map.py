"""Embedding map: some test classes in the plane, by t-SNE."""

from __future__ import annotations

from collections.abc import Sequence

from metrix.report.figures.maps import choose_examples, draw_class_map, project_to_plane
from metrix.report.page import Block, Section, SideBySide, Text
from metrix.report.page.escaping import slugify
from metrix.report.reported_runs import ReportedRun, group_comparable
from metrix.report.sections import name_missing
from metrix.train.batches import Report


def build_map_section(runs: Sequence[ReportedRun], classes: int, seed: int, report: Report) -> Section:
    """A t-SNE map for each run; runs with the same test images show the same examples."""
    blocks: list[Block] = []
    groups = group_comparable(runs)
    done, of = 0, sum(map(len, groups))
    for group in groups:
        maps: list[Block] = []
        first = None
        for run in group:
            vectors, labels = run.test.everything
            shown = choose_examples(labels, classes, seed=seed)
            points = project_to_plane(vectors[shown.rows], seed, like=first)
            first = points if first is None else first
            name = f"map-{slugify(run.name)}"
            maps.append(draw_class_map(points, [str(label) for label in labels[shown.rows]], name=name, title=run.name))
            done += 1
            report("maps", done, of)
        blocks.append(SideBySide(maps))
    if groups:
        about = (
            f"t-SNE of {classes} unseen classes, drawn at random; runs with the same test data show the same "
            "examples. Neighbours on the map are neighbours in the embedding space, but distances between clusters and "
            "their sizes mean little. Maps are rotated and mirrored to match the first."
        )
        blocks.insert(0, Text(about))
    return Section("Embedding map", [*blocks, *name_missing(runs)])
