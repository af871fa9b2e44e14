"""The part of `metrix evaluate` that is about smaller vectors (--compress, --dims)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.runs.compression import Compression
    from metrix.runs.evaluation import Examples
    from metrix.runs.trained_model import TrainedModel

PANEL = "Smaller vectors"

Compress = Annotated[
    str | None,
    typer.Option(
        metavar="KINDS",
        help="measure codes beside whole vectors: sq8, pqM (M bytes of an item), binary; separated by commas",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Dims = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="measure prefixes too: lengths separated by commas",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]


def evaluate_smaller(
    examples: Examples,
    model: TrainedModel | None,
    compress: str | None,
    dims: tuple[int, ...],
    resamples: int,
    over: str,
    report: Any,
) -> Any:
    """Measure codes and prefixes; the outcome to print."""
    from metrix.cli.terminal.outcome import Outcome
    from metrix.runs.compression import measure_compression
    from metrix.search.compression import parse_kinds

    kinds = () if compress is None else parse_kinds(compress)
    trained = () if model is None else model.trained_prefixes
    found = measure_compression(examples, kinds, dims, trained, resamples=resamples, over=over, report=report)
    return Outcome(
        found.to_dict(), [build_compression_table(found)], remarks=[f"left out: {w}" for w in found.left_out]
    )


def build_compression_table(found: Compression) -> Any:
    """Build a table of bytes, measures and search time, the whole vectors first."""
    from rich.table import Table

    whole = found.whole.retrieval
    title = f"{whole.queries:,} queries of {whole.classes:,} classes in a gallery of {whole.gallery_size:,}"
    table = Table(title=title, caption=_describe(found), caption_justify="left")
    for name in ("dim", "kind", "bytes", "Recall@1, %", "MAP@R, %", "lost Recall@1", "within noise", "µs a query"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for row in found.rows:
        if row.dim != found.whole.dim and row.codes.kind == "float32":
            table.add_section()
        change = row.difference["recall@1"]
        lost = f"{-100 * change.difference:+.2f}"
        if row.retrieval.intervals:
            lost += f" ({-100 * change.high:+.1f} to {-100 * change.low:+.1f})"
        table.add_row(
            f"{row.dim}" if row.trained else f"{row.dim}, not trained",
            row.codes.kind,
            f"{row.codes.bytes:,}",
            *(_show(row.retrieval, name) for name in ("recall@1", "map@r")),
            "" if row is found.whole else lost,
            "" if row is found.whole or row.within_noise is None else "yes" if row.within_noise else "no",
            f"{1e6 * row.seconds:.0f}",
        )
    return table


def _show(retrieval: Any, name: str) -> str:
    value = f"{100 * retrieval.means[name]:.2f}"
    if not retrieval.intervals:
        return value
    low, high = retrieval.intervals[name]
    return f"{value} ({100 * low:.1f} to {100 * high:.1f})"


def _describe(found: Compression) -> str:
    lines = ["codes are trained on the gallery; a query stays in float32, but for binary"]
    if found.whole.retrieval.intervals:
        lines.append(
            f"95 % intervals over {found.whole.retrieval.over}; lost: to the whole in float32, in points, paired; "
            "within noise: neither Recall@1 nor MAP@R is certainly worse"
        )
    if found.whole.retrieval.caution:
        lines.append(f"[bold yellow]caution[/]: figures {found.whole.retrieval.caution}")
    lines.append("µs a query: median of 100 queries, one at a time, 10 neighbours, on this machine, all items compared")
    return "\n".join(lines)


def refuse_with_smaller(flags: dict[str, object]) -> None:
    """An error if flags that mean nothing with --compress or --dims were given with them."""
    given = [name for name, value in flags.items() if value]
    if given:
        raise InvalidInput(f"{', '.join(given)}: expected without --compress and --dims, got both; leave one out")
