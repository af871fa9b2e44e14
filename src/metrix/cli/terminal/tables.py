"""Build the tables that the verbs print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from metrix.evaluate import Estimate
from metrix.evaluate.metrics import METRICS, find_metric, metric_name, sort_keys
from metrix.messages import count
from metrix.runs.comparison import RunComparison, format_setting
from metrix.runs.evaluation import Evaluation

if TYPE_CHECKING:
    from metrix.report.page import Table as PageTable


def build_evaluation_table(result: Evaluation) -> Table:
    """Build a table of all measures in percent, with their confidence intervals."""
    retrieval, about = result.retrieval, result.about
    title = f"{about['images']:,} {result.examples} of {count(about['classes'], 'class')}"
    table = Table(title=title, caption="\n".join(_describe(result)), caption_justify="left")
    table.add_column("measure")
    table.add_column("%", justify="right")
    intervals = retrieval.intervals
    if intervals:
        table.add_column(f"{100 * retrieval.confidence:g} % interval over {retrieval.over}", justify="right")
    if retrieval.search_loss is not None:
        table.add_column("lost to the search", justify="right")
    for name in sort_keys(retrieval.means):
        row = [metric_name(name), f"{100 * retrieval.means[name]:.2f}"]
        if intervals:
            low, high = intervals[name]
            row.append(f"{100 * low:.2f} to {100 * high:.2f}")
        if retrieval.search_loss is not None:
            row.append(f"{100 * retrieval.search_loss[name]:.2f}")
        table.add_row(*row)
    if result.clustering is not None:
        table.add_section()
        found = result.clustering.to_dict()
        for metric in METRICS:
            if metric.key in found:
                table.add_row(metric.name, f"{100 * found[metric.key]:.2f}")
    return table


def _describe(result: Evaluation) -> list[str]:
    retrieval = result.retrieval
    lines = [
        f"{retrieval.queries:,} queries of {count(retrieval.classes, 'class')} in a gallery of "
        f"{retrieval.gallery_size:,} of {count(retrieval.gallery_classes, 'class')}"
    ]
    if "dim_of_whole" in result.about:
        lines.append(f"the first {result.about['dim']} of {result.about['dim_of_whole']} numbers of each embedding")
    one = result.examples.removesuffix("s")
    if alone := retrieval.left_out - retrieval.only_in_own_sequence:
        why = f"the only {one} of their class" if "labels" not in result.about else f"without another {one} that counts"
        lines[0] += f"; {alone:,} left out, {why}"
    if retrieval.exclusion:
        lines.append(retrieval.exclusion)
    if retrieval.caution:
        lines.append(f"[bold yellow]caution[/]: figures {retrieval.caution}")
    if "labels" in result.about:
        lines.append(str(result.about["labels"]))
    if retrieval.search_loss is not None:
        lines.append(f"approximate search; its loss was measured on {retrieval.loss_sample:,} queries")
    if result.clustering is None:
        lines.append("NMI and AMI were not computed; --clustering computes them")
    return lines


def build_prefix_table(result: Evaluation) -> Table:
    """Build a table of the trained prefixes of the embeddings, beside the whole."""
    whole, dim = result.retrieval, result.about["dim"]
    first = find_metric("recall@1").key_at(whole.ks[0])
    names = [first, find_metric("map@r").key]
    shown = metric_name(first)
    table = Table(title="Trained prefixes of the embedding, %", caption_justify="left")
    table.caption = f"difference: of {shown} to the whole, in points, with the interval of a paired bootstrap"
    for name in ("numbers", *map(metric_name, names), "difference", "interval"):
        table.add_column(name, justify="right")
    for one in result.prefixes:
        d = one.difference[first]
        values = (f"{100 * one.retrieval.means[name]:.2f}" for name in names)
        interval = f"{100 * d.low:+.2f} to {100 * d.high:+.2f}"
        table.add_row(f"{one.dim}", *values, f"{100 * d.difference:+.2f}", interval)
    table.add_row(f"{dim}, the whole", *(f"{100 * whole.means[name]:.2f}" for name in names), "", "")
    return table


def build_refinement_table(result: Evaluation) -> Table:
    """Build a table of what query expansion or re-ranking changes, measure by measure."""
    assert result.refinement is not None
    about = result.about
    steps = [f"query expansion by {about['expand']}"] if about["expand"] else []
    steps += [f"re-ranking of {about['rerank']}"] if about["rerank"] else []
    found = result.refinement
    table = Table(
        title=f"Effect of {' and '.join(steps)}, in points",
        caption=f"with {100 * found.confidence:g} % intervals of a paired bootstrap over the {found.over}",
        caption_justify="left",
    )
    for name in ("measure", "plain", "refined", "difference", "interval"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name in sort_keys(result.refinement.differences):
        d = result.refinement[name]
        interval = f"{100 * d.low:+.2f} to {100 * d.high:+.2f}"
        values = (f"{100 * d.a:.2f}", f"{100 * d.b:.2f}", f"{100 * d.difference:+.2f}")
        table.add_row(metric_name(name), *values, interval)
    return table


def build_comparison_tables(result: RunComparison) -> list[Table]:
    """Build the tables of a comparison: settings that differ, measures of each run, differences to the first."""
    tables = []
    if result.settings:
        settings = Table(title="Settings that differ")
        settings.add_column("setting")
        for run in result.runs:
            settings.add_column(escape(run), overflow="fold")
        for key, values in result.settings.items():
            settings.add_row(key, *(escape(format_setting(value)) for value in values))
        tables.append(settings)
    first = result.evaluations[0].retrieval
    names = [*(find_metric("recall@1").key_at(k) for k in first.ks), find_metric("map@r").key]
    measures = Table(title=f"{first.queries:,} queries in a gallery of {first.gallery_size:,}, %")
    measures.add_column("run", overflow="fold")
    for name in names:
        measures.add_column(metric_name(name), justify="right")
    for run, one in zip(result.runs, result.evaluations, strict=True):
        measures.add_row(escape(run), *(f"{100 * one.retrieval.means[name]:.2f}" for name in names))
    tables.append(measures)
    differences = Table(
        title=f"Difference to {escape(result.runs[0])}, in points",
        caption="\n".join(_describe_comparison(result)),
        caption_justify="left",
    )
    differences.add_column("run", overflow="fold")
    differences.add_column("measure")
    differences.add_column("difference", justify="right")
    differences.add_column("interval", justify="right")
    differences.add_column("p", justify="right")
    for run, comparison in zip(result.runs[1:], result.differences, strict=True):
        for n, name in enumerate(names):
            d = comparison[name]
            differences.add_row(
                escape(run) if n == 0 else "",
                metric_name(name),
                f"{100 * d.difference:+.2f}{' *' if d.significant else '  '}",
                f"{100 * d.low:+.2f} to {100 * d.high:+.2f}",
                f"{d.p_value:.3f}",
            )
        differences.add_section()
    tables.append(differences)
    return tables


def _describe_comparison(result: RunComparison) -> list[str]:
    first = result.differences[0]
    lines = [
        f"{100 * first.confidence:g} % intervals by paired bootstrap over the {first.over}; *: the interval excludes "
        "zero (no correction for the number of comparisons)"
    ]
    caution = result.evaluations[0].retrieval.caution
    return [*lines, f"[bold yellow]caution[/]: figures {caution}"] if caution else lines


def build_numbers_table(title: str, rows: dict[str, dict[str, Any]], caption: str = "") -> Table:
    """Build a table of named rows of numbers; an estimate from a sample shows its standard error."""
    table = Table(title=title, caption=caption or None, caption_justify="left")
    table.add_column("")
    for name in next(iter(rows.values())):
        table.add_column(name, justify="right")
    for name, values in rows.items():
        table.add_row(escape(name), *(_format_number(value) for value in values.values()))
    return table


def _format_number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Estimate) and not value.exact:
        return f"{float(value):.4f} ± {value.standard_error:.4f}"
    return f"{value:,}" if isinstance(value, int) else f"{float(value):.4f}"


def build_page_tables(table: PageTable, width: int) -> list[Table]:
    """Build the terminal version of a table of a page: best values bold, footnotes below the last.

    Args:
        table: of a page.
        width: columns of the terminal. A table that is wider is continued below itself, with its first columns again,
            so that no number is cut off.
    """
    texts = [row if isinstance(row, str) else [_cell_text(cell) for cell in row] for row in table.rows]
    spaces = [
        max([_longest(column), *(len(row[c]) for row in texts if not isinstance(row, str))]) + 3
        for c, column in enumerate(table.columns)
    ]
    names = [c for c, column in enumerate(table.columns) if column.text]
    left = width - 1 - sum(spaces[c] for c in names)
    parts: list[list[int]] = [[]]
    for c in range(len(table.columns)):
        if c in names:
            continue
        if parts[-1] and sum(spaces[other] for other in (*parts[-1], c)) > left:
            parts.append([])
        parts[-1].append(c)
    drawn = [_draw_part(table, texts, [*names, *part]) for part in parts]
    drawn[0].title = escape(table.caption)
    drawn[-1].caption = "\n".join(escape(note) for note in table.footnotes)
    return drawn


def _draw_part(table: PageTable, texts: list[list[str] | str], columns: list[int]) -> Table:
    drawn = Table(caption_justify="left")
    for c in columns:
        column = table.columns[c]
        heading = "\n".join(word for word in (column.group, column.name) if word)
        drawn.add_column(escape(heading), justify="left" if column.text else "right", no_wrap=not column.text)
    for n, row in enumerate(texts):
        if isinstance(row, str):
            drawn.add_section()
            drawn.add_row(f"[italic]{escape(row)}[/]")
        else:
            drawn.add_row(*(f"[bold]{escape(row[c])}[/]" if (n, c) in table.best else escape(row[c]) for c in columns))
    return drawn


def _cell_text(cell: Any) -> str:
    from metrix.report.page import Value

    return cell.text if isinstance(cell, Value) else "" if cell is None else str(cell)


def _longest(column: Any) -> int:
    return max(len(column.group), len(column.name))
