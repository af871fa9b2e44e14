"""The pages of the demo: clean training against Metrix over several seeds, and a search with unseen characters."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

from metrix.experiments.demo import MEASURES, SIDES, Contrast, Demonstration, DemoSearch
from metrix.report.page import Cell, Column, Page, Section, Table, Text, Tile, Tiles, Value
from metrix.report.report import ReportOptions, compose_report
from metrix.report.search_page import compose_search_page
from metrix.runs.output import write_output
from metrix.train.batches import Report, ignore_report

NAMES = {"clean": "clean", "metrix": "Metrix"}
FIRST = ("Retrieved images", "Embedding map", "Classes", "Metrics")  # of the report, what is nicest to look at


def write_demo_pages(found: Demonstration, searched: DemoSearch, report: Report = ignore_report) -> list[Path]:
    """Write the report and the page of the search into the folder of the demo.

    Returns:
        The paths of the two pages.
    """
    page, search = found.folder / "report.html", found.folder / "search.html"
    compose_demo_page(found, report).write(page)
    about = "Characters never seen in training, each searched among all characters with a model trained with Metrix."
    text = compose_search_page(searched.index, searched.queries, searched.answers, about).to_html()
    write_output(search, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return [page, search]


def compose_demo_page(found: Demonstration, report: Report = ignore_report) -> Page:
    """All seeds in a table, then a report on the two runs of the first seed."""
    runs = [found.runs / f"{side}-seed-0" for side in SIDES]
    options = ReportOptions(names=tuple(NAMES[side] for side in SIDES))
    page = compose_report(runs, options, report).page
    told = {section.heading: section for section in page.sections}
    told.pop("Overview")  # one seed has no conclusion
    shown = [told.pop(heading) for heading in FIRST]
    about = (
        "The same small network, trained without mixup and with Metrix from the same seeds, and measured on characters "
        "that it never saw. Everything below the first section is of the first seed."
    )
    return dataclasses.replace(
        page,
        title="metrix demo: clean against Metrix",
        sections=[_compare_seeds(found), *shown, *told.values()],
        about=about,
    )


def _compare_seeds(found: Demonstration) -> Section:
    first = found.contrasts[0]
    tiles = [
        Tile(
            f"{first.measure}, {NAMES[side]}", f"{statistics.fmean(values):.1f} %", f"± {statistics.stdev(values):.1f}"
        )
        for side, values in (("clean", first.clean), ("metrix", first.metrix))
    ]
    tiles.append(Tile("difference", f"{first.mean:+.1f} points", f"± {first.margin:.1f}, 95 % interval"))
    columns = [Column(name) for name in ("", *(NAMES[side] for side in SIDES), "difference")]
    columns.append(Column("more than the seeds explain?", text=True))
    rows = [_build_row(contrast) for contrast in found.contrasts]
    notes = [
        f"Clean and Metrix: mean ± standard deviation over {found.seeds} seeds. Difference: between runs with the same "
        "seed, ± half the 95 % interval (Student's t). ↑ higher is better, ↓ lower is better."
    ]
    table = Table(columns, rows, "Characters never seen in training", notes, "seeds")
    return Section("Clean against Metrix", [Tiles(tiles), Text(found.conclusion), table, Text(found.conditions)])


def _build_row(contrast: Contrast) -> list[Cell]:
    metric = MEASURES[contrast.measure]
    digits = 1 if metric.unit == "%" else 3
    name = f"{contrast.measure}{' ' + metric.unit if metric.unit else ''} {'↑' if metric.higher_is_better else '↓'}"
    sides = (
        Value(statistics.fmean(values), statistics.stdev(values), digits=digits)
        for values in (contrast.clean, contrast.metrix)
    )
    difference = Value(contrast.mean, contrast.margin, digits=digits, sign=True)
    verdict = "no" if not contrast.outside else "yes, better" if contrast.better else "yes, worse"
    return [name, *sides, difference, verdict]
