"""How training went: losses, clean and mixed apart, and validation."""

from __future__ import annotations

from collections.abc import Sequence

from metrix.report.figures.curves import Curve, draw_curves
from metrix.report.page import Block, Section, SideBySide, Text
from metrix.report.reported_runs import Subject


def training_section(subjects: Sequence[Subject]) -> Section:
    """Curves against steps, as logged at the end of each epoch."""
    blocks: list[Block] = []
    drawn: list[Block] = []
    without = [subject.name for subject in subjects if not _points(subject, "clean")[0]]
    if without:
        blocks.append(Text(f"No losses were logged yet by {', '.join(without)}.", "missing"))
    if len({subject.config.loss.loss for subject in subjects}) > 1:
        blocks.append(Text("The runs have different losses: the heights of their loss curves cannot be compared."))
    for key, caption in (
        ("clean", "Mean clean loss of each epoch."),
        ("mixed", "Mean mixed loss of each epoch, before its weight w."),
    ):
        found = [
            Curve(subject.name, *points, number=n)
            for n, subject in enumerate(subjects)
            if (points := _points(subject, key))[0] and (key == "clean" or subject.config.mixing.mixup)
        ]
        if found:
            drawn.append(draw_curves(found, "step", f"{key} loss", name=f"loss-{key}", caption=caption))
    if not any(subject.config.mixing.mixup for subject in subjects):
        blocks.append(Text("No run was trained with mixup, so there is no mixed loss.", "note"))
    drawn += _validation(subjects, blocks)
    if drawn:
        blocks.append(SideBySide(drawn))
    return Section("Training", blocks)


def _points(subject: Subject, key: str) -> tuple[list[float], list[float]]:
    lines = [line for line in subject.metrics if key in line and "step" in line]
    return [float(line["step"]) for line in lines], [float(line[key]) for line in lines]


def _validation(subjects: Sequence[Subject], blocks: list[Block]) -> list[Block]:
    found, without = [], []
    for n, subject in enumerate(subjects):
        lines = [line for line in subject.metrics if "val" in line]
        steps = [float(line["step"]) for line in lines]
        recalls = [100 * float(line["val"]["recall"]["1"]) for line in lines]
        if not lines:
            without.append(subject.name)
            continue
        best = max(range(len(recalls)), key=recalls.__getitem__)
        told = f"{subject.name}, best {recalls[best]:.1f} at step {steps[best]:.0f}"
        found.append(Curve(told, steps, recalls, number=n))
    if without:
        blocks.append(
            Text(
                f"No validation was logged by {', '.join(without)}: classes for it are held out with --holdout.",
                "missing",
            )
        )
    if not found:
        return []
    caption = "Recall@1 on training classes that were held out; the model of the best epoch is kept."
    return [draw_curves(found, "step", "validation Recall@1, %", name="validation", caption=caption)]
