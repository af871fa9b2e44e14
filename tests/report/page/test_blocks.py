"""Tables: the best values, and the numbers as CSV."""

from __future__ import annotations

import csv
import io

import pytest

from metrix.report.page import (
    Column,
    Page,
    Section,
    Table,
    Value,
)
from tests.report.markup import checked


def test_the_best_of_a_column_is_told_without_colour() -> None:
    rows = [["a", Value(1.0)], ["b", Value(2.0)], ["c", Value(1.9999)]]
    table = Table([Column("run"), Column("recall")], rows, best={(1, 1), (2, 1)})
    assert "2.00 (best)" in " ".join(checked(Page("p", [Section("s", [table])]).to_html()).text.split())
    text = Page("p", [Section("s", [table])]).to_markdown("f")
    assert "| b | **2.00** |" in text
    assert "| c | **2.00** |" in text
    assert "| a | 1.00 |" in text


def test_a_row_of_another_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        Table([Column("a"), Column("b")], [["a"]])


def test_tables_as_csv_hold_the_numbers_in_full() -> None:
    columns = [Column("run"), Column("R@1", "CUB")]
    rows = ["group", ["a, b", Value(0.123456789, std=0.01)], ["c", Value(1.0, interval=(0.5, 2.0))]]
    files = Page("p", [Section("s", [Table(columns, rows, name="My table")])]).to_files()
    found = list(csv.reader(io.StringIO(files["my-table.csv"].decode())))
    assert found == [
        ["group", "run", "CUB R@1", "CUB R@1 std", "CUB R@1 low", "CUB R@1 high"],
        ["group", "a, b", "0.123456789", "0.01", "", ""],
        ["group", "c", "1.0", "", "0.5", "2.0"],
    ]
