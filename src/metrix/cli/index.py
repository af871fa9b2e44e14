"""`metrix index`: build an index of images to search, or change one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import PANEL, AnyBad, FollowLinks, parse_max_bad
from metrix.errors import InvalidInput
from metrix.messages import first_few

if TYPE_CHECKING:
    from metrix.retrieve.indexing import Indexed


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("index", rich_help_panel="Use")(with_device_flag(index))


def index(
    run: Annotated[Path | None, typer.Argument(help="folder of a run", show_default=False)] = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="folders, images, manifests (.csv, .tsv, .parquet) or lists of paths (.txt); or glyphs, glyphs-mini",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder of the index; PATH.index by default")
    ] = None,
    store: Annotated[
        str, typer.Option(help="faiss, milvus:PATH (embedded) or milvus:http://HOST:PORT (a server)")
    ] = "faiss",
    kind: Annotated[str, typer.Option(help="exact, or approximate: hnsw, ivf")] = "exact",
    root: Annotated[
        Path | None,
        typer.Option(
            help="folder that ids are relative to, and paths of a manifest that are not beside it; by default the "
            "smallest with all images",
            rich_help_panel=PANEL,
        ),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="add the images to the index")] = False,
    update: Annotated[bool, typer.Option("--update", help="add the images, replacing those that are there")] = False,
    delete: Annotated[list[str] | None, typer.Option("--delete", metavar="ID", help="remove this item")] = None,
    merge: Annotated[Path | None, typer.Option(metavar="INDEX", help="add the items of another index")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="what runs the network: torch (exact), bf16, onnx, a file of metrix export --onnx, or auto, the "
            "fastest on this machine by a short measurement; torch by default, but that of the index to change it",
            show_default=False,
        ),
    ] = None,
    max_bad: AnyBad = None,
    follow_links: FollowLinks = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Embed images with a run's model and build an index of them, for metrix search.

    Images that cannot be read are skipped and counted. An interrupted build resumes when it is started again, and an
    index that is replaced or changed stays in use until its successor is complete.

    The engine is stored in the index with its largest difference to the exact vectors. Queries of metrix search go
    through it, too, unless its vectors are the exact ones up to rounding.
    """
    import json

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.search_tables import build_index_table
    from metrix.model.engines import TORCH
    from metrix.retrieve.engine_choice import describe_engine
    from metrix.retrieve.indexing import describe_skipped
    from metrix.search import SUGGEST_PAST

    chosen = [
        name
        for name, value in {"--add": add, "--update": update, "--delete": delete, "--merge": merge}.items()
        if value
    ]
    if len(chosen) > 1:
        raise InvalidInput(f"expected one of --add, --update, --delete and --merge, got {' and '.join(chosen)}")
    target = output or _default_output(images)
    with show_progress(json_output) as report:
        if delete or merge is not None:
            done = _change(target, delete, merge, images, engine)
        else:
            reading = {"max_bad": parse_max_bad(max_bad), "follow_links": follow_links}
            building: dict[str, Any] = {"store": store, "kind": kind, "root": root, "engine": engine}
            done = _embed(run, images, target, report, reading, add=add, update=update, **building)
    description = done.index.description
    if json_output:
        skipped = [{"path": one.path, "reason": one.reason} for one in done.skipped]
        content = {"index": str(target), **description.model_dump(), "embedded": done.images, "skipped_images": skipped}
        typer.echo(json.dumps(content))
        return
    Console().print(build_index_table(target, done.index, done.images))
    errors = Console(stderr=True, soft_wrap=True)
    if done.skipped:
        errors.print(describe_skipped(done.skipped), markup=False, highlight=False)
    if done.engine is not None and (done.engine["name"] != TORCH or done.engine["measured"]):
        errors.print(f"engine: {describe_engine(done.engine)}", markup=False, highlight=False)
    if description.kind == "exact" and description.count > SUGGEST_PAST:
        errors.print("exact search compares all items; --kind hnsw or ivf is faster and states its recall")
    query = "--id ID" if description.root is None else "QUERY.jpg"
    print_next(
        (f"{command('metrix', 'search', target)} {query}", "search with an image" if description.root else "search"),
        (command("metrix", "search", target, "--suspects"), f"{description.examples} that may have a wrong label"),
        (command("metrix", "serve", target), "a service and a page to look at"),
    )


def _default_output(images: list[str] | None) -> Path:
    if not images:
        raise InvalidInput("index: expected -o INDEX, or data to index, got neither")
    return Path(Path(images[0]).resolve().stem + ".index")


def _embed(
    run: Path | None,
    images: list[str] | None,
    target: Path,
    report: Any,
    reading: dict[str, Any],
    *,
    store: str,
    kind: str,
    root: Path | None,
    engine: str | None,
    add: bool,
    update: bool,
) -> Indexed:
    from metrix.model.engines import AUTO, TORCH
    from metrix.retrieve.indexing import add_images, index_images
    from metrix.runs.trained_model import open_run

    if run is None or not images:
        raise InvalidInput("index: expected a RUN and data to embed with it: metrix index RUN PATH -o INDEX")
    model = open_run(run, report)
    if not add and not update:
        return index_images(model, images, target, kind=kind, store=store, root=root, engine=engine or TORCH, **reading)
    if store != "faiss" or kind != "exact" or root is not None or reading["follow_links"]:
        raise InvalidInput(
            "--store, --kind, --root and --follow-links: expected when an index is built, got one that is changed"
        )
    return add_images(model, images, target, replace=update, max_bad=reading["max_bad"], engine=engine or AUTO)


def _change(
    target: Path, delete: list[str] | None, merge: Path | None, images: list[str] | None, engine: str | None
) -> Indexed:
    from metrix.retrieve.indexing import Indexed
    from metrix.search import Index

    if images:
        raise InvalidInput(f"--delete and --merge: expected no data, got {first_few(images)}; leave them out")
    if engine is not None:
        raise InvalidInput(f"--engine: expected with data to embed, got {engine} with --delete or --merge")
    found = Index.open(target)
    if delete:
        found.delete(delete)
    if merge is not None:
        found.merge(Index.open(merge))
    return Indexed(found, 0, ())
