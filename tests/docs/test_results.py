"""The tables of docs/results.md and docs/measured/runs.md are those of the measured runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/results.md", ROOT / "docs/measured/runs.md"]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measured_tables", ROOT / "docs/measured/tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_runs(tables: ModuleType, page: Path) -> None:
    text = page.read_text("utf-8")
    assert tables.fill_page(text, tables.read_rows()) == text
    found = re.findall(r"<!-- .* -->\n\n((?:\|.*\n)*)", text)
    assert len(found) >= 4
    assert min(table.count("\n") for table in found) >= 3, "a heading, a line and at least one row"


def test_every_table_is_on_the_page_of_runs(tables: ModuleType) -> None:
    named = re.findall(r"<!-- ([a-z-]+) -->", PAGES[1].read_text("utf-8"))
    assert {row.table for row in tables.read_rows()} == set(named)


def test_the_answer_quotes_gains_of_the_runs(tables: ModuleType) -> None:
    """One page says whether mixup helps; its figures are measured ones."""
    quoted = re.findall(r"[\d.]+ ± [\d.]+", (ROOT / "docs/which-loss.md").read_text("utf-8"))
    rows = tables.read_rows()
    measured = {f"{found.mean:.1f} ± {found.margin:.1f}" for row in rows if (found := tables.gain(row, rows))}
    assert len(quoted) >= 4
    assert set(quoted) <= measured
    for page in ("README.md", "docs/index.md", "docs/guide.md", "docs/faq.md"):
        assert " ± " not in (ROOT / page).read_text("utf-8"), f"{page}: the answer is in docs/which-loss.md"


def test_the_tables_of_a_page_are_written_anew(tables: ModuleType) -> None:
    rows = [tables.Row("t", "30", "clean", "", {"0": {"recall@1": "70"}})]
    page = "before\n\n<!-- t -->\n\n| old |\n|---|\n\nafter | this\n"
    filled = tables.fill_page(page, rows)
    assert filled == f"before\n\n<!-- t -->\n\n{tables.write_table('t', rows)}\n\nafter | this\n"
    assert tables.fill_page(filled, rows) == filled
    assert (
        tables.fill_page("<!-- t -->\n\nafter\n", rows) == f"<!-- t -->\n\n{tables.write_table('t', rows)}\n\nafter\n"
    )
    with pytest.raises(ValueError, match="u: no measured run has this table"):
        tables.fill_page("<!-- u -->\n\n", rows)


def test_a_gain_is_the_mean_of_paired_differences(tables: ModuleType) -> None:
    clean = tables.Row("t", "30", "clean", "", {"0": {"recall@1": "70"}, "1": {"recall@1": "72"}})
    mixed = tables.Row("t", "30", "feature", "clean", {"1": {"recall@1": "75"}, "0": {"recall@1": "71"}})
    found = tables.gain(mixed, [clean, mixed])
    assert found.values == (1.0, 3.0)
    assert "| 30 | feature | 73.0 (71.0, 75.0) | +2.0 ± 12.7 |" in tables.write_table("t", [clean, mixed])
    clean.runs["2"] = {"recall@1": "99"}  # a seed that only one of them has
    assert "| 30 | feature | 71.0 | 73.0 | +2.0 ± 12.7 | 2 |" in tables.write_gains("t", [clean, mixed])


def test_the_figure_has_a_point_for_each_number_of_classes(tables: ModuleType, tmp_path: Path) -> None:
    tables.draw_figure(tables.read_rows(), tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text("utf-8")
    assert "glyphs, multi-similarity" in drawn
    assert "training classes" in drawn


def test_the_curves_have_a_panel_for_each_loss_and_augmentation(tables: ModuleType, tmp_path: Path) -> None:
    tables.draw_curves(tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text("utf-8")
    assert "ProxyNCA++" in drawn
    assert "contrastive" in drawn
    assert "no augmentation" in drawn
