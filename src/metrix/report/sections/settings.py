"""Settings: the runs, the settings that differ between them, and those that all share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from metrix.report.page import Block, Column, Section, Table, Text
from metrix.report.reported_runs import ReportedRun
from metrix.runs.comparison import find_differing_settings, format_setting
from metrix.train.config import sections


def build_settings_section(runs: Sequence[ReportedRun]) -> Section:
    """The settings of the runs, those that differ first."""
    blocks: list[Block] = [_list_runs(runs)]
    if len(runs) > 1:
        different = find_differing_settings([run.config for run in runs])
        if different:
            rows = [[key, *(format_setting(value) for value in values)] for key, values in different.items()]
            columns = [Column("setting"), *(Column(run.name, text=True) for run in runs)]
            blocks.append(Table(columns, rows, "Settings that differ", name="settings-differ"))
        else:
            blocks.append(Text("All settings are the same."))
    else:
        different = {}
    blocks.append(_list_shared(runs[0], different, len(runs) > 1))
    blocks += _list_environments(runs)
    return Section("Settings", blocks)


def _list_runs(runs: Sequence[ReportedRun]) -> Table:
    columns = ["run", "folder", "data", "loss", "mixup", "state"]
    rows = [
        [
            run.name,
            str(run.folder.path),
            run.config.data.data,
            run.config.objective_name,
            run.config.mixing.describe(),
            "finished" if run.results is not None else f"not finished, {run.steps:,} steps logged",
        ]
        for run in runs
    ]
    return Table([Column(name, text=True) for name in columns], rows, "Runs", name="runs")


def _list_shared(run: ReportedRun, different: dict[str, list[Any]], several: bool) -> Table:
    plain = run.config.model_dump(mode="json")
    rows = []
    for section in dict.fromkeys(sections().values()):
        keys = [key for key, of in sections().items() if of == section and key not in different]
        # A setting that was not given has no value to show.
        values = [f"{key} = {format_setting(plain[section][key])}" for key in keys if plain[section][key] is not None]
        rows.append([section, ", ".join(values)])
    caption = "Settings that are the same in all runs" if several else "All settings"
    return Table([Column("section"), Column("settings", text=True)], rows, caption, name="settings")


def _list_environments(runs: Sequence[ReportedRun]) -> list[Text]:
    """Versions and platform of training: one line for each that differs."""
    lines: dict[str, list[str]] = {}
    for run in runs:
        try:
            found = json.loads((run.folder.path / "environment.json").read_text("utf-8"))
            versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
            line = f"{versions}, Python {found['python']}, {found['platform']}"
        except (OSError, ValueError, KeyError):
            line = "an environment that was not recorded"
        lines.setdefault(line, []).append(run.name)
    several = len(lines) > 1
    return [
        Text(f"{', '.join(names)}: trained with {line}." if several else f"Trained with {line}.")
        for line, names in lines.items()
    ]
