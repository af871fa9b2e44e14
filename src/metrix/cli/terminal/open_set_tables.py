"""Build the tables of `metrix evaluate --open-set` and `metrix threshold --open-set`."""

from __future__ import annotations

from rich.table import Table

from metrix.evaluate.few_classes import describe_few_classes
from metrix.runs.open_set import MeasuredOpenSet
from metrix.runs.open_set_evaluation import OpenSetEvaluation, OpenSetMeasure

NAMES = {
    "accuracy": "accuracy of enrolled, % ↑",
    "auroc": "AUROC of unknown, % ↑",
    "accuracy@false-accept": "accuracy at {rate} false accept, % ↑",
    "ece": "calibration error (ECE), % ↓",
    "false-accept": "unknown accepted, asked for {rate}, %",
    "false-reject": "enrolled rejected there, % ↓",
}

TRAINED = "; if the run was trained on these classes, unknown ones are harder to tell apart than this says"


def build_open_set_table(result: OpenSetEvaluation) -> Table:
    """Build a table of the measures by images enrolled of each class."""
    rate = f"{100 * result.about['false_accept']:g} %"
    table = Table(title="Images of classes never seen in training: enrolled, or unknown", caption_justify="left")
    table.caption = "mean ± half the 95 % interval over draws; below, the 95 % interval over classes"
    table.add_column("images enrolled of each class")
    for one in result.results:
        table.add_column("all" if one.shots is None else str(one.shots), justify="right")
    table.add_row("classes enrolled (chance, %)", *[f"{x.classes:.0f} ({100 / x.classes:.2g})" for x in result.results])
    for name, title in NAMES.items():
        cells = [_cell(one.measures.get(name)) for one in result.results]
        if any(cells):
            table.add_row(title.format(rate=rate), *[cell or "–" for cell in cells])
    return table


def _cell(one: OpenSetMeasure | None) -> str:
    if one is None:
        return ""
    drawn = "" if one.over_draws is None else f" ± {100 * one.over_draws:.1f}"
    if one.over_classes is None:
        return f"{100 * one.mean:.1f}{drawn}"
    low, high = one.over_classes
    return f"{100 * one.mean:.1f}{drawn}\n[dim]{100 * low:.1f} to {100 * high:.1f}[/]"


def build_few_shot_table(result: OpenSetEvaluation) -> Table:
    """Build a table of n-way k-shot accuracy."""
    table = Table(title="Few-shot episodes by the nearest centroid", show_header=False, caption_justify="left")
    table.caption = "mean accuracy in % ± 1.96 standard errors over 600 episodes"
    for name, (mean, margin) in result.episodes.items():
        table.add_row(name, f"{100 * mean:.1f} ± {100 * margin:.1f}")
    return table


def describe_protocol(result: OpenSetEvaluation) -> str:
    """What was drawn from what, in a sentence."""
    about = result.about
    caution = describe_few_classes(about["classes"] // 4)
    return (
        f"{about['draws']} draws from {about['images']:,} images of {about['classes']:,} classes: half of the classes "
        "are enrolled, a quarter is unknown, and the rest calibrates where one image of each is enrolled"
        f"{f'; caution: figures of unknown {caution}' if caution else ''}"
    )


def build_chosen_table(found: MeasuredOpenSet) -> Table:
    """Build a table of a threshold of unknown and what it does."""
    chosen = found.chosen.open_set
    title = f"Unknown below a probability of {100 * chosen.probability:.1f} % to be of an enrolled class"
    table = Table(title=title, show_header=False)
    if found.chosen.intervals:
        table.caption = "with 95 % intervals over the classes"
    rows = {"unknown accepted": "false_accept", "enrolled rejected": "false_reject"}
    for heading, name in rows.items():
        bounds = found.chosen.intervals.get(name)
        shown = "" if bounds is None else f"{100 * bounds[0]:.4g} to {100 * bounds[1]:.4g} %"
        table.add_row(heading, f"{100 * getattr(chosen, name):.2f} %", shown)
    return table


def describe_chosen(found: MeasuredOpenSet) -> str:
    """What a threshold of unknown was chosen for, and on which images."""
    chosen, about = found.chosen.open_set, found.about
    aim = {"false_accept": "unknown images accepted", "false_reject": "enrolled images rejected"}[chosen.target]
    how = "each asked about without itself, and without its class"
    if about["shots"] is not None:
        how = "others of these classes asked about with their class, and without it"
    caution = describe_few_classes(chosen.classes)
    return (
        f"for at most {100 * chosen.wanted:g} % of {aim}, on {about['enrolled']:,} images of {chosen.classes:,} "
        f"classes of {about['on']}, {how}{'' if 'part' in about else TRAINED}"
        f"{f'; caution: figures {caution}' if caution else ''}"
    )
