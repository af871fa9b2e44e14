"""Overview and metrics: retrieval of unseen classes, its confidence intervals, and differences between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from metrix import evaluate
from metrix.evaluate import Comparison
from metrix.evaluate.metrics import find_metric, metric_name, retrieval_metrics, sort_keys
from metrix.report.page import Block, Cell, Column, Section, Table, Text, Tile, Tiles, Value
from metrix.report.reported_runs import MeasuredRun, ReportedRun, group_comparable, measured_runs
from metrix.report.sections import explain_missing, name_missing

Differences = dict[str, tuple[str, Comparison]]  # by run: the baseline it is compared with, and the comparison
SEEDS = (
    "Intervals reflect the choice of queries for one training run each. Another random seed can change a metric by as "
    "much or more: train several seeds before concluding that one setting is better."
)


def compare_with_first(runs: Sequence[ReportedRun], resamples: int) -> Differences:
    """Compare each run with the first run on the same test images, query by query; without resamples, none."""
    found: Differences = {}
    for first, *others in group_comparable(runs) if resamples > 0 else ():
        for other in others:
            compared = evaluate.compare(first.retrieval, other.retrieval, resamples=resamples)
            found[other.name] = (first.name, compared)
    return found


def build_overview_section(runs: Sequence[ReportedRun], differences: Differences) -> Section:
    """The main metric of each run, and how the runs differ in it."""
    tiles = [_build_tile(one) for one in measured_runs(runs)]
    blocks: list[Block] = [Tiles(tiles)] if tiles else []
    lines = [_describe_difference(name, *difference) for name, difference in differences.items()]
    blocks += [Text("\n\n".join([*lines, SEEDS]))] if lines else []
    apart = group_comparable(runs)
    if len(apart) > 1:
        groups = "; ".join(", ".join(run.name for run in group) for group in apart)
        blocks.append(
            Text(
                f"The runs have different test images ({groups}): their metrics are in one table, but only runs with "
                "the same images are compared. Measure all on the same data with --data.",
                "note",
            )
        )
    return Section("Overview", [*blocks, *explain_missing(runs)])


def _build_tile(one: MeasuredRun) -> Tile:
    found = one.retrieval
    name = "recall@1" if "recall@1" in found.means else next(iter(found.means))
    interval = found.intervals.get(name)
    detail = "" if interval is None else f"{100 * found.confidence:g} %: {_points(interval)}"
    return Tile(f"{metric_name(name)}, {one.name}", f"{100 * found.means[name]:.1f} %", detail)


def _points(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def _describe_difference(name: str, baseline: str, comparison: Comparison) -> str:
    measure = "recall@1" if "recall@1" in comparison.differences else next(iter(comparison.differences))
    found, title = comparison[measure], metric_name(measure)
    points, low, high = 100 * found.difference, 100 * found.low, 100 * found.high
    if points == 0:
        return f"{title} of {name} equals that of {baseline}."
    verdict = f"{'more' if found.significant else 'no more'} than the choice of queries explains"
    return (
        f"{title} of {name} is {abs(points):.2f} points {'higher' if points > 0 else 'lower'} than that of {baseline} "
        f"({100 * comparison.confidence:g} % interval {low:+.2f} to {high:+.2f}, p = {found.p_value:.3f}): {verdict}."
    )


def build_metrics_section(runs: Sequence[ReportedRun], differences: Differences) -> Section:
    """Recall@K, MAP@R and R-precision with intervals, and the differences between runs."""
    blocks: list[Block] = []
    shown = [run for run in runs if run.measured is not None or _recall_at_end(run)]
    if shown:
        blocks.append(_build_table(shown))
    if differences:
        blocks.append(_build_differences(differences))
    return Section("Metrics", [*blocks, *name_missing(runs)])


def _recall_at_end(run: ReportedRun) -> dict[int, float]:
    """Recall@K by K, as the run itself measured it when training ended."""
    recall = ((run.results or {}).get("test") or {}).get("recall") or {}
    return {int(k): float(value) for k, value in recall.items()}


def _build_table(runs: Sequence[ReportedRun]) -> Table:
    found = [one.retrieval for one in measured_runs(runs)]
    ks = {k for one in found for k in one.ks}
    ks |= {k for run in runs if run.measured is None for k in _recall_at_end(run)}
    reported = [metric for metric in retrieval_metrics() if metric.in_reports]
    shown = [metric.key_at(k) for metric in reported if metric.at_k for k in sorted(ks)]
    shown += [metric.key for metric in reported if not metric.at_k and found]
    one_dataset = len(group_comparable(runs)) == 1 and len(found) == len(runs)
    columns = [Column("run"), Column("queries"), Column("gallery")]
    columns += [Column(metric_name(name), best=_best(name) if one_dataset else None) for name in shown]
    notes = []
    if any(one.intervals for one in found):
        notes.append(f"Below each number: its {100 * found[0].confidence:g} % bootstrap interval over the queries.")
    for one in measured_runs(runs):
        if one.retrieval.left_out:
            left_out = f"{one.retrieval.left_out:,}"
            notes.append(f"{one.name}: {left_out} queries left out, whose class has no other image.")
    if len(found) < len(runs):
        notes.append(
            "† as the run measured it at the end of training, on its own test images; it could not be measured again."
        )
    rows = [_build_row(run, shown) for run in runs]
    return Table(columns, rows, "Retrieval of unseen classes, %", notes, "measures")


def _best(key: str) -> Literal["max", "min"]:
    return "max" if find_metric(key).higher_is_better else "min"


def _build_row(run: ReportedRun, names: Sequence[str]) -> list[Cell]:
    if run.measured is None:
        at_end = {find_metric("recall@1").key_at(k): value for k, value in _recall_at_end(run).items()}
        cells = [Value(100 * at_end[name], mark="†") if name in at_end else None for name in names]
        return [run.name, None, None, *cells]
    found = run.measured.retrieval
    cells = [_percent(found.means[name], found.intervals.get(name)) if name in found.means else None for name in names]
    return [run.name, found.queries, found.gallery_size, *cells]


def _percent(value: float, interval: tuple[float, float] | None) -> Value:
    bounds = None if interval is None else (100 * interval[0], 100 * interval[1])
    return Value(100 * value, interval=bounds)


def _build_differences(differences: Differences) -> Table:
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
    notes = [f"Below each: the {confidence} interval of a paired bootstrap over the queries; * excludes zero."]
    columns = [
        Column("difference"),
        *(Column(metric_name(n)) for n in names),
        Column(f"p of {metric_name('recall@1')}"),
    ]
    return Table(columns, rows, "Differences, in points", notes, "differences")


def metrics_to_dict(run: ReportedRun, differences: Differences) -> dict[str, Any]:
    """The metrics of a run for JSON."""
    against = differences.get(run.name)
    return {
        "evaluation": None if run.measured is None else run.measured.evaluation.to_dict(),
        "against": None if against is None else {"run": against[0], **against[1].to_dict()},
    }
