"""Training curves: clean loss, mixed loss and validation."""

from __future__ import annotations

from collections.abc import Sequence

from metrix.report.figures.curves import Curve, draw_curves
from metrix.report.page import Block, Section, SideBySide, Text
from metrix.report.reported_runs import ReportedRun
from metrix.train.collapse import describe_collapse
from metrix.train.fit import describe_training_fit
from metrix.train.untrained import describe_harm


def build_training_section(runs: Sequence[ReportedRun]) -> Section:
    """Curves against steps, from the values logged at the end of each epoch."""
    blocks: list[Block] = []
    drawn: list[Block] = []
    without = [run.name for run in runs if not _read_points(run, "clean")[0]]
    if without:
        blocks.append(Text(f"No losses logged yet: {', '.join(without)}.", "missing"))
    if len({run.config.objective_name for run in runs}) > 1:
        blocks.append(Text("The runs have different losses, so the heights of their loss curves cannot be compared."))
    for key, caption in (
        ("clean", "Mean clean loss of each epoch."),
        ("mixed", "Mean mixed loss of each epoch, not multiplied by its weight w."),
    ):
        found = [
            Curve(run.name, *points, number=n)
            for n, run in enumerate(runs)
            if (points := _read_points(run, key))[0] and (key == "clean" or run.config.mixing.mixup)
        ]
        if found:
            drawn.append(draw_curves(found, "step", f"{key} loss", name=f"loss-{key}", caption=caption))
    if not any(run.config.mixing.mixup for run in runs):
        blocks.append(Text("No run was trained with mixup, so there is no mixed loss.", "note"))
    drawn += _draw_validation(runs, blocks)
    skipped = [f"{run.name}: {count} of {run.steps:,}" for run in runs if (count := _count_skipped(run))]
    if skipped:
        told = (
            f"Steps left out because a loss or gradient was not finite (--on-nonfinite skip): {'; '.join(skipped)}. "
            "metrix replay RUN repeats the one that was saved, and names the term that broke."
        )
        blocks.append(Text(told, "note"))
    for run in runs:
        if fit := describe_training_fit(run.results or {}):
            blocks.append(Text(f"{run.name}: {fit}.", "note"))
        if harm := describe_harm(run.results or {}):
            blocks.append(Text(f"{run.name}: {harm}.", "note"))
        collapse = (run.results or {}).get("collapse")
        if collapse:
            after = " It recovered later." if collapse["recovered"] else ""
            blocks.append(Text(f"{run.name}: {describe_collapse(collapse)}.{after}", "note"))
    if drawn:
        blocks.append(SideBySide(drawn))
    return Section("Training", blocks)


def _count_skipped(run: ReportedRun) -> int:
    """Steps that were not finite and left out: as the results say, or as far as an unfinished run logged them."""
    known = (run.results or {}).get("skipped_steps")
    return int(known) if known is not None else sum(int(line.get("skipped", 0)) for line in run.metrics)


def _read_points(run: ReportedRun, key: str) -> tuple[list[float], list[float]]:
    lines = [line for line in run.metrics if key in line and "step" in line]
    return [float(line["step"]) for line in lines], [float(line[key]) for line in lines]


def _draw_validation(runs: Sequence[ReportedRun], blocks: list[Block]) -> list[Block]:
    found, without = [], []
    for n, run in enumerate(runs):
        lines = [line for line in run.metrics if "val" in line]
        steps = [float(line["step"]) for line in lines]
        recalls = [100 * float(line["val"]["recall"]["1"]) for line in lines]
        if not lines:
            without.append(run.name)
            continue
        best = max(range(len(steps)), key=recalls.__getitem__)
        when = f"at step {steps[best]:.0f}" if steps[best] else "before training"
        told = f"{run.name}, best {recalls[best]:.1f} {when}"
        found.append(Curve(told, steps, recalls, number=n))
    if without:
        blocks.append(
            Text(
                f"No validation logged: {', '.join(without)}; --holdout holds out classes for it.",
                "missing",
            )
        )
    if not found:
        return []
    caption = (
        "Recall@1 on held-out training classes; step 0 is the untrained network. The model of the best epoch is kept."
    )
    label = "validation Recall@1, %"
    return [draw_curves(found, "step", label, name="validation", caption=caption, bounds=(0, 100))]
