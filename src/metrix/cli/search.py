"""`metrix search`: find images in an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import AnyBad, FollowLinks, Root, parse_max_bad
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.retrieve.queries import Queries
    from metrix.search import Index


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("search", rich_help_panel="Use")(with_device_flag(search))


def search(
    index: Annotated[Path, typer.Argument(help="folder of an index, as metrix index wrote it", show_default=False)],
    queries: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUERY", help="images, folders, lists of paths (.txt) or manifests", show_default=False),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="neighbours of each query")] = 10,
    ids: Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="search with this item")] = None,
    vector: Annotated[
        Path | None, typer.Option(metavar="FILE", help="search with embeddings: .npy, .parquet or .csv")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="only among items that meet this: label=cat, price<10, label in (cat, dog) or n>3, …; several: all",
        ),
    ] = None,
    expand: Annotated[
        int, typer.Option(min=0, metavar="N", help="expand each query by its N nearest (αQE); 0 for none")
    ] = 0,
    rerank: Annotated[bool, typer.Option("--rerank", help="re-rank by k-reciprocal neighbours")] = False,
    same: Annotated[
        bool, typer.Option("--same", help="only what counts as the same thing, by the threshold of metrix threshold")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(min=-1, max=1, help="only neighbours at least this similar; duplicates: 0.98")
    ] = None,
    duplicates: Annotated[bool, typer.Option("--duplicates", help="list near-identical images of the index")] = False,
    suspects: Annotated[
        bool, typer.Option("--suspects", help="list images whose label their neighbours contradict")
    ] = False,
    run: Annotated[
        Path | None, typer.Option(help="the run that the index was built with, if it has moved", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write a page with the images")] = None,
    max_bad: AnyBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Find the images of an index that are nearest to a query, or that need cleaning.

    A query is an image, an item of the index (--id) or an embedding (--vector). An item is left out of its own
    answer. Images that cannot be read are skipped and counted.
    """
    from metrix.report.page import Page
    from metrix.search import Index

    sources = {"QUERY": queries, "--id": ids, "--vector": vector, "--duplicates": duplicates, "--suspects": suspects}
    given = [name for name, value in sources.items() if value]
    if len(given) != 1:
        raise InvalidInput(f"search: expected one of {', '.join(sources)}, got {' and '.join(given) or 'none'}")
    if html is not None:
        Page.check_path(html)
    opened = Index.open(index)
    if duplicates or suspects:
        unused = {"--where": where, "--expand": expand, "--rerank": rerank}
        misplaced = [name for name, value in unused.items() if value]
        if misplaced:
            raise InvalidInput(f"{', '.join(misplaced)}: expected with a query, got {given[0]}; leave it out")
        _clean(opened, duplicates, k, same, threshold, html, json_output)
        return
    if root is not None and not queries:
        raise InvalidInput(f"--root: expected with images to search with, got {given[0]}; leave it out")
    reading = {"max_bad": parse_max_bad(max_bad), "root": root, "follow_links": follow_links}
    _find(
        opened, queries, ids, vector, k, where or [], expand, rerank, same, threshold, run, reading, html, json_output
    )


def _find(
    index: Index,
    images: list[str] | None,
    ids: list[str] | None,
    vector: Path | None,
    k: int,
    where: list[str],
    expand: int,
    rerank: bool,
    same: bool,
    threshold: float | None,
    run: Path | None,
    reading: dict[str, Any],
    html: Path | None,
    json_output: bool,
) -> None:
    import json

    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.search_tables import build_answer_table
    from metrix.report.search_page import compose_search_page
    from metrix.retrieve.indexing import describe_skipped
    from metrix.retrieve.queries import (
        embed_queries,
        open_encoder,
        queries_by_id,
        queries_from_file,
        same_threshold,
        search_queries,
    )
    from metrix.search.refining import DEPTH

    asked: Queries
    model = None
    if ids:
        asked = queries_by_id(index, ids)
    elif vector is not None:
        asked = queries_from_file(vector)
    else:
        with show_progress(json_output) as report:
            encoder = open_encoder(index, run, report)
            model = encoder.model
            asked = embed_queries(encoder, index, images or [], **reading)
    least = _least(threshold, same, lambda: same_threshold(index, model))
    depth = DEPTH if rerank else 0
    answers = search_queries(index, asked, k, minimum=least, where=where, expand=expand, rerank=depth)
    if html is not None:
        _write_page(html, compose_search_page(index, asked, answers))
    if json_output:
        found = [{"query": name, "neighbours": hits} for name, hits in zip(asked.names, answers, strict=True)]
        skipped = [{"path": one.path, "reason": one.reason} for one in asked.skipped]
        content = {"index": str(index.folder), "k": k, "threshold": least, "queries": found, "skipped": skipped}
        typer.echo(json.dumps(content))
        return
    for name, hits in zip(asked.names, answers, strict=True):
        Console().print(build_answer_table(name, hits, list(index.columns), ranked=bool(rerank)))
    errors = Console(stderr=True, soft_wrap=True)
    if asked.skipped:
        errors.print(describe_skipped(asked.skipped), markup=False, highlight=False)
    if html is not None:
        errors.print(f"written: [cyan]{escape(str(html))}[/]", highlight=False)
    elif index.description.root is not None and index.folder is not None:
        print_next(("the same command with --html search.html", "see the images"))


def _clean(
    index: Index, duplicates: bool, k: int, same: bool, threshold: float | None, html: Path | None, json_output: bool
) -> None:
    import json
    from dataclasses import asdict

    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.search_tables import build_duplicates_table, build_suspects_table
    from metrix.report.search_page import compose_duplicates_page, compose_suspects_page
    from metrix.retrieve.queries import same_threshold
    from metrix.search import choose_duplicate_threshold, find_duplicates, find_suspects

    table: Any
    with show_progress(json_output) as report:
        if duplicates:
            least = _least(threshold, same, lambda: same_threshold(index))
            groups = find_duplicates(index, least, lambda done, of: report("comparing", done, of))
            least = choose_duplicate_threshold(index) if least is None else least
            content: dict[str, Any] = {"threshold": least, "duplicates": [asdict(group) for group in groups]}
            page, table = compose_duplicates_page, build_duplicates_table(groups, least, index.description.examples)
            composed = None if html is None else page(index, groups)
        else:
            if same or threshold is not None:
                raise InvalidInput("--same and --threshold: expected with a query or --duplicates, got --suspects")
            suspects = find_suspects(index, k, lambda done, of: report("comparing", done, of))
            content = {"k": k, "suspects": [asdict(one) for one in suspects]}
            table = build_suspects_table(suspects, k, index.description.examples)
            composed = None if html is None else compose_suspects_page(index, suspects)
    if composed is not None and html is not None:
        _write_page(html, composed)
    if json_output:
        typer.echo(json.dumps({"index": str(index.folder), **content}))
        return
    Console().print(table)
    if html is not None:
        Console(stderr=True, soft_wrap=True).print(f"written: [cyan]{escape(str(html))}[/]", highlight=False)


def _least(threshold: float | None, same: bool, stored: Any) -> float | None:
    if threshold is not None and same:
        raise InvalidInput("expected --threshold or --same, got both; --same is the stored threshold")
    return float(stored()) if same else threshold


def _write_page(path: Path, page: Any) -> None:
    from metrix.runs.output import write_output

    text: str = page.to_html()
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
