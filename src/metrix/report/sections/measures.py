"""How well unseen classes are found, how sure that is, and whether the runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from metrix import evaluate
from metrix.evaluate import Comparison
from metrix.evaluate.metrics import find_metric, metric_name, retrieval_metrics, sort_keys
from metrix.report.page import Block, Cell, Column, Section, Table, Text, Tile, Tiles, Value
from metrix.report.reported_runs import Measured, Subject, comparable, measured
from metrix.report.sections import missing, reasons

Differences = dict[str, tuple[str, Comparison]]  # of a run: the run that it is compared with, and how
SEEDS = (
    "Intervals are over the queries of one training each. Another seed can change a measure by as much or more: "
    "train several seeds before saying that one setting is better."
)


def differences_of(subjects: Sequence[Subject], resamples: int) -> Differences:
    """Each run against the first one with the same test images, query by query; without resamples, none."""
    found: Differences = {}
    for first, *others in comparable(subjects) if resamples > 0 else ():
        for other in others:
            compared = evaluate.compare(first.retrieval, other.retrieval, resamples=resamples)
            found[other.name] = (first.name, compared)
    return found


def overview_section(subjects: Sequence[Subject], differences: Differences) -> Section:
    """The few numbers to see first, and what they say."""
    tiles = [_tile(one) for one in measured(subjects)]
    blocks: list[Block] = [Tiles(tiles)] if tiles else []
    lines = [_said(name, *difference) for name, difference in differences.items()]
    blocks += [Text("\n\n".join([*lines, SEEDS]))] if lines else []
    apart = comparable(subjects)
    if len(apart) > 1:
        groups = "; ".join(", ".join(subject.name for subject in group) for group in apart)
        blocks.append(
            Text(
                f"The runs have different test images ({groups}): their measures stand in one table, and only runs "
                "with the same images are compared. Measure all on the same data with --data.",
                "note",
            )
        )
    return Section("Overview", [*blocks, *reasons(subjects)])


def _tile(one: Measured) -> Tile:
    found = one.retrieval
    name = "recall@1" if "recall@1" in found.means else next(iter(found.means))
    interval = found.intervals.get(name)
    detail = "" if interval is None else f"{100 * found.confidence:g} %: {_points(interval)}"
    return Tile(f"{metric_name(name)}, {one.name}", f"{100 * found.means[name]:.1f} %", detail)


def _points(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def _said(name: str, baseline: str, comparison: Comparison) -> str:
    measure = "recall@1" if "recall@1" in comparison.differences else next(iter(comparison.differences))
    found, title = comparison[measure], metric_name(measure)
    points, low, high = 100 * found.difference, 100 * found.low, 100 * found.high
    if points == 0:
        return f"{title} of {name} is the same as that of {baseline}."
    verdict = "more than the choice of queries explains" if found.significant else "no more than the choice of queries"
    return (
        f"{title} of {name} is {abs(points):.2f} points {'higher' if points > 0 else 'lower'} than that of {baseline} "
        f"({100 * comparison.confidence:g} % interval {low:+.2f} to {high:+.2f}, p = {found.p_value:.3f}): {verdict}."
    )


def measures_section(subjects: Sequence[Subject], differences: Differences) -> Section:
    """Recall@K, MAP@R and the like, with intervals, and the differences."""
    blocks: list[Block] = []
    shown = [subject for subject in subjects if subject.measured is not None or _recall_at_end(subject)]
    if shown:
        blocks.append(_table(shown))
    if differences:
        blocks.append(_differences(differences))
    return Section("Measures", [*blocks, *missing(subjects)])


def _recall_at_end(subject: Subject) -> dict[int, float]:
    """Recall@K by K, as the run itself measured it when training ended."""
    recall = ((subject.results or {}).get("test") or {}).get("recall") or {}
    return {int(k): float(value) for k, value in recall.items()}


def _table(subjects: Sequence[Subject]) -> Table:
    found = [one.retrieval for one in measured(subjects)]
    ks = {k for one in found for k in one.ks}
    ks |= {k for subject in subjects if subject.measured is None for k in _recall_at_end(subject)}
    reported = [metric for metric in retrieval_metrics() if metric.in_reports]
    shown = [metric.key_at(k) for metric in reported if metric.at_k for k in sorted(ks)]
    shown += [metric.key for metric in reported if not metric.at_k and found]
    one_dataset = len(comparable(subjects)) == 1 and len(found) == len(subjects)
    columns = [Column("run"), Column("queries"), Column("gallery")]
    columns += [Column(metric_name(name), best=_best(name) if one_dataset else None) for name in shown]
    notes = []
    if any(one.intervals for one in found):
        notes.append(f"Below each number, its {100 * found[0].confidence:g} % bootstrap interval over the queries.")
    for one in measured(subjects):
        if one.retrieval.left_out:
            left = f"{one.retrieval.left_out:,} queries are left out"
            notes.append(f"{one.name}: {left}, without another image of their class.")
    if len(found) < len(subjects):
        notes.append(
            "† as the run itself measured it at its end, on its own test images; it could not be measured again."
        )
    rows = [_row(subject, shown) for subject in subjects]
    return Table(columns, rows, "Retrieval of unseen classes, %", notes, "measures")


def _best(key: str) -> Literal["max", "min"]:
    return "max" if find_metric(key).higher_is_better else "min"


def _row(subject: Subject, names: Sequence[str]) -> list[Cell]:
    if subject.measured is None:
        at_end = {find_metric("recall@1").key_at(k): value for k, value in _recall_at_end(subject).items()}
        cells = [Value(100 * at_end[name], mark="†") if name in at_end else None for name in names]
        return [subject.name, None, None, *cells]
    found = subject.measured.retrieval
    cells = [_percent(found.means[name], found.intervals.get(name)) if name in found.means else None for name in names]
    return [subject.name, found.queries, found.gallery_size, *cells]


def _percent(value: float, interval: tuple[float, float] | None) -> Value:
    bounds = None if interval is None else (100 * interval[0], 100 * interval[1])
    return Value(100 * value, interval=bounds)


def _differences(differences: Differences) -> Table:
    measures = next(iter(differences.values()))[1].differences
    names = sort_keys(name for name in measures if find_metric(name).in_reports)
    rows: list[list[Cell]] = []
    for name, (baseline, comparison) in differences.items():
        row: list[Cell] = [f"{name} − {baseline}"]
        for measure in names:
            d = comparison.differences.get(measure)
            if d is None:
                row.append(None)
                continue
            interval = (100 * d.low, 100 * d.high)
            row.append(Value(100 * d.difference, interval=interval, sign=True, mark="*" if d.significant else ""))
        first = comparison.differences.get("recall@1")
        rows.append([*row, None if first is None else Value(first.p_value, digits=3)])
    confidence = f"{100 * next(iter(differences.values()))[1].confidence:g} %"
    notes = [f"Below each, the {confidence} interval of a paired bootstrap over the queries; * leaves out zero."]
    columns = [
        Column("difference"),
        *(Column(metric_name(n)) for n in names),
        Column(f"p of {metric_name('recall@1')}"),
    ]
    return Table(columns, rows, "Differences, in points", notes, "differences")


def measures_as_json(subject: Subject, differences: Differences) -> dict[str, Any]:
    """What was measured of a run, as plain values."""
    against = differences.get(subject.name)
    return {
        "evaluation": None if subject.measured is None else subject.measured.evaluation.to_dict(),
        "against": None if against is None else {"run": against[0], **against[1].to_dict()},
    }
