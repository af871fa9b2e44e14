"""The table of rows of a leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from metrix.evaluate.metrics import metric_name
from metrix.messages import make_printable

if TYPE_CHECKING:
    from rich.table import Table

    from metrix.runs.leaderboard import LeaderboardRow, Measured

SHOWN = ("recall@1", "map@r")


def build_leaderboard_table(rows: Sequence[LeaderboardRow]) -> Table:
    """Each row with its data and its main measures; rows of other data are not comparable, whatever their order."""
    from rich.table import Table

    caption = "in %, with 95 % intervals; compare rows with the same digest of the data only"
    table = Table(title="Results on unseen classes", caption=caption, caption_justify="left")
    for heading in ("result", "loss", "mixup", "backbone", "data", "seeds"):
        table.add_column(heading, overflow="fold")
    for name in SHOWN:
        table.add_column(metric_name(name), justify="right")
    for row in rows:
        data = f"{row.dataset.name} ({row.dataset.classes:,} classes, {row.dataset.digest[:8]})"
        words = (row.name, row.loss, row.mixup, row.backbone, data, ", ".join(map(str, row.seeds)) or "–")
        cells = [escape(make_printable(word)) for word in words]
        table.add_row(*cells, *(_describe(row.measures.get(name)) for name in SHOWN))
    return table


def _describe(found: Measured | None) -> str:
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return f"{100 * found.value:.1f}"
    return f"{100 * found.value:.1f}\n{100 * found.low:.1f} to {100 * found.high:.1f}\nover {found.over}"
