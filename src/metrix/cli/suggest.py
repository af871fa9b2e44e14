"""`metrix suggest`: which unlabelled images to label next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import PANEL, AnyBad, FollowLinks, MovedRun, Store, parse_max_bad
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.retrieve.suggest import Suggestions
    from metrix.search import Index

SUFFIXES = (".csv", ".json", ".txt")


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("suggest", rich_help_panel="Use")(with_device_flag(suggest))


def suggest(
    index: Annotated[
        Path, typer.Argument(help="folder of an index with what is labelled, from metrix index", show_default=False)
    ],
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="UNLABELLED",
            help="folders, images, tar files, lists of paths (.txt), or an index of them; by default what has no label "
            "in INDEX",
            show_default=False,
        ),
    ] = None,
    number: Annotated[int, typer.Option("-n", min=1, help="how many to suggest")] = 100,
    strategy: Annotated[
        str,
        typer.Option(
            help="typical (many unlabelled images are like it), unsure (and their class is unsure), coverage (far from "
            "all labelled ones, k-centre), margin (two classes are nearly as likely), or random",
        ),
    ] = "typical",
    threshold: Annotated[
        float | None,
        typer.Option(
            min=-1,
            max=1,
            help="similarity above which two images are near-copies, of which one is enough; by default ten times "
            "closer than usual",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the random strategy")] = 0,
    run: MovedRun = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="write a table (.csv, .json) or a list of paths (.txt)"),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write a page with the images")] = None,
    store: Store = None,
    max_bad: AnyBad = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="folder of the unlabelled images that are named by lists not beside them", rich_help_panel=PANEL
        ),
    ] = None,
    follow_links: FollowLinks = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Suggest which unlabelled images to label next, so that few labels teach an index much.

    No two of them are near-copies of each other, nor one of a labelled image. Embeddings of the unlabelled images are
    kept in the cache folder for the next round. Images that cannot be read are skipped and counted.

    Examples:
        metrix suggest photos.index unlabelled/ -n 50 -o next.csv
        metrix suggest photos.index --strategy coverage --html next.html
    """
    from metrix.cli.terminal.progress import show_progress
    from metrix.report.page import Page
    from metrix.retrieve.suggest import suggest_images
    from metrix.search import Index

    if html is not None:
        Page.check_path(html)
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"--output: expected a file name that ends in {', '.join(SUFFIXES)}, got {output}")
    opened = Index.open(index, store)
    with show_progress(json_output) as report:
        found = suggest_images(
            opened,
            images or [],
            number,
            strategy=strategy,
            threshold=threshold,
            seed=seed,
            run=run,
            root=root,
            max_bad=parse_max_bad(max_bad),
            follow_links=follow_links,
            report=report,
        )
    _report(opened, found, output, html).print(json_output)


def _report(index: Index, found: Suggestions, output: Path | None, html: Path | None) -> Outcome:
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.suggest_tables import build_suggestions_table, describe_suggestions
    from metrix.report.suggest_page import compose_suggest_page
    from metrix.retrieve.indexing import describe_skipped
    from metrix.runs.output import write_output

    if html is not None:
        text = compose_suggest_page(index, found).to_html()
        write_output(html, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    if output is not None:
        _write(output, found)
    skipped = describe_skipped(found.broken) or (f"{found.skipped:,} skipped earlier" if found.skipped else "")
    made_by = index.description.model
    following = [] if html is not None else [("the same command with --html suggested.html", "see the images")]
    if output is not None and output.suffix == ".txt" and made_by is not None and made_by.run is not None:
        adding = command("metrix", "index", made_by.run, output, "--add", "-o", str(index.folder))
        following = [(adding, "add them, without labels yet")]
    return Outcome(
        {"index": str(index.folder), **found.to_dict()},
        [build_suggestions_table(found)],
        notes=describe_suggestions(found),
        remarks=[skipped] if skipped else [],
        written=[path for path in (output, html) if path is not None],
        next=following if found.suggestions else [],
    )


def _write(output: Path, found: Suggestions) -> None:
    import json

    from metrix.runs.output import write_csv, write_output
    from metrix.search import LABEL

    if output.suffix.lower() == ".csv":
        names = ("rank", "id", "file", "reason", "similarity", "best", "share", "second", "second_share")
        rows = [
            [
                *(getattr(one, name) for name in names),
                *(near.get(name) for near in one.neighbours[:1] for name in ("id", LABEL)),
            ]
            for one in found.suggestions
        ]
        write_csv(output, (*names, "nearest", "nearest_label"), rows)
        return
    listed = [one.file or one.id for one in found.suggestions]
    text = json.dumps(found.to_dict(), indent=2) if output.suffix.lower() == ".json" else "\n".join(listed)
    write_output(output, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))
