"""Embeddings of some test classes in the plane."""

from __future__ import annotations

from collections.abc import Sequence

from metrix.report.figures.maps import choose_examples, draw_class_map, project_to_plane
from metrix.report.page import Block, Section, SideBySide, Text
from metrix.report.page.escaping import slug
from metrix.report.reported_runs import Subject, comparable
from metrix.report.sections import missing
from metrix.train.batches import Report


def map_section(subjects: Sequence[Subject], classes: int, seed: int, report: Report) -> Section:
    """A t-SNE map for each run: of the same examples where the test images are the same."""
    blocks: list[Block] = []
    groups = comparable(subjects)
    done, of = 0, sum(map(len, groups))
    for group in groups:
        maps: list[Block] = []
        first = None
        for subject in group:
            vectors, labels = subject.test.everything
            shown = choose_examples(labels, classes, seed=seed)
            points = project_to_plane(vectors[shown.rows], seed, like=first)
            first = points if first is None else first
            name = f"map-{slug(subject.name)}"
            maps.append(
                draw_class_map(points, [str(label) for label in labels[shown.rows]], name=name, title=subject.name)
            )
            done += 1
            report("maps", done, of)
        blocks.append(SideBySide(maps))
    if groups:
        about = (
            f"t-SNE of {classes} unseen classes, drawn at random and the same for all runs with the same test images. "
            "What is near stays near; how far apart two groups lie, and how wide they are, means little. Maps are "
            "turned to look alike."
        )
        blocks.insert(0, Text(about))
    return Section("Embedding map", [*blocks, *missing(subjects)])
