"""`metrix evaluate`: retrieval and clustering measures of a run or of given embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from metrix.cli.compression import Compress, Dims, evaluate_smaller, refuse_with_smaller
from metrix.cli.device import with_device_flag
from metrix.cli.open_set import Draws, OpenSet, Shots, evaluate_unknown, refuse_with_open_set, refuse_without_open_set
from metrix.cli.reading import (
    Dim,
    FollowLinks,
    ForceDim,
    ImageColumn,
    LabelColumn,
    MaxBad,
    Root,
    choose_reading,
)
from metrix.errors import InvalidInput

BootstrapOver = Annotated[
    str,
    typer.Option(
        "--bootstrap-over",
        metavar="UNIT",
        help="what the bootstrap draws: classes, as tests are of unseen classes, or queries, for the same classes",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("evaluate", rich_help_panel="Measure")(with_device_flag(evaluate_command))


def evaluate_command(
    run: Annotated[Path | None, typer.Argument(help="folder of a run", show_default=False)] = None,
    data: Annotated[str | None, typer.Option(help="measure on this data instead of the run's own")] = None,
    part: Annotated[str, typer.Option(help="test, train or all")] = "test",
    embeddings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="file of embeddings to measure instead of a run: .npy, .parquet or .csv"),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="file of their labels: .csv, .npy, .txt or .parquet")
    ] = None,
    gallery_embeddings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="gallery to search; the queries themselves by default")
    ] = None,
    gallery_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="labels of the gallery")] = None,
    ks: Annotated[
        str | None, typer.Option(help="values of K in Recall@K, separated by commas; those of the dataset by default")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="resamples for confidence intervals; 0 for none")
    ] = 1000,
    bootstrap_over: BootstrapOver = "classes",
    approximate: Annotated[
        bool, typer.Option("--approximate", help="use approximate search, and report what it loses")
    ] = False,
    expand: Annotated[
        int, typer.Option(min=0, metavar="N", help="expand each query by its N nearest (αQE), and report the effect")
    ] = 0,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="re-rank by k-reciprocal neighbours, and report the effect")
    ] = False,
    ignore_sequences: Annotated[
        bool,
        typer.Option("--ignore-sequences", help="let images of a query's own sequence (column sequence) count, too"),
    ] = False,
    clustering: Annotated[
        bool | None,
        typer.Option(
            "--clustering/--no-clustering", help="compute NMI and AMI; by default unless the data is very large"
        ),
    ] = None,
    per_class: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write measures and confusions of all classes to a CSV file")
    ] = None,
    dim: Dim = None,
    force_dim: ForceDim = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="OLD", help="an older run: measure how well this run's queries search an index of it"),
    ] = None,
    compress: Compress = None,
    dims: Dims = None,
    open_set: OpenSet = False,
    shots: Shots = None,
    draws: Draws = 10,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Measure how well images of unseen classes retrieve their own class.

    Computes Recall@K, MAP@R, R-precision, mAP and precision@K with bootstrap intervals, NMI and AMI, and lists the
    worst and best classes and those that are confused most, and Recall@1 of the prefixes that --matryoshka trained.
    Where data has a column sequence (a track, a shoot), images of a query's own sequence are neither right nor wrong.
    The results are also written to evaluation.json in the run's folder. Under torchrun, each process embeds its share
    of the images.

    --compress and --dims measure smaller vectors instead: bytes of an item against Recall@1, MAP@R and search time.

    --open-set measures metrix classify instead: accuracy of enrolled classes, AUROC of unknown ones, accuracy at 1 %
    false accept and calibration, with few images of each class enrolled (at most 200 resamples).

    --against OLD measures whether an index of OLD can be searched by this run (metrix train --compatible-with, metrix
    distil --compatible): Recall@1 of its queries among images by OLD, beside both models alone.

    Examples:
        metrix evaluate runs/a
        metrix evaluate runs/a --data other/ --part all
        metrix evaluate --embeddings vectors.npy --labels labels.csv
    """
    import json
    import os

    from rich.markup import escape

    from metrix.cli.terminal.class_tables import build_class_tables
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_evaluation_table, build_prefix_table, build_refinement_table
    from metrix.core.prefixes import check_prefix
    from metrix.retrieve.embedding_output import read_process_share
    from metrix.runs.evaluation import (
        embed_examples,
        evaluate_examples,
        measure_prefixes,
        read_examples,
        write_evaluation,
    )
    from metrix.runs.output import CannotWrite
    from metrix.runs.trained_model import open_run
    from metrix.search.refining import DEPTH

    check_one_source(run, embeddings, {"--data": data, "--part": None if part == "test" else part})
    chosen = parse_integers("--ks", ks)
    refuse_without_open_set(open_set, {"--shots": shots})
    if open_set:
        refuse_with_open_set(
            {"--ks": ks, "--approximate": approximate, "--expand": expand, "--rerank": rerank, "--per-class": per_class}
        )
    smaller = compress is not None or dims is not None
    prefixes = parse_integers("--dims", dims) or ()
    if smaller:
        others: dict[str, object] = {
            "--open-set": open_set,
            "--ks": ks,
            "--approximate": approximate,
            "--expand": expand,
        }
        others |= {"--rerank": rerank, "--per-class": per_class, "--dim": dim, "--clustering": clustering}
        refuse_with_smaller({**others, "--against": against})
    if against is not None:
        flags = {"--embeddings": embeddings, "--ks": ks, "--approximate": approximate, "--expand": expand}
        flags |= {
            "--dim": dim,
            "--rerank": rerank,
            "--ignore-sequences": ignore_sequences,
            "--per-class": per_class,
        }
        if wrong := [name for name, value in {**flags, "--open-set": open_set}.items() if value]:
            raise InvalidInput(f"{', '.join(wrong)}: expected without --against, got both; leave one out")
        assert run is not None
        reading = choose_reading(max_bad, root, follow_links, image_column, label_column)
        evaluate_against(run, against, data, part, bootstrap, reading, json_output)
        return
    model = None
    with show_progress(json_output) as report:
        if embeddings is not None:
            examples = read_examples(embeddings, labels, gallery_embeddings, gallery_labels)
        else:
            assert run is not None
            share = read_process_share(os.environ.get)
            reading = choose_reading(max_bad, root, follow_links, image_column, label_column)
            model = open_run(run, report, share=share, reading=reading)
            if dim is not None:  # before everything is embedded
                check_prefix(dim, model.dim, model.trained_prefixes, force_dim)
            examples = embed_examples(model, data, part)
            if share[0] > 0:
                return
        if ignore_sequences:
            examples = examples.without_sequences()
        if dim is not None:
            examples = examples.shorten(dim, () if model is None else model.trained_prefixes, force_dim)
        if open_set:
            own = data is None and part == "test" and dim is None
            outcome = evaluate_unknown(examples, model, shots, draws, min(bootstrap, 200), report, own)
        if smaller:
            outcome = evaluate_smaller(examples, model, compress, prefixes, bootstrap, bootstrap_over, report)
    if open_set or smaller:
        outcome.print(json_output)
        return
    result = evaluate_examples(
        examples,
        chosen,
        resamples=bootstrap,
        over=bootstrap_over,
        approximate=approximate,
        clustered=clustering,
        expand=expand,
        rerank=DEPTH if rerank else 0,
        per_class=True,
    )
    if per_class is not None:
        result.write_per_class(per_class)
    refined = bool(expand or rerank or ignore_sequences or dim)  # evaluation.json is of the plain search
    if model is not None and not refined and not approximate:
        trained = measure_prefixes(examples, model.trained_prefixes, result.retrieval, resamples=bootstrap)
        result = replace(result, prefixes=trained)
    own_test = data is None and part == "test"
    written = None
    if model is not None and not refined:
        try:
            written = write_evaluation(model, result, own_test=own_test)
        except CannotWrite as error:  # a run of a colleague, or a full disk: the result itself is there
            note = f"[yellow]metrix:[/] the result is not kept: {escape(str(error))}"
            Console(stderr=True, soft_wrap=True).print(note, highlight=False)
    if json_output:
        typer.echo(json.dumps(result.to_dict()))
        return
    Console().print(build_evaluation_table(result))
    if result.prefixes:
        Console().print(build_prefix_table(result))
    if result.refinement is not None:
        Console().print(build_refinement_table(result))
    for table in build_class_tables(result):
        Console().print(table)
    for path in (written, per_class):
        if path is not None:
            Console(stderr=True, soft_wrap=True).print(f"written: [cyan]{escape(str(path))}[/]", highlight=False)
    if run is not None:
        shown = "retrieved images" if result.examples == "images" else "maps"
        print_next(
            (command("metrix", "report", run), f"a page with curves, measures and {shown}"),
            (f"{command('metrix', 'compare', run)} OTHER", "is the difference to another run significant?"),
        )


def evaluate_against(
    run: Path, old: Path, data: str | None, part: str, resamples: int, reading: Mapping[str, Any], quiet: bool
) -> None:
    """Measure searches across two runs, and print them."""
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.upgrade_tables import build_cross_table, describe_cross
    from metrix.runs.cross_evaluation import evaluate_across_runs
    from metrix.runs.trained_model import open_run

    with show_progress(quiet) as report:
        new, before = (open_run(one, report, reading=reading) for one in (run, old))
        result = evaluate_across_runs(new, before, data, part, resamples)
    following = [
        (f"{command('metrix', 'upgrade')} INDEX {command('--run', run)}", "an index of the old run, asked by it")
    ]
    Outcome(result.to_dict(), [build_cross_table(result)], [describe_cross(result)], next=following).print(quiet)


def check_one_source(run: Path | None, embeddings: Path | None, of_runs: Mapping[str, object] | None = None) -> None:
    """Check that either a run or a file of embeddings was given, and flags of runs (`of_runs`) only with a run."""
    if run is None and embeddings is None:
        raise InvalidInput("nothing to measure: expected a RUN, or --embeddings FILE --labels FILE")
    if run is not None and embeddings is not None:
        raise InvalidInput(f"expected either a run or --embeddings, got both ({run} and {embeddings}); give one")
    misplaced = [name for name, value in (of_runs or {}).items() if value is not None]
    if embeddings is not None and misplaced:
        raise InvalidInput(f"{', '.join(misplaced)}: applies to a run only, got --embeddings; leave it out")


def parse_integers(flag: str, text: str | None) -> tuple[int, ...] | None:
    """Parse integers separated by commas.

    >>> parse_integers("--ks", "1,10,100")
    (1, 10, 100)
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"{flag}: expected integers separated by commas, such as 1,2,4,8, got {text!r}") from None
