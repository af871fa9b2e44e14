"""docs/equations.md names every equation and links to functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\[`(\w+)`\]\((\.\./[\w/.]+)\)", TEXT)
EQUATIONS = [
    "contr",
    "MS",
    "generic",
    "mix-embed",
    "pos",
    "neg",
    "loss-labels",
    "mixing",
    "loss-mixed",
    "loss-final",
    "prob",
    "loss-posneg",
    "mix-contrastive",
    "mix-MS",
    "chain",
    "loss-ms-simple",
    "app-prob",
]


def defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def test_no_blank_line_cuts_a_table_in_two():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        lines = page.read_text(encoding="utf-8").splitlines()
        for n in range(1, len(lines) - 2):
            cut = not lines[n] and lines[n - 1].startswith("|") and lines[n + 1].startswith("|")
            assert not cut or lines[n + 2].startswith("|--"), f"{page.name}, line {n + 2}: {lines[n + 1][:60]}"


def test_every_link_leads_to_a_definition():
    assert len(LINKS) > 20
    broken = [(name, at) for name, at in LINKS if name not in defined_in((ROOT / "docs" / at).resolve())]
    assert broken == []


def test_every_equation_of_the_paper_is_there():
    assert [label for label in EQUATIONS if f"`eq:{label}`" not in TEXT] == []


def test_every_row_of_table_1_is_there():
    from metrix import losses

    linked = {name for name, _ in LINKS}
    rows = set(losses.__all__) - {"from_pml", "functions"}
    assert rows <= linked
