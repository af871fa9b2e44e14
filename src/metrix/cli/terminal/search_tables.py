"""Build the tables of `metrix index`, `metrix search` and `metrix threshold`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from metrix.messages import count, first_few
from metrix.runs.thresholds import MeasuredThreshold, describe_classes
from metrix.search import Duplicates, Index, Suspect

SMALL_RECALL = 0.1  # of a threshold, below which it is of little use
MOST = 50  # groups or suspects in a table; --json lists all


def build_index_table(path: Path, index: Index, embedded: int) -> Table:
    """Build a table of what an index holds."""
    description = index.description
    table = Table(title=escape(str(path)), show_header=False)
    rows: dict[str, object] = {description.examples: f"{description.count:,}"}
    rows |= {"embedded now": f"{embedded:,}"} if embedded != description.count else {}
    rows |= {"skipped": f"{description.skipped:,}"} if description.skipped else {}
    rows |= {"dimension": description.dim, "kind": description.kind, "store": description.store}
    if description.model is not None and description.model.engine.name != "torch":
        rows["embedded by"] = description.model.engine.file or description.model.engine.name
    if description.recall is not None:
        rows["recall@10 against exact"] = f"{100 * description.recall:.2f} %"
    if description.columns:
        rows["columns"] = first_few([f"{name} ({kind})" for name, kind in description.columns.items()], 10)
    if description.threshold is not None:
        rows["same thing from"] = f"{description.threshold.similarity:.4f}"
    for name, value in rows.items():
        table.add_row(name, escape(str(value)))
    return table


def build_info_table(path: Path, info: Mapping[str, Any]) -> Table:
    """Build a table of what an index says of itself."""
    table = Table(title=escape(str(path)), show_header=False)
    model = info["model"]
    rows: dict[str, object] = {"items": f"{info['count']:,}"}
    if model is not None:
        rows |= {"model": f"{model['digest'][:12]} ({model['run'] or 'run unknown'})", "view": model["view"]}
        rows["embedded by"] = model["engine"]["file"] or model["engine"]["name"]
    if (adapter := info["adapter"]) is not None:
        made_by = adapter["before"]["model"]
        rows["items by"] = f"{made_by['digest'][:12]} ({made_by['run'] or 'run unknown'})"
        rows["adapter"] = f"{adapter['kind']}, fitted on {count(adapter['pairs'], 'image')}"
        rows |= {"added through it": f"{adapter['mapped']:,}"} if adapter["mapped"] else {}
    rows |= {"dimension": info["dim"], "kind": info["kind"], "store": info["store"]}
    if info["store"] == "milvus":
        rows["collection"] = f"{info['place'].get('collection')} in {info['place'].get('uri')}"
    if info["recall"] is not None:
        rows["recall@10 against exact"] = f"{100 * info['recall']:.2f} %"
    if info["place"].get("reach"):
        rows["a search compares"] = (
            f"a bit per entry of all, then the bytes of {info['place']['reach']:,} or more items"
        )
    rows["columns"] = first_few([f"{name} ({kind})" for name, kind in info["columns"].items()], 10) or "none"
    rows["root"] = info["root"] or info["data"] or "none: vectors"
    rows["bytes"] = f"{info['bytes']:,}" if info["store"] == "faiss" else "in the store"
    rows |= {"generation": info["generation"], "changed": f"{info['changed']} ({_age(info['age_seconds'])} ago)"}
    for name, value in rows.items():
        table.add_row(name, escape(str(value)))
    return table


def _age(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return count(int(seconds // length), unit)
    return count(int(seconds), "second")


def build_answer_table(
    query: str,
    hits: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    ranked: bool,
    minimum: float | None = None,
) -> Table:
    """Build a table of the neighbours of one query, nearest first; `minimum` is the similarity that was asked for."""
    caption = "in the order of re-ranking" if ranked and hits else "" if hits else "nothing was found"
    if minimum is not None:
        caption = f"{caption}{', ' if caption else ''}at similarity {minimum:.4f} or more"
    table = Table(title=escape(query), caption=caption or None, caption_justify="left")
    table.add_column("", justify="right")
    table.add_column("similarity", justify="right")
    table.add_column("id", overflow="fold")
    for name in columns:
        table.add_column(escape(name), overflow="fold")
    for rank, hit in enumerate(hits, 1):
        cells = ["" if hit.get(name) is None else escape(str(hit[name])) for name in columns]
        table.add_row(str(rank), f"{hit['similarity']:.4f}", escape(str(hit["id"])), *cells)
    return table


def build_duplicates_table(groups: Sequence[Duplicates], threshold: float, examples: str) -> Table:
    """Build a table of groups of near-identical images or vectors."""
    number = sum(len(group.ids) for group in groups)
    title = f"{len(groups):,} groups of {number:,} near-identical {examples}, similarity from {threshold:.4f}"
    table = Table(title=title, caption=_more(groups), caption_justify="left")
    table.add_column(examples, justify="right")
    table.add_column("least similar", justify="right")
    table.add_column("ids", overflow="fold")
    for group in groups[:MOST]:
        ids = escape(first_few(group.ids))
        table.add_row(str(len(group.ids)), f"{group.similarity:.4f}", ids)
    return table


def build_suspects_table(suspects: Sequence[Suspect], k: int, examples: str) -> Table:
    """Build a table of images or vectors whose label their neighbours contradict."""
    title = f"{len(suspects):,} {examples} whose label their {k} nearest contradict"
    table = Table(title=title, caption=_more(suspects), caption_justify="left")
    for name in ("id", "label", "neighbours say"):
        table.add_column(name, overflow="fold")
    for name in ("share", "own label's", "surprise"):
        table.add_column(name, justify="right")
    for one in suspects[:MOST]:
        figures = (f"{100 * one.share:.0f} %", f"{100 * one.own_share:.0f} %", f"{one.surprise:.1f}")
        table.add_row(*[escape(str(value)) for value in (one.id, one.label, one.suggested)], *figures)
    return table


def build_threshold_table(found: MeasuredThreshold) -> Table:
    """Build a table of a threshold and what it does."""
    chosen = found.threshold
    table = Table(title=f"Same thing from similarity {chosen.similarity:.4f}", show_header=False)
    bounds = {name: f"{100 * low:.4g} to {100 * high:.4g} %" for name, (low, high) in found.intervals.items()}
    if bounds:
        table.caption = "with 95 % intervals over the classes"
        table.add_row("similarity", f"{chosen.similarity:.4f}", f"{chosen.low:.4f} to {chosen.high:.4f}")
    table.add_row("precision", f"{100 * chosen.precision:.2f} %", bounds.get("precision", ""))
    table.add_row("recall", f"{100 * chosen.recall:.2f} %", bounds.get("recall", ""))
    table.add_row("false-accept rate", f"{100 * chosen.far:.4g} %", bounds.get("far", ""))
    return table


def describe_threshold(found: MeasuredThreshold) -> str:
    """What a threshold was chosen for, and on which pairs."""
    aim = {"precision": "precision of at least", "recall": "recall of at least", "far": "false-accept rate of at most"}
    chosen = found.threshold
    caution = f"; caution: figures {found.caution}" if found.caution else ""
    return f"for a {aim[chosen.target]} {chosen.wanted:g}, over {describe_classes(found)}{caution}"


def warn_of_small_recall(found: MeasuredThreshold) -> list[str]:
    """A sentence if a threshold accepts so few pairs of one class that it is of little use."""
    recall = found.threshold.recall
    if recall >= SMALL_RECALL:
        return []
    return [
        f"it accepts only {100 * recall:.2g} % of the pairs of one class: search --same will miss nearly all of them; "
        "ask for less, or train a better model"
    ]


def _more(listed: Sequence[object]) -> str | None:
    return f"the first {MOST} of {len(listed):,}; --json lists all" if len(listed) > MOST else None
