"""The tables and figures of the paper that can be reproduced: what each needs and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from metrix.errors import unknown_choice
from metrix.report.page import Block, Text
from metrix.reproduce import measures, paper
from metrix.reproduce.datasets import Data
from metrix.reproduce.grid import Grid, Spread, Wanted
from metrix.reproduce.paper import PaperTable
from metrix.reproduce.tables import INDENT, Line, Result, Shown, difference, recall_table, wanted_by

QUICK_STRENGTHS = (0.1, 0.4, 0.7, 1.0)
CONTRASTIVE, METRIX = {"loss": "contrastive"}, {"loss": "contrastive", "mixup": ["feature"]}

MISSING = Text("The runs that this figure is drawn from are not finished.", "missing")

Content = Result | Block


@dataclass(frozen=True)
class Item:
    """A table or figure: the runs it needs on a dataset, and what it shows of them."""

    name: str
    kind: Literal["table", "figure"]
    title: str
    label: str
    dataset: str  # the paper's
    wanted: Callable[[Grid, Data], Iterable[Wanted]]
    shown: Callable[[Grid, Data], Iterator[Content]]


def _recall_item(name: str) -> Item:
    table = paper.table(name)

    def shown(grid: Grid, data: Data) -> Iterator[Content]:
        yield recall_table(grid, table, data)

    where = ", ".join(paper.DATASETS[dataset] for dataset in table.columns)
    return Item(name, "table", table.title, table.label, where, lambda _, data: wanted_by(table, data), shown)


def _cost(grid: Grid, data: Data) -> Iterator[Content]:
    """Milliseconds of a step, measured side by side in this process."""
    from metrix.reproduce.steps import milliseconds

    table = paper.table("cost")
    configs, notes = {}, {}
    for number, row in enumerate(table.rows):
        assert row.recipe is not None
        wanted = Wanted(row.recipe, data)
        reason = grid.missing(wanted) if grid.why_not(wanted) else None
        if reason is None:
            configs[str(number)] = grid.cells(wanted)[0].config
        else:
            notes[number] = reason
    found = milliseconds(configs)
    lines, ours, theirs = [], 0.0, 0.0
    for number, row in enumerate(table.rows):
        here, there = found.get(str(number)), row.measures["milliseconds"]
        if row.over is None:
            ours, theirs = here or float("nan"), there
        measured = {} if here is None else {"ms": Spread((here,)), "ratio": Spread((here / ours,))}
        printed = {"ms": f"{there:.0f}", "ratio": f"{there / theirs:.2f}"}
        name = INDENT + row.method if row.over else row.method
        lines.append(Line((name,), measured, printed, notes.get(number)))
    setup = table.setup
    yield Result(
        f"cost-{data.name}",
        f"{table.title}: {data.title}",
        ("method",),
        (
            Shown("ms", "measured", "here", "ms a batch", digits=1),
            Shown("ms", "paper", "paper", "ms a batch"),
            Shown("ratio", "measured", "here", "× clean", digits=2),
            Shown("ratio", "paper", "paper", "× clean"),
        ),
        tuple(lines),
        (
            f"Median step, forward, backward and optimizer, on random images; all rows take turns in one process. "
            f"The paper: batch {setup['batch_size']}, {setup['device']}.",
            difference(grid, setup, data),
        ),
    )


def _measure_table(grid: Grid, table: PaperTable, data: Data, found: Sequence[dict[str, Spread]], what: str) -> Result:
    """A table of measures for which lower is better."""
    lines = []
    for row, measured in zip(table.rows, found, strict=True):
        assert row.recipe is not None
        printed = {name: f"{value:.2f}" for name, value in row.measures.items()}
        name = INDENT + row.method if row.over else row.method
        lines.append(Line((name,), measured, printed, grid.missing(Wanted(row.recipe, data))))
    columns = []
    for name in table.rows[0].measures:
        columns += [Shown(name, "measured", "here", name, "min", 3), Shown(name, "paper", "paper, CUB200", name)]
    notes = (f"{what} Mean ± standard deviation over seeds.", difference(grid, table.setup, data))
    title = f"{table.title}: {data.title}"
    return Result(f"{table.name}-{data.name}", title, ("method",), tuple(columns), tuple(lines), notes)


def _geometry(grid: Grid, data: Data) -> Iterator[Content]:
    from metrix.reproduce.figures import geometry_figure

    table = paper.table("geometry")
    found = [measures.geometry(grid, wanted) for wanted in wanted_by(table, data)]
    yield _measure_table(grid, table, data, found, "On the test classes; lower is better.")
    yield geometry_figure({row.method: one for row, one in zip(table.rows, found, strict=True)}, data.title)


def _utilization(grid: Grid, data: Data) -> Iterator[Content]:
    table = paper.table("utilization")
    found = [{"utilization": measures.utilization(grid, wanted)} for wanted in wanted_by(table, data)]
    yield _measure_table(
        grid,
        table,
        data,
        found,
        f"Mean squared distance of a test embedding to the nearest training embedding, clean or mixed over "
        f"{measures.EPOCHS} epochs; lower is better.",
    )
    from metrix.reproduce import pictures

    runs = _two_models(grid, data)
    yield pictures.utilization(runs["with Metrix"]) if runs else MISSING


def _retrieval(grid: Grid, data: Data) -> Iterator[Content]:
    from metrix.reproduce import pictures

    runs = _two_models(grid, data)
    yield pictures.retrieval(runs) if runs else MISSING


def _tsne(grid: Grid, data: Data) -> Iterator[Content]:
    from metrix.reproduce import pictures

    runs = _two_models(grid, data)
    if not runs:
        yield MISSING
        return
    yield from pictures.maps(runs)
    yield Text("Contrastive loss; both maps of a line show the same images. t-SNE keeps what is near, no distances.")


def _two_models(grid: Grid, data: Data) -> dict[str, Path]:
    """The paper's two models of the first seed; nothing if one of them is not finished."""
    clean, mixed = (grid.store.run(grid.cells(wanted)[0].key) for wanted in _both(grid, data))
    both = {"without mixup": clean, "with Metrix": mixed}
    return {who: run.path for who, run in both.items()} if clean.results and mixed.results else {}


def _positivity(grid: Grid, data: Data) -> Iterator[Content]:
    from metrix.reproduce.figures import positivity_figure

    runs = grid.runs(Wanted(paper.content("positivity")["recipe"], data))
    if not runs:
        yield MISSING
        return
    yield positivity_figure(measures.positivity(runs[0]), f"here, {data.title}")
    yield Text(difference(grid, paper.content("positivity")["setup"], data), "note")


def _strengths(grid: Grid) -> Sequence[float]:
    return QUICK_STRENGTHS if grid.quick else paper.content("strength")["strengths"]


def _of_strength(data: Data, kind: str, strength: float) -> Wanted:
    return Wanted({**CONTRASTIVE, "mixup": [kind], "strength": strength}, data)


def _strength_wanted(grid: Grid, data: Data) -> Iterator[Wanted]:
    yield Wanted(CONTRASTIVE, data)
    for kind in paper.content("strength")["recall"]:
        yield from (_of_strength(data, kind, strength) for strength in _strengths(grid))


def _strength(grid: Grid, data: Data) -> Iterator[Content]:
    from metrix.reproduce.figures import strength_figure

    recall = {
        kind: {w: grid.recall(_of_strength(data, kind, w)).get(1, Spread()) for w in _strengths(grid)}
        for kind in paper.content("strength")["recall"]
    }
    yield strength_figure(grid.recall(Wanted(CONTRASTIVE, data)).get(1, Spread()), recall, f"here, {data.title}")
    yield Text(difference(grid, paper.content("strength")["setup"], data), "note")


def _both(grid: Grid, data: Data) -> list[Wanted]:
    return [Wanted(CONTRASTIVE, data), Wanted(METRIX, data)]


ITEMS: tuple[Item, ...] = (
    *(_recall_item(name) for name in paper.RECALL_TABLES),
    Item("cost", "table", paper.table("cost").title, "sec:app-exp_result", "CUB200", lambda *_: (), _cost),
    Item(
        "geometry",
        "table",
        paper.table("geometry").title,
        "sec:discussion",
        "CUB200",
        lambda _, data: wanted_by(paper.table("geometry"), data),
        _geometry,
    ),
    Item("utilization", "figure", paper.table("utilization").title, "fig:utiliz", "CUB200", _both, _utilization),
    Item(
        "positivity",
        "figure",
        paper.content("positivity")["title"],
        "fig:gradient-plot",
        "CUB200",
        lambda _, data: [Wanted(paper.content("positivity")["recipe"], data)],
        _positivity,
    ),
    Item(
        "strength",
        "figure",
        paper.content("strength")["title"],
        "fig:ablation-weight",
        "Cars196",
        _strength_wanted,
        _strength,
    ),
    Item(
        "retrieval", "figure", "Retrieved images, with and without Metrix", "fig:retrieval", "CUB200", _both, _retrieval
    ),
    Item("tsne", "figure", "Embedding space of 10, 15 and 20 test classes", "fig:tsne", "CUB200", _both, _tsne),
)


def chosen(names: Sequence[str]) -> list[Item]:
    """The items of names; `all` is every one."""
    known = {item.name: item for item in ITEMS}
    for name in names:
        if name != "all" and name not in known:
            raise unknown_choice("table or figure", name, [*known, "all"])
    return list(ITEMS) if "all" in names else [known[name] for name in dict.fromkeys(names)]
