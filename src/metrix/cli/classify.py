"""`metrix classify`: which class of an index an image is of, or "unknown"."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import AnyBad, FollowLinks, MovedRun, QueryRoot, Store, parse_max_bad
from metrix.cli.search import read_queries
from metrix.cli.terminal.console import print_warning
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.retrieve.classify import Classifier, Prediction
    from metrix.retrieve.queries import Queries


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("classify", rich_help_panel="Use")(with_device_flag(classify))


def classify(
    index: Annotated[
        Path, typer.Argument(help="folder of an index with labels, as metrix index wrote it", show_default=False)
    ],
    queries: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUERY", help="images, folders, lists of paths (.txt) or manifests", show_default=False),
    ] = None,
    k: Annotated[
        int | None, typer.Option("-k", min=1, help="neighbours that vote; 10, or those of the stored threshold")
    ] = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="classify this item, without its own vote")
    ] = None,
    vector: Annotated[
        Path | None, typer.Option(metavar="FILE", help="classify embeddings: .npy, .parquet or .csv")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="CONDITION", help="only items that meet this vote: price<10, …")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="unknown below this probability of being of any class; that of metrix threshold --open-set by "
            "default, else 0.5",
            show_default=False,
        ),
    ] = None,
    run: MovedRun = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write a page with the images")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="write a table with a line for each query")] = None,
    store: Store = None,
    max_bad: AnyBad = None,
    root: QueryRoot = None,
    follow_links: FollowLinks = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Say which class of an index an image is of, with a probability, or that it is unknown.

    The nearest images vote, weighted by their similarity, together with the centroids of the classes. Nothing is
    trained: a new class is there once images of it are added to the index. Images that cannot be read are skipped and
    counted.

    Examples:
        metrix classify photos.index query.jpg
        metrix classify photos.index new/ --csv classes.csv
    """
    from metrix.cli.terminal.progress import show_progress
    from metrix.report.page import Page
    from metrix.retrieve.classify import Classifier
    from metrix.search import Index

    sources = {"QUERY": queries, "--id": ids, "--vector": vector}
    given = [name for name, value in sources.items() if value]
    if len(given) != 1:
        raise InvalidInput(f"classify: expected one of {', '.join(sources)}, got {' and '.join(given) or 'none'}")
    if html is not None:
        Page.check_path(html)
    opened = Index.open(index, store, root)
    with show_progress(json_output) as report:
        classifier = Classifier.fit(opened, run=run, k=k, threshold=threshold, report=report)
        reading = {"max_bad": parse_max_bad(max_bad), "root": root, "follow_links": follow_links, "report": report}
        asked, _ = read_queries(opened, queries, ids, vector, run, reading, report)
        classifier = classifier.for_items() if asked.are_items else classifier
        answers = classifier.predict_queries(asked, where or [])
    if where and answers and not any(one.neighbours for one in answers):
        print_warning(f"no item of the index meets --where {' and '.join(where)}: nothing voted")
    _report(classifier, asked, answers, html, csv).print(json_output)


def _report(
    classifier: Classifier, asked: Queries, answers: list[Prediction], html: Path | None, csv: Path | None
) -> Outcome:
    from metrix.cli.terminal.classify_tables import build_class_table, build_prediction_table, describe_decision
    from metrix.cli.terminal.outcome import Outcome
    from metrix.report.classify_page import compose_classify_page
    from metrix.retrieve.indexing import describe_skipped
    from metrix.runs.output import write_output

    if html is not None:
        text = compose_classify_page(classifier, asked, answers).to_html()
        write_output(html, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    if csv is not None:
        _write_table(csv, answers)
    index = classifier.index
    has_images = index.description.root is not None and index.folder is not None
    return Outcome(
        {
            "index": str(index.folder),
            "threshold": classifier.threshold,
            "calibration": classifier.calibration.model_dump(),
            "measured": None if classifier.measured is None else classifier.measured.model_dump(),
            "predictions": [one.to_dict() for one in answers],
            "skipped": [{"path": one.path, "reason": one.reason} for one in asked.skipped],
        },
        [build_class_table(answers[0])] if len(answers) == 1 else [build_prediction_table(answers)],
        notes=[describe_decision(classifier)],
        remarks=[one for one in (describe_skipped(asked.skipped), classifier.caution) if one],
        written=[path for path in (html, csv) if path is not None],
        next=[("the same command with --html answer.html", "see the images")] if html is None and has_images else [],
    )


def _write_table(path: Path, answers: list[Prediction]) -> None:
    import csv

    from metrix.runs.output import write_output

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("query", "label", "probability", "known", "best"))
            for one in answers:
                writer.writerow(
                    (one.query, "" if one.label is None else one.label, one.probability, one.known, one.best)
                )

    write_output(path, write)
