"""The page of a reality check: the answer first, then what it rests on, and how it was measured."""

from __future__ import annotations

import statistics
from pathlib import Path

from metrix.files import write_json, write_text
from metrix.messages import count, format_duration
from metrix.report.page import Block, Page, Section, Text, Tile, Tiles
from metrix.report.page.csv import to_csv
from metrix.reproduce.page import describe_versions
from metrix.reproduce.reality.answer import CheckAnswer, conclude_check
from metrix.reproduce.reality.blocks import (
    build_cost_table,
    build_fit_table,
    build_gain_table,
    build_main_table,
    build_run_table,
    build_tuning_table,
    compose_ranks,
    draw_recalls,
    tabulate_runs,
)
from metrix.reproduce.reality.summary import CheckResult

PAGE, RESULTS, RUNS = "index.html", "results.json", "runs.csv"


def write_check(found: CheckResult, folder: Path) -> list[Path]:
    """Write the page, the numbers and all runs into the folder of a reality check; returns their paths."""
    said = conclude_check(found)
    write_text(folder / RUNS, to_csv(tabulate_runs(found)))
    write_json(
        folder / RESULTS, {"conclusion": list(said.sentences), "cautions": list(said.cautions), **found.to_dict()}
    )
    page = folder / PAGE
    compose_check_page(found, said, folder).write(page)
    return [page, folder / RESULTS, folder / RUNS]


def compose_check_page(found: CheckResult, said: CheckAnswer, folder: Path) -> Page:
    """The page of a finished reality check."""
    names = ", ".join(outcome.name for outcome in found.outcomes)
    about = (
        f"What losses and mixup are worth when all are tuned equally: {count(len(found.methods), 'method')}, "
        f"{count(found.trials, 'trial')} of each on {count(found.folds, 'fold')} of the training classes of {names}; "
        f"the best settings of each with {count(found.seeds, 'seed')} on the test classes."
    )
    sections = [
        Section("Answer", _compose_answer(found, said)),
        Section("Recall@1", [build_main_table(found), draw_recalls(found)]),
        Section("Ranks over datasets", compose_ranks(found)),
        *_compose_gains(found),
        Section("Tuning", [build_tuning_table(found)]),
        Section("Cost", [build_cost_table(found)]),
        Section("Fit", [build_fit_table(found)]),
        Section("How it was measured", [Text(_explain(found))]),
        Section("All runs", [build_run_table(found)]),
    ]
    again = f"metrix reproduce reality-check --output {folder}"
    return Page(
        "A reality check: losses and mixup, tuned equally", sections, about, f"{describe_versions()} Again: {again}"
    )


def _compose_answer(found: CheckResult, said: CheckAnswer) -> list[Block]:
    tiles = []
    for label, groups in (("mixup helped", found.mixup), ("losses ahead of the first", found.losses)):
        verdicts = [one.verdict for group in groups for one in group.contrasts.values()]
        if verdicts:
            harm = f"did harm in {verdicts.count('harms')}, cannot be told in {verdicts.count('open')}"
            tiles.append(Tile(label, f"{verdicts.count('helps')} of {len(verdicts)}", harm))
    gains = found.tuning_gains
    if gains:
        detail = "points on the folds over the usual settings, the median; optimistic"
        tiles.append(Tile("tuning", f"{statistics.median(gains):+.1f}", detail))
    seconds = sum(
        one.trial_seconds + sum(run.seconds for run in one.runs)
        for outcome in found.outcomes
        for one in outcome.methods
    )
    runs = sum(len(one.runs) for outcome in found.outcomes for one in outcome.methods)
    tiles.append(Tile("training", format_duration(seconds), f"trials and {count(runs, 'final run')}"))
    sentences: list[Block] = [Text(text) for text in said.sentences]
    return [Tiles(tiles), *sentences, *(Text(text, "note") for text in said.cautions)]


def _compose_gains(found: CheckResult) -> list[Section]:
    sections = []
    if found.mixup:
        table = build_gain_table(found, found.mixup, "Mixup against the same loss without it", "mixup")
        sections.append(Section("What mixup gains", [table]))
    if found.losses:
        caption = f"Losses without mixup against {found.methods[0].name}"
        sections.append(Section("What the loss gains", [build_gain_table(found, found.losses, caption, "losses")]))
    return sections


def _explain(found: CheckResult) -> str:
    folders = ", ".join(f"{outcome.name}/index.html" for outcome in found.outcomes)
    return (
        "Every method has the same number of trials on every dataset. The first has the usual settings, Optuna (TPE) "
        "proposes the others from the space of the method; each is trained without a fold of the training classes and "
        "measured on it, and is stopped when it falls behind. Folds are the same for all methods. The best settings of "
        "each method are then trained on all training classes, and the test classes are measured once.\n\nMethods are "
        "ranked by Recall@1 on the test classes of each dataset; mean ranks are compared by Friedman's test and "
        "Nemenyi's critical difference (Demšar, 2006). Fewer than three different datasets say nothing about "
        "others.\n\nThe study of each dataset has a page of its own, with every trial and the settings that "
        f"mattered: {folders}."
    )
