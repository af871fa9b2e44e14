"""Overview and metrics: retrieval of unseen classes, its confidence intervals, and differences between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metrix import evaluate
from metrix.evaluate import Comparison
from metrix.evaluate.metrics import find_metric, metric_name, retrieval_metrics, sort_keys
from metrix.messages import count
from metrix.report.leaders import find_leaders
from metrix.report.page import Block, Cell, Column, Section, Table, Text, Tile, Tiles, Value
from metrix.report.reported_runs import MeasuredRun, ReportedRun, group_comparable, measured_runs
from metrix.report.sections import explain_missing, name_missing

Differences = dict[str, tuple[str, Comparison]]  # by run: the baseline it is compared with, and the comparison
HEADLINE = ("recall@1", "map@r")  # what the overview speaks of
ONE_SEED = (
    "One training run of each setting cannot tell a better setting from a luckier seed: the intervals are over the "
    "{over}, and another seed can change a metric by as much or more. Train several seeds of each before concluding."
)


def compare_with_first(runs: Sequence[ReportedRun], resamples: int, over: str = "classes") -> Differences:
    """Compare each run with the first run on the same test images, query by query; without resamples, none."""
    found: Differences = {}
    for first, *others in group_comparable(runs) if resamples > 0 else ():
        for other in others:
            compared = evaluate.compare(first.retrieval, other.retrieval, resamples=resamples, over=over)
            found[other.name] = (first.name, compared)
    return found


def build_overview_section(runs: Sequence[ReportedRun], differences: Differences) -> Section:
    """The main metric of each run, and how the runs differ in it."""
    tiles = [_build_tile(one) for one in measured_runs(runs)]
    blocks: list[Block] = [Tiles(tiles)] if tiles else []
    lines = [_describe_difference(name, *difference) for name, difference in differences.items()]
    if lines:
        over = next(iter(differences.values()))[1].over
        blocks.append(Text("\n\n".join([*lines, _describe_seeds(runs, over)])))
    for one in measured_runs(runs):
        if one.retrieval.caution:
            blocks.append(Text(f"{one.name}: figures {one.retrieval.caution}.", "note"))
    apart = group_comparable(runs)
    if len(apart) > 1:
        groups = "; ".join(", ".join(run.name for run in group) for group in apart)
        blocks.append(
            Text(
                f"The runs have different test data ({groups}): their metrics are in one table, but only runs with "
                "the same data are compared. Measure all on the same data with --data.",
                "note",
            )
        )
    return Section("Overview", [*blocks, *explain_missing(runs)])


def _describe_seeds(runs: Sequence[ReportedRun], over: str) -> str:
    """What the seeds of the runs allow to conclude: with one run of some setting, nothing."""
    settings: dict[str, list[float]] = {}
    for run in measured_runs(runs):
        means = run.retrieval.means
        own = run.config.with_values({"seed": 0}).model_dump_json()
        settings.setdefault(own, []).append(100 * means.get("recall@1", next(iter(means.values()))))
    if min(map(len, settings.values())) < 2:
        return ONE_SEED.format(over=over)
    spread = max(max(values) - min(values) for values in settings.values())
    return (
        f"The intervals are over the {over}, for one training run each. Runs that differ only in their seed are up to "
        f"{spread:.2f} points apart: a smaller difference between two settings may be one of seeds."
    )


def _build_tile(one: MeasuredRun) -> Tile:
    found = one.retrieval
    name = "recall@1" if "recall@1" in found.means else next(iter(found.means))
    interval = found.intervals.get(name)
    details = [] if interval is None else [f"{100 * found.confidence:g} %: {_points(interval)}"]
    details += [f"{metric_name(key)} {100 * found.means[key]:.1f} %" for key in HEADLINE[1:] if key in found.means]
    if one.untrained is not None and name == "recall@1":
        details.append(f"untrained {100 * one.untrained['recall']['1']:.1f} %")
    details += [f"of {count(found.classes, 'class')}"] if found.caution else []
    detail = "; ".join(details)
    return Tile(f"{metric_name(name)}, {one.name}", f"{100 * found.means[name]:.1f} %", detail)


def _points(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def _describe_difference(name: str, baseline: str, comparison: Comparison) -> str:
    """Recall@1 and MAP@R of two runs in words: where one hardly differs, the other may."""
    measures = [key for key in HEADLINE if key in comparison.differences] or list(comparison.differences)[:1]
    said = []
    for key in measures:
        found = comparison[key]
        points, low, high = 100 * found.difference, 100 * found.low, 100 * found.high
        if points == 0 and low == high:
            said.append(f"{metric_name(key)} is the same")
            continue
        interval = f"{100 * comparison.confidence:g} % interval {low:+.2f} to {high:+.2f}, p = {found.p_value:.3f}"
        verdict = f"{'more' if found.significant else 'no more'} than the choice of {comparison.over} explains"
        direction = "lower" if points < 0 else "higher"
        said.append(f"{metric_name(key)} is {abs(points):.2f} points {direction} ({interval}), {verdict}")
    return f"{name} against {baseline}: {'; '.join(said)}."


def build_metrics_section(runs: Sequence[ReportedRun], differences: Differences, resamples: int) -> Section:
    """Recall@K, MAP@R and R-precision with intervals, and the differences between runs."""
    blocks: list[Block] = []
    shown = [run for run in runs if run.measured is not None or _recall_at_end(run)]
    if shown:
        blocks.append(_build_table(shown, resamples))
    if differences:
        blocks.append(_build_differences(differences))
    return Section("Metrics", [*blocks, *name_missing(runs)])


def _recall_at_end(run: ReportedRun) -> dict[int, float]:
    """Recall@K by K, as the run itself measured it when training ended."""
    recall = ((run.results or {}).get("test") or {}).get("recall") or {}
    return {int(k): float(value) for k, value in recall.items()}


def _build_table(runs: Sequence[ReportedRun], resamples: int) -> Table:
    found = [one.retrieval for one in measured_runs(runs)]
    ks = {k for one in found for k in one.ks}
    ks |= {k for run in runs if run.measured is None for k in _recall_at_end(run)}
    reported = [metric for metric in retrieval_metrics() if metric.in_reports]
    shown = [metric.key_at(k) for metric in reported if metric.at_k for k in sorted(ks)]
    shown += [metric.key for metric in reported if not metric.at_k and found]
    columns = [Column(name) for name in ("run", "classes", "queries", "gallery", *map(metric_name, shown))]
    notes = []
    if any(one.intervals for one in found):
        interval = f"{100 * found[0].confidence:g} %"
        notes.append(f"Below each number: its {interval} bootstrap interval over the {found[0].over}.")
        if len(found) > 1:
            notes.append(
                f"Marked in a column: the best and all that the {found[0].over} cannot tell from it (paired "
                f"bootstrap, {interval}, not corrected for the number of comparisons); none where no run can be told "
                "from the best."
            )
    for one in measured_runs(runs):
        if one.retrieval.caution:
            notes.append(f"{one.name}: figures {one.retrieval.caution}.")
        if one.retrieval.exclusion:
            notes.append(f"{one.name}: {one.retrieval.exclusion}.")
        if alone := one.retrieval.left_out - one.retrieval.only_in_own_sequence:
            left_out = f"{alone:,}"
            example = one.evaluation.examples.removesuffix("s")
            notes.append(f"{one.name}: {left_out} queries left out, whose class has no other {example}.")
        if one.untrained is not None:
            recalls = ", ".join(f"Recall@{k} {100 * value:.1f}" for k, value in one.untrained["recall"].items())
            notes.append(f"{one.name} before training, on the same classes: {recalls}. Nothing was selected by it.")
    if len(found) < len(runs):
        notes.append(
            "† as the run measured it at the end of training, on its own test data; it could not be measured again."
        )
    rows = [_build_row(run, shown) for run in runs]
    best = _find_best(runs, shown, resamples)
    return Table(columns, rows, "Retrieval of unseen classes, %", notes, "measures", best)


def _find_best(runs: Sequence[ReportedRun], names: Sequence[str], resamples: int) -> set[tuple[int, int]]:
    """(row, column) of the best values and of those that a paired bootstrap cannot tell from them.

    Nothing is marked without resamples, which say what differs, and where runs answered different queries.
    """
    found = [one.retrieval for one in measured_runs(runs)]
    if resamples == 0 or len(found) < len(runs) or len(group_comparable(runs)) > 1:
        return set()
    compared: dict[frozenset[int], Comparison] = {}

    def differ(a: int, b: int, name: str) -> bool:
        pair = frozenset((a, b))
        if pair not in compared:
            first, second = sorted(pair)
            compared[pair] = evaluate.compare(found[first], found[second], resamples=resamples, over=found[first].over)
        return compared[pair][name].significant

    best: set[tuple[int, int]] = set()
    for column, name in enumerate(names, 4):
        values = {row: one.means[name] for row, one in enumerate(found) if name in one.means}
        leaders = find_leaders(values, lambda a, b, name=name: differ(a, b, name), find_metric(name).higher_is_better)  # type: ignore[misc]
        best |= {(row, column) for row in leaders}
    return best


def _build_row(run: ReportedRun, names: Sequence[str]) -> list[Cell]:
    if run.measured is None:
        at_end = {find_metric("recall@1").key_at(k): value for k, value in _recall_at_end(run).items()}
        cells = [Value(100 * at_end[name], mark="†") if name in at_end else None for name in names]
        return [run.name, None, None, None, *cells]
    found = run.measured.retrieval
    cells = [_percent(found.means[name], found.intervals.get(name)) if name in found.means else None for name in names]
    return [run.name, found.classes, found.queries, found.gallery_size, *cells]


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
    first_of_all = next(iter(differences.values()))[1]
    confidence = f"{100 * first_of_all.confidence:g} %"
    notes = [
        f"Below each: the {confidence} interval of a paired bootstrap over the {first_of_all.over}; * excludes zero. "
        "Neither intervals nor p are corrected for the number of comparisons."
    ]
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
        "untrained": None if run.measured is None else run.measured.untrained,
        "against": None if against is None else {"run": against[0], **against[1].to_dict()},
    }
