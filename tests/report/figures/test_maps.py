"""Maps of embeddings in the plane."""

from __future__ import annotations

import re

import numpy as np
import pytest

from metrix.report.figures import maps
from metrix.report.page.drawing import render_svg
from tests.report.figures.vectors import unit


def test_the_same_classes_are_chosen_for_the_same_labels() -> None:
    labels = np.array([f"c{n % 7}" for n in range(100)] + ["alone"])
    first = maps.choose_examples(labels, classes=4, per_class=5, seed=3)
    assert len(first.classes) == 4
    assert np.array_equal(first.rows, maps.choose_examples(labels, classes=4, per_class=5, seed=3).rows)
    assert set(labels[first.rows]) == set(first.classes)
    assert len(first.rows) == 20
    assert "alone" not in maps.choose_examples(labels, classes=50).classes
    assert len(maps.choose_examples(np.array(["a", "b"])).rows) == 0


def test_a_map_keeps_groups_together_and_is_the_same_each_time() -> None:
    centres = np.eye(3, 16, dtype=np.float32)
    labels = np.repeat(["a", "b", "c"], 15)
    vectors = np.repeat(centres, 15, axis=0) + 0.02 * unit(45, 16)
    points = maps.project_to_plane(vectors, seed=1)
    assert np.array_equal(points, maps.project_to_plane(vectors, seed=1))
    distances = ((points[:, None] - points) ** 2).sum(-1) + 1e9 * np.eye(45)
    assert (labels[distances.argmin(1)] == labels).all()
    turned = points @ np.array([[0.0, 1.0], [1.0, 0.0]])
    assert maps.project_to_plane(vectors, seed=1, like=turned) == pytest.approx(turned, abs=1e-6)
    figure = maps.draw_class_map(points, labels, name="map")
    assert len(figure.data) == 46
    assert [text.get_text() for text in figure.drawing.axes[0].texts] == ["1", "2", "3"]


@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (1, 4), (2, 1), (4, 8), (5, 1), (6, 3)])
def test_maps_of_very_few(rows: int, dim: int) -> None:
    points = maps.project_to_plane(unit(rows, dim) if rows else np.empty((0, dim), np.float32))
    assert points.shape == (rows, 2)
    assert np.isfinite(points).all()
    maps.draw_class_map(points, [str(n) for n in range(rows)], name="few")


def test_many_points_are_one_image_within_the_drawing() -> None:
    points = np.random.default_rng(0).normal(size=(maps.RASTER_FROM + 1, 2))
    small = render_svg(maps.draw_class_map(points[:500], ["a"] * 500, name="m").drawing)
    large = render_svg(maps.draw_class_map(points, ["a"] * len(points), name="m").drawing)
    assert "<image" in large
    assert "<image" not in small
    assert len(large) < 40 * len(points)  # a point as a mark of its own takes about 100


def test_mixed_examples_bring_queries_nearer_on_the_map() -> None:
    train, queries = unit(30, 8), unit(6, 8, seed=1)
    mixed = queries + 0.1 * unit(6, 8, seed=2)
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    clean, both = maps.draw_utilization_maps(train, mixed, queries, name="u")
    first, second = (float(re.search(r"mean d² ([\d.]+)", figure.alt)[1]) for figure in (clean, both))
    exact = np.mean(2 - 2 * (queries @ train.T).max(1))
    assert first == pytest.approx(exact, abs=6e-4)
    assert second < 0.05 < first
    assert {row[0] for row in clean.data} == {"kind", "clean", "query"}
    assert sum(row[0] == "mixed" for row in both.data) == 6
