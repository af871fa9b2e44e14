"""Draw a repeated training step."""

from __future__ import annotations

import math

from rich.markup import escape
from rich.table import Table

from metrix.messages import count
from metrix.train.replay import Replay

SHOWN = 20  # items, and parameters


def build_terms_table(found: Replay) -> Table:
    """Build a table of the terms of a step, in the order in which they are computed."""
    table = Table(show_header=True)
    for name in ("term", "value", "remark"):
        table.add_column(name)
    items = found.saved.items
    unsound = sum(not item.get("finite", True) for item in items)
    low, high = found.inputs
    table.add_row("inputs", f"{low:.4g} to {high:.4g}", _problem(unsound, len(items), "item"))
    bad = sum(not sound for sound in found.embeddings)
    table.add_row("embeddings", count(len(items), "row"), _problem(bad, len(items), "row", "not finite, or zero"))
    drawn = "" if found.mixup == "none" else f"{found.mixup} mixup, {found.pairs} pairs"
    left = (found.left_out_clean, found.left_out_mixed)
    if found.refusal:
        table.add_row("loss", "[red]none[/]", escape(found.refusal))
    else:
        for name, more, out in (("clean", "", left[0]), ("mixed", drawn, left[1])):
            remark = ", ".join(part for part in (more, f"{count(out, 'anchor')} left out" if out else "") if part)
            table.add_row(f"{name} loss", _number(found.losses[name]), remark)
        table.add_row("loss", _number(found.losses["loss"]), "")
    broken = {name: value for name, value in found.gradients.items() if not math.isfinite(value)}
    largest = max((value for value in found.gradients.values() if math.isfinite(value)), default=0.0)
    of = count(len(found.gradients), "parameter")
    table.add_row(
        "gradient", f"at most {largest:.4g}", f"[red]not finite in {len(broken)} of {of}[/]" if broken else of
    )
    for name, value in list(broken.items())[:SHOWN]:
        table.add_row(f"  {escape(name)}", _number(value), "")
    return table


def build_items_table(found: Replay) -> Table:
    """Build a table of the items of the batch, those with a term that is not finite first."""
    rows = []
    for row, item in enumerate(found.saved.items):
        flaws = [
            name
            for name, sound in (
                ("input", item.get("finite", True)),
                ("embedding", found.embeddings[row]),
                ("gradient", found.rows[row] or bool(found.refusal)),
            )
            if not sound
        ]
        rows.append((not flaws, row, str(item["class"]), str(item["path"]), ", ".join(flaws)))
    rows.sort()
    hidden = len(rows) - SHOWN
    caption = f"and {hidden} more, all in the JSON file" if hidden > 0 else None
    table = Table(title=count(len(rows), "item"), caption=caption)
    for name in ("row", "class", "path", "not finite"):
        table.add_column(name)
    for _, row, name, path, named in rows[:SHOWN]:
        table.add_row(str(row), escape(name), escape(path), f"[red]{named}[/]")
    return table


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else f"[red]{value}[/]"


def _problem(bad: int, of: int, noun: str, what: str = "not finite") -> str:
    return f"[red]{what} in {bad} of {count(of, noun)}[/]" if bad else "finite"
