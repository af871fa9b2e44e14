"""The paper's tables with what was measured here beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from metrix.report.page import Column, Table, Value
from metrix.report.page.blocks import Cell
from metrix.reproduce.datasets import Data
from metrix.reproduce.grid import Grid, Spread, Wanted
from metrix.reproduce.paper import DATASETS, PaperTable, Row

GAIN = "gain"  # of Recall@1
INDENT = "\u2003"


@dataclass(frozen=True)
class Line:
    """A row: words, then what was measured and what the paper has, by column."""

    words: tuple[str, ...]
    measured: Mapping[str, Spread]
    paper: Mapping[str, str]
    note: str | None = None
    study: str = ""  # the heading that it stands under


@dataclass(frozen=True)
class Shown:
    """A column: the key of its values, where they come from, how it is headed."""

    key: str
    source: Literal["measured", "paper"]
    name: str
    group: str
    best: Literal["max", "min"] | None = None
    digits: int = 1
    sign: bool = False


@dataclass(frozen=True)
class Result:
    """A table of what was measured beside what the paper has."""

    name: str
    title: str
    headings: tuple[str, ...]
    columns: tuple[Shown, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "rows": [
                {
                    **({"study": line.study} if line.study else {}),
                    **dict(zip(self.headings, line.words, strict=True)),
                    "measured": {name: spread.to_dict() for name, spread in line.measured.items()},
                    "paper": dict(line.paper),
                    "note": line.note,
                }
                for line in self.lines
            ],
            "notes": list(self.notes),
        }

    def block(self) -> Table:
        """The table for a page; what was not run is empty, and a footnote says why."""
        columns = [Column(name, text=True) for name in self.headings]
        columns += [Column(one.name, one.group, one.best) for one in self.columns]
        marks: dict[str, str] = {}
        rows: list[list[Cell] | str] = []
        study = ""
        for line in self.lines:
            if line.study != study:
                study = line.study
                rows.append(study)
            name, *words = line.words
            if line.note:
                mark = marks.setdefault(line.note, str(len(marks) + 1))
                name += f" [{mark}]"
            rows.append([name, *words, *(self._cell(line, one) for one in self.columns)])
        footnotes = [*self.notes, *(f"[{mark}] {note}" for note, mark in marks.items())]
        return Table(columns, rows, self.title, footnotes, self.name, best_within="table")

    def _cell(self, line: Line, one: Shown) -> Cell:
        if one.source == "paper":
            return line.paper.get(one.key, "")
        spread = line.measured.get(one.key, Spread())
        if spread.mean is None:
            return ""
        return Value(spread.mean, spread.deviation, digits=one.digits, sign=one.sign)


def wanted_by(table: PaperTable, data: Data) -> Iterator[Wanted]:
    """What a table needs on a dataset."""
    for row in table.rows:
        if row.recipe is not None:
            yield Wanted(row.recipe, data, int(table.setup["dim"]))


def recall_table(grid: Grid, table: PaperTable, data: Data) -> Result:
    """Recall@K on a dataset beside the paper's; beside the paper's own datasets if this one is not among them."""
    beside = data.name in table.columns
    ks = table.columns[data.name] if beside else next(iter(table.columns.values()))
    columns: list[Shown] = []
    for key in (*(f"R@{k}" for k in ks), GAIN):
        best: Literal["max"] | None = None if key == GAIN else "max"
        if beside:
            columns.append(Shown(key, "measured", "here", key, best, sign=key == GAIN))
            columns.append(Shown(key, "paper", "paper", key))
        else:
            columns.append(Shown(key, "measured", key, f"measured on {data.title}", best, sign=key == GAIN))
    if not beside:
        columns += [Shown(name, "paper", DATASETS[name], "paper, R@1 and its gain") for name in table.columns]
    headings = table.label_columns if table.studies else ("method", *table.label_columns)
    return Result(
        f"{table.name}-{data.name}",
        f"{table.title}: {data.title}",
        headings,
        tuple(columns),
        tuple(_recall_line(grid, table, row, data, ks, beside) for row in table.rows),
        tuple(_recall_notes(grid, table, data)),
    )


def _recall_line(grid: Grid, table: PaperTable, row: Row, data: Data, ks: tuple[int, ...], beside: bool) -> Line:
    words = tuple(row.labels.get(name, "") for name in table.label_columns)
    if not table.studies:
        words = (INDENT + row.method if row.over else row.method, *words)
    elif not row.labels:
        words = (row.method, *words[1:])
    study = row.method if table.studies and row.labels else ""
    if beside:
        paper = {f"R@{k}": _number(v) for k, v in zip(ks, row.recall[data.name], strict=True)}
        gain = paper_gain(table, row, data.name)
        paper[GAIN] = "" if gain is None else f"{gain:+.1f}"
    else:
        paper = {name: _with_gain(table, row, name) for name in table.columns}
    if row.recipe is None:
        return Line(words, {}, paper, "Nothing is run for this row: it repeats what the method's authors report.")
    wanted = Wanted(row.recipe, data, int(table.setup["dim"]))
    recall = grid.recall(wanted)
    measured = {f"R@{k}": recall.get(k, Spread()) for k in ks}
    if row.over is not None:
        base = table.row(row.over).recipe
        assert base is not None
        measured[GAIN] = grid.gain(wanted, Wanted(base, data, wanted.dim))
    note = grid.missing(wanted)
    if note is None and row.reported:
        note = "The paper's number is the method's authors' own."
    return Line(words, measured, paper, note, study)


def paper_gain(table: PaperTable, row: Row, dataset: str) -> float | None:
    """The gain of Recall@1 that the paper prints, or the difference of what it prints."""
    if row.over is None:
        return None
    if dataset in row.gain:
        return row.gain[dataset][0]
    value, before = row.recall[dataset][0], table.row(row.over).recall[dataset][0]
    return None if value is None or before is None else round(value - before, 1)


def _with_gain(table: PaperTable, row: Row, dataset: str) -> str:
    gain = paper_gain(table, row, dataset)
    return _number(row.recall[dataset][0]) + ("" if gain is None else f" ({gain:+.1f})")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _recall_notes(grid: Grid, table: PaperTable, data: Data) -> Iterator[str]:
    yield (
        f"Recall@K in percent on the unseen classes of {data.title}, mean ± standard deviation over "
        f"{len(grid.seeds)} seed{'s' if len(grid.seeds) > 1 else ''}; gains are of runs with the same seed."
    )
    yield difference(grid, table.setup, data, scaled="k" in table.label_columns)


def difference(grid: Grid, setup: Mapping[str, Any], data: Data, scaled: bool = False) -> str:
    """How the set-up here differs from the paper's; `scaled` where numbers of hard negatives are given."""
    config = grid.cells(Wanted({"loss": "contrastive"}, data, int(setup["dim"])))[0].config
    train, model = config.train, config.model
    length = f"{train.max_steps} steps" if train.max_steps else f"{train.epochs} epochs"
    here = {
        "network": (model.backbone + (", pretrained" if model.weights else ""), f"{setup['backbone']}, pretrained"),
        "dimensions": (str(model.dim), str(setup["dim"])),
        "batch": (str(train.batch_size), str(setup["batch_size"])),
        "training": (length, f"{setup['epochs']} epochs" if "epochs" in setup else length),
    }
    differing = [f"{name} {ours} (paper: {paper})" for name, (ours, paper) in here.items() if ours != paper]
    if scaled and train.batch_size != setup["batch_size"]:
        differing.append(f"k = 20 and 40 times {train.batch_size / int(setup['batch_size']):.2g}, as the batch")
    if not data.in_paper:
        differing.insert(0, f"the data, {data.title}, which stands in for the paper's")
    if not differing:
        return "The set-up is the paper's."
    return f"What differs from the paper's set-up: {'; '.join(differing)}."
