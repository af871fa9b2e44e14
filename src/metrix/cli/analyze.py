"""`metrix analyze`: the measures with which the paper explains mixup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import FollowLinks, MaxBad, Root, choose_reading

Run = Annotated[Path | None, typer.Argument(help="folder of a run", show_default=False)]
Embeddings = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="file of embeddings to analyse instead of a run: .npy, .parquet, .csv"),
]
Labels = Annotated[Path | None, typer.Option(metavar="FILE", help="file of their labels: .csv, .npy, .txt or .parquet")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="folder for the results; RUN/analysis or ./analysis by default")
]
Json = Annotated[bool, typer.Option("--json", help="print the results as JSON")]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    analyze = typer.Typer(
        no_args_is_help=True,
        help="Analyse embeddings: positivity, utilization, alignment and uniformity.",
    )
    analyze.command("positivity")(with_device_flag(positivity_command))
    analyze.command("utilization")(with_device_flag(utilization_command))
    analyze.command("geometry")(with_device_flag(geometry_command))
    app.add_typer(analyze, name="analyze", rich_help_panel="Measure")


def positivity_command(
    run: Run = None,
    embeddings: Embeddings = None,
    labels: Labels = None,
    loss: Annotated[
        str | None, typer.Option(help="loss to analyse; that of the run by default, multi-similarity without a run")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="β of the loss")] = None,
    gamma: Annotated[float | None, typer.Option(help="γ of the loss")] = None,
    margin: Annotated[float | None, typer.Option(help="m of the loss")] = None,
    initial: Annotated[
        bool, typer.Option("--initial", help="analyse the model before training, as in the paper's figure")
    ] = False,
    output: Output = None,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    json_output: Json = False,
) -> None:
    """Measure how often a mixed example acts as a positive, by λ: counted, and predicted for multi-similarity.

    Uses the training images of the run. Anchors are examples, even if those of the loss are proxies. Writes
    positivity.csv, .json, .png and .svg.

    Examples:
        metrix analyze positivity runs/a
    """
    import numpy as np

    from metrix.cli.terminal.tables import build_numbers_table
    from metrix.extras import require_extra
    from metrix.report.figures.positivity import draw_positivity
    from metrix.report.page.writing import write_figure
    from metrix.runs.analysis import build_analysed_loss, measure_positivity
    from metrix.runs.output import make_output_folder, write_output
    from metrix.train.config import Config

    require_extra("matplotlib")
    model, train = _training_examples(
        run, embeddings, labels, initial, json_output, choose_reading(max_bad, root, follow_links)
    )
    config = Config() if model is None else model.config
    changes = {"loss": loss, "beta": beta, "gamma": gamma, "margin": margin}
    chosen = build_analysed_loss(config, changes, len(np.unique(train.labels)))
    curves = measure_positivity(train, chosen, config)
    folder = make_output_folder(run, output)
    write_output(folder / "positivity.csv", curves.to_csv)
    title = f"{type(chosen).__name__}, {len(train.labels):,} examples{', before training' if initial else ''}"
    written = [folder / "positivity.csv", *write_figure(draw_positivity({"": curves}, title), folder)]
    columns = {
        name: [None if np.isnan(value) else float(value) for value in getattr(curves, name)]
        for name in ("lams", "empirical", "theoretical", "zero")
    }
    about = {
        "loss": type(chosen).__name__,
        "examples": len(train.labels),
        "similarities": curves.similarities,
        "initial": initial,
    }
    rows = list(zip(columns["lams"], columns["empirical"], columns["theoretical"], strict=True))
    table = build_numbers_table(
        f"P(Pos(a, v)), {title}",
        {f"λ = {lam:.2f}": {"empirical": counted, "theoretical": expected} for lam, counted, expected in rows},
    )
    _finish(run, {**about, **columns}, table, folder / "positivity.json", written, json_output)


def utilization_command(
    run: Run = None,
    mixup: Annotated[
        str | None,
        typer.Option(help="mixup types separated by commas, such as input,embed; those of the run by default"),
    ] = None,
    epochs: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="passes over the training images from which mixed examples are drawn"),
    ] = 10,
    max_queries: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="sample this many queries; all by default, unless there are very many"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="seed for drawing examples")] = 0,
    embeddings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="file of test embeddings to analyse instead of a run")
    ] = None,
    labels: Labels = None,
    train_embeddings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="with --embeddings: file of training embeddings")
    ] = None,
    train_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="file of their labels")] = None,
    output: Output = None,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    json_output: Json = False,
) -> None:
    """Measure how close test examples are to training examples: u(Q, X) clean, u(Q, X̂) with mixed ones.

    Utilization is the mean squared distance of a test embedding to the nearest training embedding; lower is better.
    Writes utilization.json.

    Examples:
        metrix analyze utilization runs/a --mixup input,embed
    """
    from metrix.cli.evaluate import check_one_source
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_numbers_table
    from metrix.data.vector_files import read_embeddings
    from metrix.errors import InvalidInput
    from metrix.runs.analysis import measure_utilization, measure_utilization_of_run
    from metrix.runs.evaluation import Examples, read_examples
    from metrix.runs.output import make_output_folder
    from metrix.runs.trained_model import open_run

    check_one_source(run, embeddings, {"--mixup": mixup})
    model = None
    with show_progress(json_output) as report:
        if embeddings is not None:
            if train_embeddings is None:
                raise InvalidInput("--embeddings without --train-embeddings: utilization compares the two; give both")
            queries = read_embeddings(embeddings)
            test = Examples(queries, queries[:, 0])  # labels of queries do not matter
            train = read_examples(train_embeddings, train_labels)
            found = measure_utilization(test, train, epochs, max_queries=max_queries, seed=seed)
        else:
            assert run is not None
            model = open_run(run, report, reading=choose_reading(max_bad, root, follow_links))
            names = None if mixup is None else tuple(name.strip() for name in mixup.split(","))
            found = measure_utilization_of_run(model, names, epochs, max_queries=max_queries, seed=seed, report=report)
    folder = make_output_folder(run, output)
    rows: dict[str, dict[str, Any]] = {"clean, u(Q, X)": {"u": found.clean, "training examples": found.counts["clean"]}}
    for name, value in found.mixed.items():
        seen = found.counts["clean"] + found.counts[name]
        rows[f"with {name} mixup, u(Q, X̂)"] = {"u": value, "training examples": seen}
    table = build_numbers_table(
        f"Utilization of {found.counts['queries']:,} queries, {epochs} epochs", rows, "lower is better"
    )
    _finish(run, found.to_dict(), table, folder / "utilization.json", [], json_output)


def geometry_command(
    run: Run = None,
    embeddings: Embeddings = None,
    labels: Labels = None,
    output: Output = None,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    json_output: Json = False,
) -> None:
    """Measure alignment (how compact classes are) and uniformity (how evenly embeddings cover the sphere).

    Both are measured on the training and on the test part. Writes geometry.json.

    Examples:
        metrix analyze geometry runs/a
    """
    from metrix.cli.evaluate import check_one_source
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_numbers_table
    from metrix.evaluate import Estimate
    from metrix.runs.analysis import estimate_to_dict, measure_geometry
    from metrix.runs.evaluation import embed_examples, read_examples
    from metrix.runs.output import make_output_folder
    from metrix.runs.trained_model import open_run
    from metrix.train.network import name_examples

    check_one_source(run, embeddings)
    model = None
    with show_progress(json_output) as report:
        if embeddings is not None:
            parts = {"embeddings": read_examples(embeddings, labels)}
        else:
            assert run is not None
            model = open_run(run, report, reading=choose_reading(max_bad, root, follow_links))
            parts = {name: embed_examples(model, part=name) for name in ("train", "test")}
    found = {name: measure_geometry(examples) for name, examples in parts.items()}
    plain = {
        name: {key: estimate_to_dict(v) if isinstance(v, Estimate) else v for key, v in row.items()}
        for name, row in found.items()
    }
    counted = {"images": "embeddings" if model is None else name_examples(model.config)}
    rows = {name: {counted.get(key, key): value for key, value in row.items()} for name, row in found.items()}
    table = build_numbers_table("Geometry", rows, "alignment and uniformity: lower is better")
    _finish(run, plain, table, make_output_folder(run, output) / "geometry.json", [], json_output)


def _training_examples(
    run: Path | None,
    embeddings: Path | None,
    labels: Path | None,
    initial: bool,
    quiet: bool,
    reading: dict[str, Any],
) -> tuple[Any, Any]:
    from metrix.cli.evaluate import check_one_source
    from metrix.cli.terminal.progress import show_progress
    from metrix.runs.evaluation import embed_examples, read_examples
    from metrix.runs.trained_model import open_run

    check_one_source(run, embeddings, {"--initial": initial or None})
    if embeddings is not None:
        return None, read_examples(embeddings, labels)
    assert run is not None
    with show_progress(quiet) as report:
        model = open_run(run, report, initial=initial, reading=reading)
        return model, embed_examples(model, part="train")


def _finish(
    run: Path | None, content: dict[str, Any], table: Any, path: Path, written: list[Path], json_output: bool
) -> None:
    """Write the results as JSON; print them as JSON, or as a table with the names of the files written."""
    import json

    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.runs.output import write_output

    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    if json_output:
        typer.echo(json.dumps(content))
        return
    Console().print(table)
    for one in (*written, path):
        Console(stderr=True, soft_wrap=True).print(f"written: [cyan]{escape(str(one))}[/]", highlight=False)
    if run is not None:
        shown = f"{command('metrix', 'report', run)} OTHER"
        print_next((shown, "a page with these measures of this run, beside those of another"))
