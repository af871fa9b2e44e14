"""`metrix threshold`: the similarity above which two images show the same thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.open_set import PANEL as OPEN_SET
from metrix.cli.open_set import OpenSet, choose_unknown, refuse_with_open_set, refuse_without_open_set
from metrix.cli.reading import FollowLinks, ImageColumn, LabelColumn, MaxBad, Root, Store, choose_reading
from metrix.errors import InvalidInput


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("threshold", rich_help_panel="Use")(with_device_flag(threshold))


def threshold(
    run: Annotated[Path, typer.Argument(help="folder of a run; with --open-set, also of an index", show_default=False)],
    precision: Annotated[
        float | None, typer.Option(help="of the pairs that are accepted, at least this share is of one class")
    ] = None,
    recall: Annotated[
        float | None, typer.Option(help="of the pairs of one class, at least this share is accepted")
    ] = None,
    far: Annotated[
        float | None, typer.Option(help="of the pairs of two classes, at most this share is accepted")
    ] = None,
    open_set: OpenSet = False,
    false_accept: Annotated[
        float | None,
        typer.Option(
            help="of the images of no enrolled class, at most this share is accepted", rich_help_panel=OPEN_SET
        ),
    ] = None,
    false_reject: Annotated[
        float | None,
        typer.Option(
            help="of the images of enrolled classes, at most this share is rejected", rich_help_panel=OPEN_SET
        ),
    ] = None,
    shots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="images of each class of the run that are enrolled; all by default",
            rich_help_panel=OPEN_SET,
            show_default=False,
        ),
    ] = None,
    store: Store = None,
    data: Annotated[str | None, typer.Option(help="measure on this data instead of the run's own")] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="resamples of classes for the interval; 0 for none")
    ] = 500,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder for the picture; RUN/analysis by default")
    ] = None,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Choose the similarity above which two images count as the same thing, on classes never seen in training.

    All pairs of the run's test images are counted. The result is kept in threshold.json of the run, from where
    metrix index takes it over; metrix search --same uses it. Precision depends on how many images a class has: choose
    by --far where the searched collection is very different from the test images.

    --open-set chooses the probability below which metrix classify says "unknown" instead: on a run's test images, kept
    in open_set.json of the run, or on the items of an index, kept in the index.

    Examples:
        metrix threshold runs/a --far 0.001
        metrix threshold photos.index --open-set --false-accept 0.01
    """
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.search_tables import build_threshold_table, describe_threshold, warn_of_small_recall
    from metrix.extras import require_extra
    from metrix.report.figures.threshold import draw_threshold
    from metrix.report.page.writing import write_figure
    from metrix.runs.output import make_output_folder
    from metrix.runs.thresholds import describe_classes, measure_threshold, write_threshold
    from metrix.runs.trained_model import open_run

    reading = choose_reading(max_bad, root, follow_links, image_column, label_column)
    refuse_without_open_set(
        open_set, {"--false-accept": false_accept, "--false-reject": false_reject, "--shots": shots}
    )
    if open_set:
        refuse_with_open_set({"--precision": precision, "--recall": recall, "--far": far})
        rates = {"false_accept": false_accept, "false_reject": false_reject}
        with show_progress(json_output) as report:
            outcome = choose_unknown(run, rates, shots, data, bootstrap, output, store, reading, report)
        outcome.print(json_output)
        return
    targets = {"precision": precision, "recall": recall, "far": far}
    given = {name: value for name, value in targets.items() if value is not None}
    if len(given) != 1:
        flags = [f"--{name}" for name in given]
        raise InvalidInput(f"expected one of --precision, --recall and --far, got {' and '.join(flags) or 'none'}")
    ((target, wanted),) = given.items()
    require_extra("matplotlib")
    with show_progress(json_output) as report:
        model = open_run(run, report, reading=reading)
        found = measure_threshold(model, target, wanted, data=data, resamples=bootstrap)
    written = [write_threshold(model, found)]
    folder = make_output_folder(run, output)
    written += write_figure(draw_threshold(found.pairs, found.threshold, describe_classes(found)), folder)
    Outcome(
        found.to_dict(),
        [build_threshold_table(found)],
        notes=[describe_threshold(found), *warn_of_small_recall(found)],
        written=written,
        next=[(f"{command('metrix', 'index', run)} PATH -o my.index", "an index that knows it, for search --same")],
    ).print(json_output)
