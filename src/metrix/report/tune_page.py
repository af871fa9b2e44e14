"""The page of a study: what follows from it, the test classes, the search, and every trial."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from metrix.experiments.tuning.finals import UNTRAINED, Contrast
from metrix.experiments.tuning.result import StudyResult
from metrix.experiments.tuning.spaces import LENGTH, describe_range
from metrix.experiments.tuning.trials import TRUSTED
from metrix.messages import count
from metrix.report.figures.tuning import draw_cheap, draw_history, draw_importance, draw_parallel
from metrix.report.page import Block, Cell, Column, Page, Section, SideBySide, Table, Text, Tile, Tiles, Value

VERDICTS = {"helps": "helps", "harms": "harms", "open": "cannot be told"}


def write_tune_page(found: StudyResult) -> Path:
    """Write index.html, index.md and its figures into the folder of a study; returns the path of the page."""
    page = found.folder / "index.html"
    compose_tune_page(found).write(page)
    return page


def compose_tune_page(found: StudyResult) -> Page:
    """The page of a finished study."""
    protocol = found.protocol
    about = (
        f"{count(len(found.trials), 'trial')} of {count(len(protocol.methods), 'method')} on {protocol.data.name}, "
        f"measured on {count(protocol.folds, 'fold')} of the training classes, the same for all; the best settings of "
        f"each method then trained on all training classes with {count(protocol.seeds, 'seed')} and measured on "
        f"{count(found.table.classes, 'test class')}."
    )
    sections = [
        _compose_answer(found),
        _compose_test(found),
        _compose_search(found),
        _compose_settings(found),
        _compose_folds(found),
        *([_compose_cheap(found)] if found.cheap_and_dear else []),
        _compose_trials(found),
    ]
    return Page(f"metrix tune: {protocol.data.name}", sections, about, f"The study is in {found.folder}.")


def _label(found: StudyResult) -> str:
    return {"recall@1": "Recall@1 %", "map@r": "MAP@R %"}[found.protocol.metric]


def _compose_answer(found: StudyResult) -> Section:
    best = found.best
    result = next(one for one in found.table.results if one.method == best.method.name)
    usual = found.usual_of(best.method.name)
    gain = "" if usual is None or usual.score is None else f"{best.score - usual.score:+.1f} over the first settings"
    seeds = f"{min(result.recalls):.1f} to {max(result.recalls):.1f} over {count(len(result.recalls), 'seed')}"
    tiles = [
        Tile("best on the folds", best.method.name.replace("+", " + "), f"trial {best.trial + 1} of this method"),
        Tile(f"{_label(found).removesuffix(' %')} on the folds", f"{best.score:.1f} %", gain),
        Tile("Recall@1 on test classes", f"{result.mean:.1f} %", seeds),
        Tile("untrained, on test classes", f"{found.table.untrained.mean:.1f} %"),
    ]
    said = found.conclusion
    sentences: list[Block] = [Text(text) for text in said.sentences]
    train = f"metrix train DATA --config {found.folder / 'best.yaml'}"
    return Section("Answer", [Tiles(tiles), *sentences, Text(f"To train the best settings: {train}", "note")])


def _compose_test(found: StudyResult) -> Section:
    table = found.table
    columns = [Column(""), Column("Recall@1 %"), Column("each seed", text=True), Column("against untrained")]
    columns += [Column("against its reference"), Column("reference", text=True), Column("verdict", text=True)]
    columns += [Column("seconds a run")]
    untrained = table.untrained
    rows: list[list[Cell]] = [
        [UNTRAINED, Value(untrained.mean, interval=untrained.interval, digits=1), _list(untrained.recalls), *[None] * 5]
    ]
    for one in table.results:
        first = table.find(one.method, UNTRAINED)
        other = next((c for c in table.contrasts if c.name == one.method and c.against != UNTRAINED), None)
        judged = other or first
        rows.append(
            [
                one.method,
                Value(one.mean, interval=one.interval, digits=1),
                _list(one.recalls),
                _difference(first),
                _difference(other),
                "" if other is None else other.against,
                "" if judged is None else VERDICTS[judged.verdict],
                Value(one.seconds, digits=0),
            ]
        )
    notes = [
        f"Recall@1 on {count(table.classes, 'test class')} ({count(table.queries, 'query')}), mean over seeds. "
        f"Intervals are over another draw of test classes, 95 % for all {table.comparisons} comparisons together "
        "(Bonferroni). A method helps or harms if this interval and the 95 % interval over seeds exclude zero; the "
        "verdict is against the reference, or against the untrained network where there is none.",
        "The test classes were measured "
        + ("once." if table.looks == 1 else f"{table.looks} times, for {table.looks} sets of winners."),
    ]
    return Section("Test classes", [Table(columns, rows, "The best settings of each method", notes, "test")])


def _difference(one: Contrast | None) -> Cell:
    if one is None:
        return None
    margin = "" if one.seed_margin is None else f"seeds ± {one.seed_margin:.1f}"
    return Value(one.difference, interval=(one.low, one.high), digits=1, sign=True, below=margin)


def _list(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _compose_search(found: StudyResult) -> Section:
    methods = [method.name for method in found.protocol.methods]
    untrained = statistics.fmean(found.untrained) if found.untrained else None
    history = draw_history(found.trials, methods, untrained, _label(found))
    text = (
        "Each marker is a trial: its mean over the folds that it was trained on. Open markers fell behind and were "
        "stopped (successive halving); lines are the best finished trial so far."
    )
    return Section("Search", [Text(text), history])


def _compose_settings(found: StudyResult) -> Section:
    blocks: list[Block] = []
    for method in found.protocol.methods:
        name = method.name
        shares = found.importances.get(name, {})
        if shares:
            blocks.append(draw_importance(shares, name))
        else:
            blocks.append(Text(f"{name}: too few trials to tell which settings matter.", "missing"))
        if any(one.method == name and one.scores for one in found.trials):
            blocks.append(draw_parallel(found.trials, found.protocol.spaces[name], name, _label(found)))
    blocks.append(_list_settings(found))
    return Section("What mattered", blocks)


def _list_settings(found: StudyResult) -> Table:
    """The range and the best value of every setting that was searched, method by method."""
    rows: list[list[Cell] | str] = []
    for winner in found.winners:
        rows.append(winner.method.name)
        space = found.protocol.spaces[winner.method.name]
        plain = {key: value for part in winner.config.model_dump(mode="json").values() for key, value in part.items()}
        trained = [one for one in found.trials if one.method == winner.method.name and one.state == "finished"]
        best = max(trained, key=lambda one: one.score or 0.0)
        for key, given in space.items():
            value: Any = best.settings.get(key) if key == LENGTH else plain[key]
            rows.append([key, describe_range(given), _plain(value)])
    columns = [Column("setting"), Column("searched", text=True), Column("best", text=True)]
    return Table(columns, rows, "Ranges, and the best settings of each method", name="settings")


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "the default" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _compose_folds(found: StudyResult) -> Section:
    columns = [Column(""), Column("settings", text=True)]
    columns += [Column(f"fold {n}") for n in range(1, found.protocol.folds + 1)]
    columns += [Column("mean")]
    rows: list[list[Cell]] = []
    if found.untrained:
        rows.append(_fold_row(UNTRAINED, "trial 0", found.untrained))
    for winner in found.winners:
        usual = found.usual_of(winner.method.name)
        if usual is not None and not winner.usual:
            rows.append(_fold_row(winner.method.name, "first", usual.scores))
        words = "best, which are the first" if winner.usual else "best"
        rows.append(_fold_row(winner.method.name, words, winner.scores))
    note = (
        "Folds are disjoint shares of the training classes; a model is measured on the fold that it was not trained "
        "on. Means of the best settings are optimistic, because they were chosen by them."
    )
    return Section("Folds", [Table(columns, rows, f"{_label(found)} by fold", [note], "folds")])


def _fold_row(name: str, words: str, scores: tuple[float, ...]) -> list[Cell]:
    return [name, words, *(Value(score, digits=1) for score in scores), Value(statistics.fmean(scores), digits=1)]


def _compose_cheap(found: StudyResult) -> Section:
    rows: list[list[Cell]] = []
    for name, rank in found.correlations.items():
        used = "too few trials" if rank is None else "yes" if rank >= TRUSTED else "no"
        rows.append([name, len(found.cheap_and_dear[name]), None if rank is None else Value(rank), used])
    columns = [Column(""), Column("trials"), Column("rank correlation"), Column("decides who goes on?", text=True)]
    note = f"Spearman's rank correlation on the first fold; cheap trials stop others from {TRUSTED} on."
    table = Table(columns, rows, "Do cheap trials rank as whole ones?", [note], "cheap-ranks")
    return Section("Cheap trials", [SideBySide([draw_cheap(found.cheap_and_dear, _label(found)), table])])


def _compose_trials(found: StudyResult) -> Section:
    columns = [Column("trial"), Column("method", text=True), Column("state", text=True), Column("folds")]
    columns += [Column(_label(found)), Column("seconds"), Column("settings", text=True)]
    rows: list[list[Cell]] = []
    if found.untrained:
        mean = Value(statistics.fmean(found.untrained), digits=1)
        rows.append(["0", UNTRAINED, "measured", len(found.untrained), mean, None, ""])
    for one in found.trials:
        score = None if one.latest is None else Value(one.latest, digits=1)
        words = ", ".join(f"{key} {_plain(value)}" for key, value in one.settings.items())
        shown = "the first settings" if one.usual else one.error or words
        rows.append(
            [str(one.number), one.method, one.state, len(one.scores), score, Value(one.seconds, digits=0), shown]
        )
    return Section("All trials", [Table(columns, rows, "", [], "trials")])
