"""Estimate how long the cells of a grid will take on this machine, and compare it with how long they took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from metrix.errors import MetrixWarning
from metrix.experiments.cells import Cell, CellStore, config_of_record
from metrix.files import write_json
from metrix.messages import count, format_duration
from metrix.reproduce.running import GridState

CALIBRATION = (sys.executable, "-m", "metrix.reproduce.calibration")
FILE = "time.json"


class DurationEstimate:
    """Estimates the duration of cells from finished cells of the same kind, or else from a short calibration.

    Args:
        cells: To estimate; those that are finished are not calibrated.
        store: Where finished cells are.
        jobs: How many are trained in parallel and share the cores.
        report: Is called with the progress of the calibration.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        store: CellStore,
        jobs: int = 1,
        report: Callable[[str, int, int], None] = lambda what, done, of: None,
    ) -> None:
        self.store, self.jobs, self.report = store, jobs, report
        self.examples = {self.group(one): one for one in cells}

    @staticmethod
    def group(one: Cell) -> tuple[Any, ...]:
        """What the duration of a run depends on."""
        data, model, train = one.config.data, one.config.model, one.config.train
        size = (data.data, data.train_classes, data.image_size, model.backbone)
        return (one.kind, train.scheme, *size, train.batch_size, train.epochs, train.max_steps)

    @cached_property
    def finished(self) -> dict[tuple[Any, ...], float]:
        """The mean duration of the finished cells in seconds, by group."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for key, record in self.store.records():
            results = self.store.results(key)
            if results is not None:
                group = self.group(Cell(key, config_of_record(record), record["name"]))
                found.setdefault(group, []).append(duration_of_run(record, results))
        return {group: sum(values) / len(values) for group, values in found.items()}

    @cached_property
    def calibrated(self) -> tuple[float, dict[tuple[Any, ...], float]]:
        """The start of a process, and a run of each group without a finished cell, in seconds."""
        wanted = {group: one for group, one in self.examples.items() if group not in self.finished}
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        start, seconds = calibrate([one.config.model_dump_json() for one in wanted.values()], threads, self.report)
        return start, dict(zip(wanted, seconds, strict=True))

    @property
    def source(self) -> str:
        """What the estimate is based on, in words."""
        known = sum(group in self.finished for group in self.examples)
        if known == len(self.examples):
            return "from the finished runs"
        return "from a short calibration" if not known else "from the finished runs and a short calibration"

    def seconds(self, one: Cell) -> float:
        """Estimate the duration of a cell in seconds; 0 for one that cannot be trained, which fails at once."""
        group = self.group(one)
        return self.finished[group] if group in self.finished else self.calibrated[1][group]

    def total(self, cells: Sequence[Cell]) -> float:
        """Estimate the duration of several cells that are trained in parallel, the start of processes included."""
        each = [self.seconds(one) for one in cells]
        start = self.calibrated[0] if any(self.group(one) not in self.finished for one in cells) else 0.0
        return start + sum(each) / max(1, min(self.jobs, len(cells)))


def calibrate(
    configs: Sequence[str], threads: int, report: Callable[[str, int, int], None]
) -> tuple[float, list[float]]:
    """Time the parts of runs in a process like those that train.

    Args:
        configs: Configurations as JSON.
        threads: Cores of the process.
        report: Is called with the progress.

    Returns:
        The seconds until a process is ready to train, and those of each run: 0 if it cannot be trained.
    """
    start, found, began = 0.0, list[float](), time.monotonic()
    if not configs:
        return start, found
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        CALIBRATION, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for config in configs:
                report("timing the parts of runs", len(found), len(configs))
                process.stdin.write(config + "\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline() or "{}")
                if "ready" in answer:
                    start = time.monotonic() - began
                    answer = json.loads(process.stdout.readline() or "{}")
                found.append(answer.get("seconds") or 0.0)
        except BrokenPipeError:  # the process has died; the runs will tell why
            found += [0.0] * (len(configs) - len(found))
        report("timing the parts of runs", len(configs), len(configs))
    unknown = found.count(0.0)
    if unknown:
        warnings.warn(
            f"the time of {count(unknown, 'run')} could not be measured and counts as 0 in the announced time; the run "
            "will say why",
            MetrixWarning,
            stacklevel=2,
        )
    return start, found


def duration_of_run(record: Mapping[str, Any], results: Mapping[str, Any]) -> float:
    """The seconds that a cell took, without those for activations of its frozen trunk, which other runs find computed.

    A cell that was interrupted has in its record the time since it was resumed, and in its results that of training.
    """
    whole = max(float(record.get("seconds") or 0.0), float(results.get("seconds", 0.0)))
    return whole - float(results.get("activation_seconds", 0.0))


def estimate_time_left(state: GridState, expected: Mapping[str, float], jobs: int) -> float | None:
    """Estimate the seconds until a grid is finished; None if nothing is known yet.

    Cells of a kind that has been trained take as long as those did; others as long as expected, times the ratio of
    needed to expected time so far.

    Args:
        state: With the seconds of the cells trained so far.
        expected: Seconds by key of the cell, estimated before the first was trained.
        jobs: How many are trained in parallel.
    """
    taken: dict[str, list[float]] = {}
    for one in list(state.done):
        taken.setdefault(one.kind, []).append(state.seconds[one.key])
    foreseen = sum(expected.get(one.key, 0.0) for one in list(state.done))
    if not taken and not any(expected.values()):
        return None
    pace = sum(map(sum, taken.values())) / foreseen if foreseen else 1.0
    usual = sum(map(sum, taken.values())) / max(1, sum(map(len, taken.values())))

    def needed(one: Cell) -> float:
        if one.kind in taken:
            return sum(taken[one.kind]) / len(taken[one.kind])
        return pace * expected.get(one.key, 0.0) or usual

    left = sum(needed(one) for one in list(state.waiting))
    left += sum((1.0 - share) * needed(one) for one, share in list(state.running.values()))
    return left / max(1, min(jobs, len(state.waiting) + len(state.running)))


def write_times(folder: Path, announced: float, state: GridState) -> None:
    """Keep the announced and the needed time of a grid beside its runs, unless it trained nothing."""
    if state.done:
        needed = time.monotonic() - state.began
        write_json(folder / FILE, {"announced": announced, "needed": needed, "runs": len(state.done)})


def read_times(folder: Path) -> dict[str, float] | None:
    """The announced and the needed seconds of the last grid that trained runs in a folder, and their number."""
    path = folder / FILE
    found: dict[str, float] | None = json.loads(path.read_text("utf-8")) if path.is_file() else None
    return found


def describe_times(times: Mapping[str, float]) -> str:
    """The announced and the needed time in words.

    >>> describe_times({"announced": 700.0, "needed": 780.0, "runs": 160})
    'announced for 160 runs: 12 min; needed: 13 min'
    """
    announced, needed = format_duration(times["announced"]), format_duration(times["needed"])
    return f"announced for {count(int(times['runs']), 'run')}: {announced}; needed: {needed}"
