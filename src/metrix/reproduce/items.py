"""The tables and figures of the paper that can be reproduced: the experiments each needs and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from metrix.errors import unknown_choice
from metrix.experiments.cells import Cell
from metrix.report.page import Block, Text
from metrix.reproduce import measures, paper
from metrix.reproduce.datasets import ReproductionData
from metrix.reproduce.differences import describe_differences
from metrix.reproduce.grid import Experiment, Grid, Spread
from metrix.reproduce.paper import PaperTable
from metrix.reproduce.tables import (
    INDENT,
    ReproducedTable,
    ShownColumn,
    TableLine,
    build_recall_table,
    experiments_of,
)

QUICK_STRENGTHS = (0.1, 0.4, 0.7, 1.0)
CONTRASTIVE, METRIX = {"loss": "contrastive"}, {"loss": "contrastive", "mixup": ["feature"]}

MISSING = Text("The runs of this figure are not finished.", "missing")

Content = ReproducedTable | Block


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper: the experiments it needs on a dataset, and what it shows of their results."""

    name: str
    kind: Literal["table", "figure"]
    title: str
    label: str  # in the LaTeX source of the paper
    dataset: str  # that the paper shows it on
    experiments: Callable[[Grid, ReproductionData], Iterable[Experiment]]
    render: Callable[[Grid, ReproductionData], Iterator[Content]]


def _recall_item(name: str) -> Item:
    table = paper.load_table(name)

    def render(grid: Grid, data: ReproductionData) -> Iterator[Content]:
        yield build_recall_table(grid, table, data)

    where = ", ".join(paper.DATASETS[dataset] for dataset in table.columns)
    return Item(name, "table", table.title, table.label, where, lambda _, data: experiments_of(table, data), render)


def _render_cost(grid: Grid, data: ReproductionData) -> Iterator[Content]:
    """Milliseconds per step, measured in this process; the methods take turns."""
    from metrix.reproduce.steps import time_steps

    table = paper.load_table("cost")
    configs, notes = {}, {}
    for number, row in enumerate(table.rows):
        assert row.recipe is not None
        experiment = Experiment(row.recipe, data)
        reason = grid.missing(experiment) if grid.why_not(experiment) else None
        if reason is None:
            configs[str(number)] = grid.cells(experiment)[0].config
        else:
            notes[number] = reason
    found = time_steps(configs)
    lines, ours, theirs = [], 0.0, 0.0
    for number, row in enumerate(table.rows):
        here, there = found.get(str(number)), row.measures["milliseconds"]
        if row.over is None:
            ours, theirs = here or float("nan"), there
        measured = {} if here is None else {"ms": Spread((here,)), "ratio": Spread((here / ours,))}
        printed = {"ms": f"{there:.0f}", "ratio": f"{there / theirs:.2f}"}
        name = INDENT + row.method if row.over else row.method
        lines.append(TableLine((name,), measured, printed, notes.get(number)))
    setup = table.setup
    yield ReproducedTable(
        f"cost-{data.name}",
        f"{table.title}: {data.title}",
        ("method",),
        (
            ShownColumn("ms", "measured", "here", "ms per step", digits=1),
            ShownColumn("ms", "paper", "paper", "ms per step"),
            ShownColumn("ratio", "measured", "here", "× clean", digits=2),
            ShownColumn("ratio", "paper", "paper", "× clean"),
        ),
        tuple(lines),
        (
            f"Median time of a training step (forward, backward, optimizer) on random images; all methods take turns "
            f"in one process. The paper: batch {setup['batch_size']}, {setup['device']}.",
            describe_differences(grid, setup, data, experiments_of(table, data)),
        ),
    )


def _build_measure_table(
    grid: Grid, table: PaperTable, data: ReproductionData, found: Sequence[dict[str, Spread]], what: str
) -> ReproducedTable:
    """Build a table of measures for which lower is better."""
    lines = []
    for row, measured in zip(table.rows, found, strict=True):
        assert row.recipe is not None
        printed = {name: f"{value:.2f}" for name, value in row.measures.items()}
        name = INDENT + row.method if row.over else row.method
        lines.append(TableLine((name,), measured, printed, grid.missing(Experiment(row.recipe, data))))
    columns = []
    for name in table.rows[0].measures:
        columns.append(ShownColumn(name, "measured", "here", name, "min", 3))
        columns.append(ShownColumn(name, "paper", "paper, CUB200", name))
    notes = (
        f"{what} Mean ± standard deviation over seeds.",
        describe_differences(grid, table.setup, data, experiments_of(table, data)),
    )
    title = f"{table.title}: {data.title}"
    return ReproducedTable(f"{table.name}-{data.name}", title, ("method",), tuple(columns), tuple(lines), notes)


def _render_geometry(grid: Grid, data: ReproductionData) -> Iterator[Content]:
    from metrix.reproduce.figures import draw_geometry_beside_paper

    table = paper.load_table("geometry")
    found = [measures.measure_geometry_over_seeds(grid, experiment) for experiment in experiments_of(table, data)]
    yield _build_measure_table(grid, table, data, found, "On the test classes; lower is better.")
    yield draw_geometry_beside_paper({row.method: one for row, one in zip(table.rows, found, strict=True)}, data.title)


def _render_utilization(grid: Grid, data: ReproductionData) -> Iterator[Content]:
    table = paper.load_table("utilization")
    found = [{"utilization": measures.measure_utilization_over_seeds(grid, one)} for one in experiments_of(table, data)]
    yield _build_measure_table(
        grid,
        table,
        data,
        found,
        f"Mean squared distance of a test embedding to the nearest training embedding, clean or mixed over "
        f"{measures.EPOCHS} epochs; lower is better.",
    )
    from metrix.reproduce import pictures

    runs = _finished_models(grid, data)
    yield pictures.draw_utilization(runs["with Metrix"]) if runs else MISSING


def _render_retrieval(grid: Grid, data: ReproductionData) -> Iterator[Content]:
    from metrix.reproduce import pictures

    runs = _finished_models(grid, data)
    yield pictures.draw_retrieval(runs) if runs else MISSING


def _render_tsne(grid: Grid, data: ReproductionData) -> Iterator[Content]:
    from metrix.reproduce import pictures

    runs = _finished_models(grid, data)
    if not runs:
        yield MISSING
        return
    yield from pictures.draw_maps(runs)
    yield Text(
        "Contrastive loss. The maps of a row show the same images. t-SNE preserves neighbourhoods, not distances."
    )


def _finished_models(grid: Grid, data: ReproductionData) -> dict[str, Path]:
    """The runs without and with Metrix of the first seed; empty if one of them is not finished."""
    clean, mixed = (grid.store.run(grid.cells(experiment)[0].key) for experiment in _both_models(grid, data))
    both = {"without mixup": clean, "with Metrix": mixed}
    return {who: run.path for who, run in both.items()} if clean.results and mixed.results else {}


def _render_positivity(grid: Grid, data: ReproductionData) -> Iterator[Content]:
    from metrix.reproduce.figures import draw_positivity_beside_paper

    experiment = Experiment(paper.load_numbers("positivity")["recipe"], data)
    runs = grid.runs(experiment)
    if not runs:
        yield MISSING
        return
    yield draw_positivity_beside_paper(measures.measure_initial_positivity(runs[0]), f"here, {data.title}")
    yield Text(describe_differences(grid, paper.load_numbers("positivity")["setup"], data, [experiment]), "note")


def _strengths(grid: Grid) -> Sequence[float]:
    return QUICK_STRENGTHS if grid.quick else paper.load_numbers("strength")["strengths"]


def _strength_experiment(data: ReproductionData, kind: str, strength: float) -> Experiment:
    return Experiment({**CONTRASTIVE, "mixup": [kind], "strength": strength}, data)


def _strength_experiments(grid: Grid, data: ReproductionData) -> Iterator[Experiment]:
    yield Experiment(CONTRASTIVE, data)
    for kind in paper.load_numbers("strength")["recall"]:
        yield from (_strength_experiment(data, kind, strength) for strength in _strengths(grid))


def _render_strength(grid: Grid, data: ReproductionData) -> Iterator[Content]:
    from metrix.reproduce.figures import draw_strength_beside_paper

    recall = {
        kind: {w: grid.recall(_strength_experiment(data, kind, w)).get(1, Spread()) for w in _strengths(grid)}
        for kind in paper.load_numbers("strength")["recall"]
    }
    yield draw_strength_beside_paper(
        grid.recall(Experiment(CONTRASTIVE, data)).get(1, Spread()), recall, f"here, {data.title}"
    )
    setup = paper.load_numbers("strength")["setup"]
    yield Text(describe_differences(grid, setup, data, _strength_experiments(grid, data)), "note")


def _both_models(grid: Grid, data: ReproductionData) -> list[Experiment]:
    return [Experiment(CONTRASTIVE, data), Experiment(METRIX, data)]


ITEMS: tuple[Item, ...] = (
    *(_recall_item(name) for name in paper.RECALL_TABLES),
    Item("cost", "table", paper.load_table("cost").title, "sec:app-exp_result", "CUB200", lambda *_: (), _render_cost),
    Item(
        "geometry",
        "table",
        paper.load_table("geometry").title,
        "sec:discussion",
        "CUB200",
        lambda _, data: experiments_of(paper.load_table("geometry"), data),
        _render_geometry,
    ),
    Item(
        "utilization",
        "figure",
        paper.load_table("utilization").title,
        "fig:utiliz",
        "CUB200",
        _both_models,
        _render_utilization,
    ),
    Item(
        "positivity",
        "figure",
        paper.load_numbers("positivity")["title"],
        "fig:gradient-plot",
        "CUB200",
        lambda _, data: [Experiment(paper.load_numbers("positivity")["recipe"], data)],
        _render_positivity,
    ),
    Item(
        "strength",
        "figure",
        paper.load_numbers("strength")["title"],
        "fig:ablation-weight",
        "Cars196",
        _strength_experiments,
        _render_strength,
    ),
    Item(
        "retrieval",
        "figure",
        "Retrieved images, with and without Metrix",
        "fig:retrieval",
        "CUB200",
        _both_models,
        _render_retrieval,
    ),
    Item(
        "tsne",
        "figure",
        "Embedding space of 10, 15 and 20 test classes",
        "fig:tsne",
        "CUB200",
        _both_models,
        _render_tsne,
    ),
)


def cells_of_items(items: Sequence[Item], grid: Grid) -> list[Cell]:
    """The cells that some tables and figures need on all datasets of a grid, each once."""
    return grid.distinct_cells(one for item in items for data in grid.datasets for one in item.experiments(grid, data))


def choose_items(names: Sequence[str], also: Sequence[str] = ()) -> list[Item]:
    """Look up tables and figures by name; `all` selects every one.

    >>> [item.title for item in choose_items(["retrieval"])]
    ['Retrieved images, with and without Metrix']
    """
    known = {item.name: item for item in ITEMS}
    for name in names:
        if name != "all" and name not in known:
            raise unknown_choice("table or figure", name, [*known, "all", *also])
    return list(ITEMS) if "all" in names else [known[name] for name in dict.fromkeys(names)]
