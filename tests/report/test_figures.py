"""Figures: what is drawn, said in words, and given as numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from metrix.report.figures import maps
from metrix.report.figures.bars import draw_bars
from metrix.report.figures.curves import Curve, draw_curves
from metrix.report.figures.nearest import NeighbourSearch, build_gallery
from metrix.report.page.drawing import COLOURS, render_svg

NASTY = "_$x_1$ <b> 日本"


def unit(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_curves_show_bands_and_a_papers_curve_in_the_colour_of_the_measured_one() -> None:
    measured = Curve.over_seeds(NASTY, [0.1, 0.4], [[60.0, 62.0], [61.0, 64.0]])
    paper = Curve("paper", [0.1, 0.4], [59.0, np.nan], reference=True, like=NASTY)
    figure = draw_curves([measured, Curve("other", [0.1, 0.4], [1, 2]), paper], "w", "Recall@1", name="strength")
    (axes,) = figure.drawing.axes
    assert [line.get_color() for line in axes.lines] == [COLOURS[0], COLOURS[1], COLOURS[0]]
    fourth = draw_curves([Curve("one", [0], [1], number=3)], "w", "Recall@1", name="one")
    assert fourth.drawing.axes[0].lines[0].get_color() == COLOURS[3]
    assert axes.lines[2].get_markerfacecolor() == "none"
    assert len(axes.collections) == 1  # one band
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((60.5 - np.sqrt(0.5), 63.0 + np.sqrt(2.0)))
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words[0].strip() == NASTY
    assert "from 60.5 to 63, highest 63 at 0.4" in figure.alt
    assert [row[0] for row in figure.data] == ["curve", NASTY, NASTY, "other", "other", "paper", "paper"]
    assert NASTY.replace("<", "&lt;").replace(">", "&gt;") in render_svg(figure.drawing)


def test_bars_have_a_panel_and_a_number_each() -> None:
    figure = draw_bars(
        {"alignment": {"a": (0.41, None), "b": (0.38, 0.01)}, "uniformity": {"b": (-2.5, None)}}, name="g"
    )
    first, second = figure.drawing.axes
    assert [patch.get_width() for patch in first.patches] == [0.41, 0.38]
    assert [patch.get_width() for patch in second.patches] == [-2.5]
    assert [text.get_text() for text in first.texts] == ["0.410", "0.380"]
    assert figure.alt == "alignment: a 0.410, b 0.380; uniformity: b -2.500"
    assert figure.data[1:] == [
        ["alignment", "a", 0.41, None],
        ["alignment", "b", 0.38, 0.01],
        ["uniformity", "b", -2.5, None],
    ]
    assert draw_bars({}, name="none").alt == "no bars"


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


def test_a_gallery_is_what_an_exhaustive_search_finds() -> None:
    vectors, labels = unit(40, 6), np.array([f"c{n % 5}" for n in range(40)])
    pixels = np.arange(40, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    shown = build_gallery({"run": NeighbourSearch(vectors)}, [7, 21], labels, lambda row: pixels[row], k=3)
    cosines = vectors @ vectors.T - 9 * np.eye(40)
    for row, query in zip((7, 21), shown.queries, strict=True):
        expected = (-cosines[row]).argsort()[:3]
        hits = query.found["run"]
        assert [int(hit.picture.pixels[0, 0]) for hit in hits] == expected.tolist()
        assert [hit.right for hit in hits] == (labels[expected] == labels[row]).tolist()
        assert [hit.similarity for hit in hits] == pytest.approx(cosines[row][expected], abs=1e-5)
    other, names = unit(10, 6, seed=4), np.array([f"c{n % 5}" for n in range(10)])
    apart = build_gallery(
        {"run": NeighbourSearch(vectors, other)},
        [7],
        labels,
        lambda row: pixels[row],
        names,
        lambda row: pixels[row],
        k=20,
    )
    assert [int(hit.picture.pixels[0, 0]) for hit in apart.queries[0].found["run"]] == (
        -(other @ vectors[7])
    ).argsort().tolist()


def test_a_query_is_not_found_by_itself_among_its_copies() -> None:
    same = np.tile(unit(1, 4), (9, 1))
    ids, _ = NeighbourSearch(same).nearest([8], k=3)
    assert ids.shape == (1, 3)
    assert 8 not in ids
