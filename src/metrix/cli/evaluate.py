"""`metrix evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from metrix.errors import InvalidInput


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("evaluate", rich_help_panel="Measure")(evaluate)


def evaluate(
    run: Annotated[Path | None, typer.Argument(help="folder of a run", show_default=False)] = None,
    data: Annotated[str | None, typer.Option(help="measure on other data than the run's own")] = None,
    part: Annotated[str, typer.Option(help="test, train or all")] = "test",
    embeddings: Annotated[
        Path | None, typer.Option(help="embeddings from anywhere instead of a run: .npy, .parquet or .csv")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="their labels: .csv, .npy, .txt or .parquet")] = None,
    gallery_embeddings: Annotated[Path | None, typer.Option(help="search in these, not among the queries")] = None,
    gallery_labels: Annotated[Path | None, typer.Option(help="labels of the gallery")] = None,
    ks: Annotated[
        str | None, typer.Option(help="the K of Recall@K, with commas; those of the dataset by default")
    ] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="resamples for the intervals; 0 for none")] = 1000,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="approximate search; what it loses is told")
    ] = False,
    clustering: Annotated[
        bool | None, typer.Option("--clustering/--no-clustering", help="NMI and AMI; by default unless very large")
    ] = None,
    per_class: Annotated[Path | None, typer.Option(help="write a CSV with the measures of each class")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Measure how well classes never seen in training are found again.

    Recall@K, MAP@R, R-precision, mAP and precision@K with bootstrap intervals, NMI and AMI. The results
    are also in evaluation.json of the run. Under torchrun, each process embeds its share of the images.
    """
    import json
    import os

    from rich.console import Console

    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_evaluation_table
    from metrix.runs.embedding import TrainedModel
    from metrix.runs.evaluation import evaluation, examples_of_files, examples_of_run, record
    from metrix.runs.export import share_of_process

    one_source(run, embeddings, {"--data": data, "--part": None if part == "test" else part})
    chosen = whole_numbers("--ks", ks)
    model = None
    with show_progress(json_output) as report:
        if embeddings is not None:
            examples = examples_of_files(embeddings, labels, gallery_embeddings, gallery_labels)
        else:
            assert run is not None
            share = share_of_process(os.environ.get)
            model = TrainedModel(run, report, share=share)
            examples = examples_of_run(model, data, part)
            if share[0] > 0:
                return
    result = evaluation(examples, chosen, resamples=bootstrap, approximate=approximate, clustered=clustering)
    if per_class is not None:
        result.write_per_class(per_class)
    written = None if model is None else record(model, result, own_test=data is None and part == "test")
    if json_output:
        typer.echo(json.dumps(result.to_dict()))
        return
    Console().print(build_evaluation_table(result))
    for path in (written, per_class):
        if path is not None:
            Console(stderr=True, soft_wrap=True).print(f"written: [cyan]{path}[/]", highlight=False)


def one_source(run: Path | None, embeddings: Path | None, of_runs: Mapping[str, object] | None = None) -> None:
    """Either a run or files of embeddings; flags that only concern runs are not given with files."""
    if run is None and embeddings is None:
        raise InvalidInput("nothing to measure was given: accepted is a RUN, or --embeddings FILE --labels FILE")
    if run is not None and embeddings is not None:
        raise InvalidInput(f"a run ({run}) and --embeddings ({embeddings}) were both given: give one")
    misplaced = [name for name, value in (of_runs or {}).items() if value is not None]
    if embeddings is not None and misplaced:
        raise InvalidInput(f"{', '.join(misplaced)} with --embeddings: it chooses images for a run's model to embed")


def whole_numbers(flag: str, text: str | None) -> tuple[int, ...] | None:
    """Numbers with commas.

    >>> whole_numbers("--ks", "1,10,100")
    (1, 10, 100)
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"{flag} {text!r}: accepted are whole numbers with commas, as 1,2,4,8") from None
