"""The paper's numbers: the shape of each table, and what the numbers say about each other."""

from __future__ import annotations

from itertools import pairwise

import pytest

from metrix.reproduce import paper
from metrix.reproduce.paper import PaperRow, PaperTable

# table: rows, values, and their sum as added up from the paper: a digit typed wrongly changes it
SHAPES = {
    "main": (17, 198, 17283.5),
    "types": (25, 294, 25785.5),  # the paper prints the row ProxyNCA++* twice; here it is once
    "compete": (11, 108, 9326.7),  # two rows are not in the paper
    "ablation": (23, 92, 8342.4),
    "ablation-cub": (23, 92, 7156.1),
}
LARGE_KS = {"sop": (1, 10, 100), "inshop": (1, 10, 20)}
# What the paper prints as a gain, and is not the difference of what it prints: (dataset, column): printed, difference.
GAIN_MISPRINTED = {("Cont", "+Metrix", "sop", 2): (1.5, 1.6)}
BEST_MISPRINTED = {
    ("main", "cub", 2): (0.5, 1.0),
    ("types", "cub", 2): (0.5, 1.0),
    ("types", "sop", 1): (0.0, 0.7),
    ("types", "inshop", 2): (0.0, 0.1),
}


@pytest.mark.parametrize("name", paper.RECALL_TABLES)
def test_a_table_has_its_rows_and_columns(name: str) -> None:
    table = paper.load_table(name)
    rows, values, total = SHAPES[name]
    found = [v for row in table.rows for dataset in row.recall.values() for v in dataset if v is not None]
    assert len(table.rows) == rows
    assert len(found) == values
    assert sum(found) == pytest.approx(total, abs=1e-6)
    for row in table.rows:
        assert set(row.recall) == set(table.columns), row.method


@pytest.mark.parametrize("name", paper.RECALL_TABLES)
def test_recall_is_a_percentage_that_grows_with_k(name: str) -> None:
    table = paper.load_table(name)
    for dataset, ks in table.columns.items():
        assert list(ks) == sorted(set(ks))
        assert table.columns[dataset] == LARGE_KS.get(dataset, (1, 2, 4, 8)[: len(ks)])
    for row in table.rows:
        for dataset, values in row.recall.items():
            given = [v for v in values if v is not None]
            assert len(given) in (0, len(values)), (row.method, dataset)
            assert all(50.0 < v < 100.0 for v in given)
            assert all(before <= after for before, after in pairwise(given)), (row.method, dataset)


@pytest.mark.parametrize("name", ["main", "types"])
def test_gains_are_over_the_best_of_the_baselines(name: str) -> None:
    """The gain over a loss that its authors also reported is over the better of the two."""
    table = paper.load_table(name)
    checked = 0
    for row in table.rows:
        if row.over is None:
            continue
        for dataset, gains in row.gain.items():
            for at, gain in enumerate(gains):
                best = max(v for base in _baselines(table, row) if (v := base.recall[dataset][at]) is not None)
                value = row.recall[dataset][at]
                assert value is not None
                where = (row.over, row.method, dataset, at)
                expected = GAIN_MISPRINTED.get(where, (value - best, value - best))
                assert (gain, value - best) == pytest.approx(expected, abs=1e-9), where
                checked += 1
    assert checked == {"main": 48, "types": 144}[name]


def _baselines(table: PaperTable, row: PaperRow) -> list[PaperRow]:
    return [base for base in table.rows if base.method in (row.over, f"{row.over}*")]


@pytest.mark.parametrize("name", ["main", "types"])
def test_gain_over_the_state_of_the_art(name: str) -> None:
    table = paper.load_table(name)
    assert set(table.gain_over_best) == set(table.columns)
    for dataset, gains in table.gain_over_best.items():
        for at, gain in enumerate(gains):
            column = [(row, v) for row in table.rows if (v := row.recall[dataset][at]) is not None]
            best = max(v for row, v in column if row.over is None)
            ours = max(v for row, v in column if row.over is not None)
            expected = BEST_MISPRINTED.get((name, dataset, at), (ours - best, ours - best))
            assert (gain, ours - best) == pytest.approx(expected, abs=1e-9), (dataset, at)


def test_rows_that_tables_share_agree() -> None:
    main, types, compete = (paper.load_table(name) for name in ("main", "types", "compete"))
    for row in main.rows:
        same = [other for other in types.rows if (other.recipe, other.method) == (row.recipe, row.method)]
        assert [other.recall for other in same] == [row.recall], row.method
    cont = paper.load_table("ablation").row("baseline").recall["cars"]
    assert cont[:3] == main.row("Cont").recall["cars"] == compete.row("Cont").recall["cars"]
    strength = paper.load_numbers("strength")
    assert round(strength["baseline"], 1) == cont[0]


@pytest.mark.parametrize("name", ["ablation", "ablation-cub"])
def test_both_ablations_are_of_the_same_settings(name: str) -> None:
    table = paper.load_table(name)
    assert [row.recipe for row in table.rows] == [row.recipe for row in paper.load_table("ablation").rows]
    studies = [row.method for row in table.rows]
    assert {study: studies.count(study) for study in studies} == {
        "baseline": 1,
        "hard negatives": 9,
        "mixing pairs": 9,
        "mixup type combinations": 4,
    }
    for row in table.rows[1:]:
        assert row.recipe is not None
        assert row.labels["mixup type"] == ", ".join(row.recipe["mixup"])
        assert row.labels["mixing pairs"] == " / ".join(row.recipe.get("pairs", ("pos-neg", "anc-neg")))
        assert row.over == "baseline"


def test_curves_have_a_value_for_each_point() -> None:
    positivity = paper.load_numbers("positivity")
    for kind in ("empirical", "theoretical"):
        curve = positivity[kind]
        assert len(curve) == len(positivity["lams"]) == 11
        assert curve == sorted(curve)
        assert (curve[0], curve[-1]) == (0.0, 1.0)
    strength = paper.load_numbers("strength")
    assert set(strength["recall"]) == {"input", "feature", "embed"}
    for curve in strength["recall"].values():
        assert len(curve) == len(strength["strengths"]) == 10
        assert all(strength["baseline"] < value < 86.0 for value in curve)
    at = strength["strengths"].index(0.4)
    assert strength["recall"]["feature"][at] == paper.load_table("main").rows[8].recall["cars"][0] == 85.1


def test_cost_and_measures() -> None:
    cost = {(row.over, row.method): row.measures["milliseconds"] for row in paper.load_table("cost").rows}
    assert round(100 * (cost["MS", "+Metrix"] / cost[None, "MS"] - 1)) == paper.load_numbers("cost")["said"]["MS"]
    assert round(100 * (cost["PA", "+PS"] / cost["PA", "+Metrix"] - 1)) == 62  # as the text says
    geometry = {row.method: row.measures for row in paper.load_table("geometry").rows}
    assert len(geometry) == 5
    assert min(geometry, key=lambda m: geometry[m]["alignment"]) == "+Metrix/embed"
    assert min(geometry, key=lambda m: geometry[m]["uniformity"]) == "+Metrix/embed"
    clean, mixed = (row.measures["utilization"] for row in paper.load_table("utilization").rows)
    assert (clean, mixed) == (0.41, 0.32)
