"""What was trained: the runs, what differs between them, and all their settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from metrix.report.page import Block, Column, Section, Table, Text
from metrix.report.reported_runs import Subject
from metrix.runs.comparison import find_differing_settings, format_setting
from metrix.train.config import sections


def settings_section(subjects: Sequence[Subject]) -> Section:
    """The settings, those that differ first."""
    blocks: list[Block] = [_runs(subjects)]
    if len(subjects) > 1:
        different = find_differing_settings([subject.config for subject in subjects])
        if different:
            rows = [[key, *(format_setting(value) for value in values)] for key, values in different.items()]
            columns = [Column("setting"), *(Column(subject.name, text=True) for subject in subjects)]
            blocks.append(Table(columns, rows, "Settings that differ", name="settings-differ"))
        else:
            blocks.append(Text("All settings are the same."))
    else:
        different = {}
    blocks.append(_same(subjects[0], different, len(subjects) > 1))
    blocks += _environments(subjects)
    return Section("Settings", blocks)


def _runs(subjects: Sequence[Subject]) -> Table:
    columns = ["run", "folder", "data", "loss", "mixup", "state"]
    rows = [
        [
            subject.name,
            str(subject.run.path),
            subject.config.data.data,
            subject.config.loss.loss,
            subject.config.mixing.describe(),
            "finished" if subject.results is not None else f"not finished, {subject.steps:,} steps logged",
        ]
        for subject in subjects
    ]
    return Table([Column(name, text=True) for name in columns], rows, "Runs", name="runs")


def _same(subject: Subject, different: dict[str, list[Any]], several: bool) -> Table:
    plain = subject.config.model_dump(mode="json")
    rows = []
    for section in dict.fromkeys(sections().values()):
        keys = [key for key, of in sections().items() if of == section and key not in different]
        # What was not given is left out: it has no value of its own.
        values = [f"{key} = {format_setting(plain[section][key])}" for key in keys if plain[section][key] is not None]
        rows.append([section, ", ".join(values)])
    caption = "Settings that are the same in all runs" if several else "All settings"
    return Table([Column("section"), Column("settings", text=True)], rows, caption, name="settings")


def _environments(subjects: Sequence[Subject]) -> list[Text]:
    """On what the runs were trained: one line for each machine and set of versions."""
    lines: dict[str, list[str]] = {}
    for subject in subjects:
        try:
            found = json.loads((subject.run.path / "environment.json").read_text("utf-8"))
            versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
            line = f"{versions}, Python {found['python']}, {found['platform']}"
        except (OSError, ValueError, KeyError):
            line = "an environment that was not recorded"
        lines.setdefault(line, []).append(subject.name)
    several = len(lines) > 1
    return [
        Text(f"{', '.join(names)}: trained with {line}." if several else f"Trained with {line}.")
        for line, names in lines.items()
    ]
