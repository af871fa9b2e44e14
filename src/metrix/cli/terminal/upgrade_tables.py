"""Build the tables of `metrix upgrade` and `metrix evaluate --against`."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from metrix.evaluate.cross_model import CrossRecall
from metrix.messages import count
from metrix.retrieve.adapter_measures import NEW, OLD
from metrix.retrieve.upgrading import Upgraded
from metrix.runs.cross_evaluation import CrossEvaluation
from metrix.search.adapters import ADAPTERS


def build_upgrade_table(done: Upgraded) -> Table:
    """Build a table of Recall@1 by the old model, the new one through each adapter, and the new one alone."""
    table = Table(title=escape(f"{done.index.folder}: Recall@1 in %"))
    table.add_column("queries", no_wrap=True)
    for name in ("R@1", "95 %", "less old, 95 %", "cosine", "class"):
        table.add_column(name, justify="right")
    found = done.measured.searches
    for key, name in name_searches(done).items():
        style = "bold" if key == done.kind else None
        figures = (done.measured.cosines.get(key), found[key].same_class)
        cells = [*build_recall_cells(found[key], key == OLD), *map(_figure, figures)]
        table.add_row(f"{name}{' *' if key == done.kind else ''}", *cells, style=style)
    return table


def name_searches(done: Upgraded) -> dict[str, str]:
    """What each search is called, in the order of tables and figures."""
    kinds = [one for one in done.measured.searches if one in ADAPTERS]
    return {OLD: "old model", **{kind: f"new, {kind}" for kind in kinds}, NEW: "new, re-embedded"}


def describe_upgrade(done: Upgraded) -> list[str]:
    """What the figures were measured on, in sentences."""
    measured, pairs = done.measured, done.pairs
    if measured.classes is None:
        on = (
            f"{pairs.whence}, each a query among all of them by the old model; without labels, the answer is the "
            "image's own item"
        )
        units = "images"
    else:
        alone = "class" if measured.held_out == "classes" else "image"
        on = (
            f"{measured.queries:,} queries among {pairs.whence}, of {count(measured.classes, 'class')}, each without "
            f"its own item, by adapters that were fitted without its {alone}"
        )
        units = "classes"
    return [
        f"{on}; intervals over {units}; a random order has a Recall@1 of {100 * measured.chance:.1f} %",
        "* is the adapter of the highest Recall@1; cosine: of a vector through an adapter with that of the old model; "
        "class: mean similarity of a query to the other images of its class",
    ]


def build_cross_table(result: CrossEvaluation) -> Table:
    """Build a table of Recall@1 of each run among images by each."""
    table = Table(title=escape(f"{result.about['run']} against {result.about['against']}: Recall@1 in %"))
    table.add_column("queries → images", no_wrap=True)
    for name in ("R@1", "95 %", "less old, 95 %"):
        table.add_column(name, justify="right")
    for n, (name, one) in enumerate(result.found.searches.items()):
        table.add_row(name, *build_recall_cells(one, n == 0))
    return table


def describe_cross(result: CrossEvaluation) -> str:
    """What the figures were measured on, in a sentence."""
    about, found = result.about, result.found
    return (
        f"{found.queries:,} queries among {about['images']:,} images of {count(about['classes'], 'class')} "
        f"({about['data']}, {about['part']}), each without itself; intervals over classes; a random order has a "
        f"Recall@1 of {100 * found.chance:.1f} %"
    )


def build_recall_cells(one: CrossRecall, is_first: bool) -> list[str]:
    """Recall@1 in %, its interval, and the interval of the difference to the first search."""
    difference = _bounds(one.difference_interval, "+") or f"{100 * one.difference:+.1f}"
    return [f"{100 * one.recall:.1f}", _bounds(one.interval, ""), "" if is_first else difference]


def _bounds(interval: tuple[float, float] | None, sign: str) -> str:
    return "" if interval is None else " to ".join(f"{100 * one:{sign}.1f}" for one in interval)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
