"""`metrix analyze positivity | utilization | geometry`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Run = Annotated[Path | None, typer.Argument(help="folder of a run", show_default=False)]
Embeddings = Annotated[
    Path | None, typer.Option(help="embeddings from anywhere instead of a run: .npy, .parquet, .csv")
]
Labels = Annotated[Path | None, typer.Option(help="their labels: .csv, .npy, .txt or .parquet")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="folder for the files; RUN/analysis or ./analysis by default")
]
Json = Annotated[bool, typer.Option("--json", help="print the results as JSON")]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    analyze = typer.Typer(no_args_is_help=True, help="Why a model finds what it finds: the paper's analysis.")
    analyze.command("positivity")(positivity)
    analyze.command("utilization")(utilization)
    analyze.command("geometry")(geometry)
    app.add_typer(analyze, name="analyze", rich_help_panel="Measure")


def positivity(
    run: Run = None,
    embeddings: Embeddings = None,
    labels: Labels = None,
    loss: Annotated[
        str | None, typer.Option(help="another loss than the run's; multi-similarity without a run")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="β of the loss")] = None,
    gamma: Annotated[float | None, typer.Option(help="γ of the loss")] = None,
    margin: Annotated[float | None, typer.Option(help="m of the loss")] = None,
    initial: Annotated[
        bool, typer.Option("--initial", help="the model before its first step, as in the paper's figure")
    ] = False,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """How often a mixed example acts as a positive, against λ: counted, and by theory for multi-similarity.

    Over the training images of the run; anchors are examples, also for a loss of proxies.
    Writes positivity.csv, .json, .png and .svg.
    """
    import numpy as np

    from metrix.cli.terminal.tables import build_numbers_table
    from metrix.report.figures.positivity import draw_positivity
    from metrix.report.page.writing import write_figure
    from metrix.runs.analysis import default_folder, loss_of
    from metrix.runs.analysis import positivity as measure
    from metrix.runs.embedding import write_or_explain
    from metrix.train.config import Config

    model, train = _training_examples(run, embeddings, labels, initial, json_output)
    config = Config() if model is None else model.config
    changes = {"loss": loss, "beta": beta, "gamma": gamma, "margin": margin}
    chosen = loss_of(config, changes, len(np.unique(train.labels)))
    curves = measure(train, chosen, config)
    folder = default_folder(model, output)
    write_or_explain(folder / "positivity.csv", curves.to_csv)
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
    _finish({**about, **columns}, table, folder / "positivity.json", written, json_output)


def utilization(
    run: Run = None,
    mixup: Annotated[
        str | None, typer.Option(help="input, feature, embed, with commas; the run's own by default")
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="passes over the training images that mixed examples are drawn in")
    ] = 10,
    max_queries: Annotated[
        int | None, typer.Option(min=2, help="draw so many queries; exact by default, unless very large")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the draws")] = 0,
    embeddings: Annotated[Path | None, typer.Option(help="test embeddings from anywhere instead of a run")] = None,
    labels: Labels = None,
    train_embeddings: Annotated[Path | None, typer.Option(help="with --embeddings: those of training")] = None,
    train_labels: Annotated[Path | None, typer.Option(help="labels of the training embeddings")] = None,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """How near unseen examples are to what training saw: u(Q, X) clean, u(Q, X̂) with mixed examples.

    The mean squared distance of a test embedding to the nearest training embedding; lower is better.
    Writes utilization.json.
    """
    from metrix.cli.evaluate import one_source
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_numbers_table
    from metrix.errors import InvalidInput
    from metrix.runs.analysis import default_folder, utilization_of_examples, utilization_of_run
    from metrix.runs.embedding import TrainedModel
    from metrix.runs.evaluation import Examples, examples_of_files
    from metrix.runs.reading import read_embeddings

    one_source(run, embeddings, {"--mixup": mixup})
    model = None
    with show_progress(json_output) as report:
        if embeddings is not None:
            if train_embeddings is None:
                raise InvalidInput(
                    "--embeddings without --train-embeddings: utilization is of test and training together"
                )
            queries = read_embeddings(embeddings)
            test = Examples(queries, queries[:, 0])  # labels of queries do not matter
            train = examples_of_files(train_embeddings, train_labels)
            found = utilization_of_examples(test, train, epochs, max_queries=max_queries, seed=seed)
        else:
            assert run is not None
            model = TrainedModel(run, report)
            names = None if mixup is None else tuple(name.strip() for name in mixup.split(","))
            found = utilization_of_run(model, names, epochs, max_queries=max_queries, seed=seed, report=report)
    folder = default_folder(model, output)
    rows: dict[str, dict[str, Any]] = {"clean, u(Q, X)": {"u": found.clean, "training examples": found.counts["clean"]}}
    for name, value in found.mixed.items():
        seen = found.counts["clean"] + found.counts[name]
        rows[f"with {name} mixup, u(Q, X̂)"] = {"u": value, "training examples": seen}
    table = build_numbers_table(
        f"Utilization of {found.counts['queries']:,} queries, {epochs} epochs", rows, "lower is better"
    )
    _finish(found.to_dict(), table, folder / "utilization.json", [], json_output)


def geometry(
    run: Run = None,
    embeddings: Embeddings = None,
    labels: Labels = None,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Alignment (how tight classes are) and uniformity (how evenly the sphere is used), on train and test.

    Writes geometry.json.
    """
    from metrix.cli.evaluate import one_source
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_numbers_table
    from metrix.evaluate import Estimate
    from metrix.runs.analysis import default_folder, estimate_to_dict
    from metrix.runs.analysis import geometry as measure
    from metrix.runs.embedding import TrainedModel
    from metrix.runs.evaluation import examples_of_files, examples_of_run

    one_source(run, embeddings)
    model = None
    with show_progress(json_output) as report:
        if embeddings is not None:
            parts = {"embeddings": examples_of_files(embeddings, labels)}
        else:
            assert run is not None
            model = TrainedModel(run, report)
            parts = {name: examples_of_run(model, part=name) for name in ("train", "test")}
    found = {name: measure(examples) for name, examples in parts.items()}
    plain = {
        name: {key: estimate_to_dict(v) if isinstance(v, Estimate) else v for key, v in row.items()}
        for name, row in found.items()
    }
    table = build_numbers_table("Geometry", found, "alignment and uniformity: lower is better")
    _finish(plain, table, default_folder(model, output) / "geometry.json", [], json_output)


def _training_examples(
    run: Path | None, embeddings: Path | None, labels: Path | None, initial: bool, quiet: bool
) -> tuple[Any, Any]:
    from metrix.cli.evaluate import one_source
    from metrix.cli.terminal.progress import show_progress
    from metrix.runs.embedding import TrainedModel
    from metrix.runs.evaluation import examples_of_files, examples_of_run

    one_source(run, embeddings, {"--initial": initial or None})
    if embeddings is not None:
        return None, examples_of_files(embeddings, labels)
    assert run is not None
    with show_progress(quiet) as report:
        model = TrainedModel(run, report, initial=initial)
        return model, examples_of_run(model, part="train")


def _finish(content: dict[str, Any], table: Any, path: Path, written: list[Path], json_output: bool) -> None:
    """Write the results as JSON; print them as JSON, or as a table and which files were written."""
    import json

    from rich.console import Console

    from metrix.runs.embedding import write_or_explain

    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_or_explain(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    if json_output:
        typer.echo(json.dumps(content))
        return
    Console().print(table)
    for one in (*written, path):
        Console(stderr=True, soft_wrap=True).print(f"written: [cyan]{one}[/]", highlight=False)
