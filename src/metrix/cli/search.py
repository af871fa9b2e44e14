"""`metrix search`: find images in an index."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import AnyBad, FollowLinks, MovedRun, QueryRoot, Store, parse_max_bad
from metrix.errors import InvalidInput, MetrixWarning

if TYPE_CHECKING:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.retrieve.mirrored import MirroredItems
    from metrix.retrieve.queries import Queries
    from metrix.runs.trained_model import TrainedModel
    from metrix.search import Index

MOST_CHECKED = 1000  # images that are looked for when an index is opened; of a larger one, every n-th


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
            help="only among items that meet this: label=cat, price<10, label in (cat, dog) or n>3, …; of several, all",
        ),
    ] = None,
    expand: Annotated[
        int, typer.Option(min=0, metavar="N", help="expand each query by its N nearest (αQE); 0 for none")
    ] = 0,
    rerank: Annotated[bool, typer.Option("--rerank", help="re-rank by k-reciprocal neighbours")] = False,
    not_same_sequence: Annotated[
        bool,
        typer.Option("--not-same-sequence", help="leave out what is of the query's own sequence, by that column"),
    ] = False,
    same: Annotated[
        bool, typer.Option("--same", help="only what counts as the same thing, by the threshold of metrix threshold")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(min=-1, max=1, help="only neighbours at least this similar; for duplicates by the model"),
    ] = None,
    duplicates: Annotated[bool, typer.Option("--duplicates", help="list near-identical images of the index")] = False,
    flips: Annotated[bool, typer.Option("--flips", help="with --duplicates: mirrored copies, too")] = False,
    suspects: Annotated[
        bool, typer.Option("--suspects", help="list images whose label their neighbours contradict")
    ] = False,
    run: MovedRun = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write a page with the images")] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write duplicates or suspects to a table, to fix data with")
    ] = None,
    store: Store = None,
    max_bad: AnyBad = None,
    root: QueryRoot = None,
    follow_links: FollowLinks = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Find the images of an index that are nearest to a query, or that need cleaning.

    A query is an image, an item of the index (--id) or an embedding (--vector). An item is left out of its own
    answer. Images that cannot be read are skipped and counted.

    Examples:
        metrix search photos.index query.jpg -k 5
        metrix search photos.index --id cats/1.jpg --where label!=cats
        metrix search photos.index --suspects --csv suspects.csv
    """
    from metrix.cli.terminal.progress import show_progress
    from metrix.report.page import Page
    from metrix.search import Index

    sources = {"QUERY": queries, "--id": ids, "--vector": vector, "--duplicates": duplicates, "--suspects": suspects}
    given = [name for name, value in sources.items() if value]
    if len(given) != 1:
        raise InvalidInput(f"search: expected one of {', '.join(sources)}, got {' and '.join(given) or 'none'}")
    if threshold is not None and same:
        raise InvalidInput("expected --threshold or --same, got both; --same is the stored threshold")
    unused: dict[str, Any] = {"--csv": csv} if not (duplicates or suspects) else {"--where": where, "--expand": expand}
    unused |= {"--rerank": rerank, "--not-same-sequence": not_same_sequence} if duplicates or suspects else {}
    unused |= {"--same": same, "--threshold": threshold} if suspects else {}
    unused |= {} if duplicates else {"--flips": flips}
    misplaced = [name for name, value in unused.items() if value]
    if misplaced:
        raise InvalidInput(f"{', '.join(misplaced)}: expected with other searches, got {given[0]}; leave it out")
    if html is not None:
        Page.check_path(html)
    opened = Index.open(index, store, root)
    _warn_of_missing(opened)
    with show_progress(json_output) as report:
        if duplicates:
            mirrored = _open_mirrored(opened, run, report) if flips else None
            outcome = _find_duplicates(opened, same, threshold, mirrored, html, csv, report)
        elif suspects:
            outcome = _find_suspects(opened, k, html, csv, report)
        else:
            reading = {"max_bad": parse_max_bad(max_bad), "root": root, "follow_links": follow_links}
            asked, model = read_queries(opened, queries, ids, vector, run, reading, report)
            options = {"where": where or [], "expand": expand, "rerank": rerank}
            options["not_same_sequence"] = not_same_sequence
            outcome = _find(opened, asked, model, k, same, threshold, options, html)
    outcome.print(json_output)


def _warn_of_missing(index: Index) -> None:
    """Say how many images of the index are not where it says, of some that are looked for."""
    from metrix.retrieve.item_images import count_missing

    if index.description.store != "faiss":  # every item of a server would be read
        return
    checked, missing = count_missing(index, MOST_CHECKED)
    if missing:
        warnings.warn(
            f"{missing:,} of {checked:,} images of the index that were looked for are not in "
            f"{index.description.root}; if they have moved, say where with --root",
            MetrixWarning,
            stacklevel=2,
        )


def read_queries(
    index: Index,
    images: list[str] | None,
    ids: list[str] | None,
    vector: Path | None,
    run: Path | None,
    reading: dict[str, Any],
    report: Any,
) -> tuple[Queries, TrainedModel | None]:
    """What is searched with, and the model that embedded it, if one did."""
    from metrix.retrieve.queries import embed_queries, open_encoder, queries_by_id, queries_from_file

    if ids:
        return queries_by_id(index, ids), None
    if vector is not None:
        return queries_from_file(vector, index), None
    encoder = open_encoder(index, run, report)
    return embed_queries(encoder, index, images or [], **reading), encoder.model


def _find(
    index: Index,
    asked: Queries,
    model: TrainedModel | None,
    k: int,
    same: bool,
    threshold: float | None,
    options: dict[str, Any],
    html: Path | None,
) -> Outcome:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.search_tables import build_answer_table
    from metrix.report.search_page import compose_search_page
    from metrix.retrieve.indexing import describe_skipped
    from metrix.retrieve.queries import same_threshold, search_queries
    from metrix.search.refining import DEPTH

    minimum = same_threshold(index, model) if same else threshold
    ranked = bool(options["rerank"])
    options = {**options, "rerank": DEPTH if ranked else 0}
    answers = search_queries(index, asked, k, minimum=minimum, **options)
    if html is not None:
        _write_page(html, compose_search_page(index, asked, answers))
    found = [{"query": name, "neighbours": hits} for name, hits in zip(asked.names, answers, strict=True)]
    skipped = [{"path": one.path, "reason": one.reason} for one in asked.skipped]
    named = zip(asked.names, answers, strict=True)
    has_images = index.description.root is not None and index.folder is not None
    return Outcome(
        {"index": str(index.folder), "k": k, "threshold": minimum, "queries": found, "skipped": skipped},
        [build_answer_table(name, hits, list(index.columns), ranked, minimum) for name, hits in named],
        remarks=[describe_skipped(asked.skipped)] if asked.skipped else [],
        written=[] if html is None else [html],
        next=[("the same command with --html search.html", "see the images")] if html is None and has_images else [],
    )


def _open_mirrored(index: Index, run: Path | None, report: Any) -> MirroredItems:
    from metrix.retrieve.mirrored import MirroredItems
    from metrix.retrieve.queries import open_encoder

    encoder = open_encoder(index, run, report)
    index.require_model(encoder.fingerprint)  # mirrored images are compared with vectors of the index's own model
    return MirroredItems(index, encoder)


def _find_duplicates(
    index: Index,
    same: bool,
    threshold: float | None,
    mirrored: MirroredItems | None,
    html: Path | None,
    csv: Path | None,
    report: Any,
) -> Outcome:
    from dataclasses import asdict

    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.search_tables import build_duplicates_table
    from metrix.messages import count
    from metrix.report.search_page import compose_duplicates_page
    from metrix.retrieve.queries import same_threshold
    from metrix.runs.output import write_csv
    from metrix.search import choose_duplicate_threshold, find_duplicates

    minimum = same_threshold(index) if same else threshold
    groups = find_duplicates(index, minimum, lambda done, of: report("comparing", done, of), mirrored)
    shown = choose_duplicate_threshold(index) if minimum is None else minimum
    if html is not None:
        _write_page(html, compose_duplicates_page(index, groups))
    if csv is not None:
        rows = [(n, one, group.similarity) for n, group in enumerate(groups, 1) for one in group.ids]
        write_csv(csv, ("group", "id", "least_similarity"), rows)
    unread = 0 if mirrored is None else mirrored.unread
    note = "the threshold is ten times closer than the usual nearest neighbour; pairs far from all others count, too"
    return Outcome(
        {"index": str(index.folder), "threshold": shown, "duplicates": [asdict(group) for group in groups]},
        [build_duplicates_table(groups, shown, index.description.examples)],
        notes=[note] if minimum is None else [],
        remarks=[f"{count(unread, 'image')} could not be read and mirrored"] if unread else [],
        written=[path for path in (html, csv) if path is not None],
    )


def _find_suspects(index: Index, k: int, html: Path | None, csv: Path | None, report: Any) -> Outcome:
    from dataclasses import asdict

    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.search_tables import build_suspects_table
    from metrix.report.search_page import compose_suspects_page
    from metrix.runs.output import write_csv
    from metrix.search import find_suspects

    suspects = find_suspects(index, k, lambda done, of: report("comparing", done, of))
    if html is not None:
        _write_page(html, compose_suspects_page(index, suspects))
    if csv is not None:
        columns = ("id", "label", "suggested", "share", "own_share", "surprise")
        write_csv(csv, columns, [[getattr(one, name) for name in columns] for one in suspects])
    following = [("metrix index -o INDEX --set FILE.csv", "set labels by a table with id and label")]
    return Outcome(
        {"index": str(index.folder), "k": k, "suspects": [asdict(one) for one in suspects]},
        [build_suspects_table(suspects, k, index.description.examples)],
        written=[path for path in (html, csv) if path is not None],
        next=following if csv is not None and suspects else [],
    )


def _write_page(path: Path, page: Any) -> None:
    from metrix.runs.output import write_output

    text: str = page.to_html()
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
