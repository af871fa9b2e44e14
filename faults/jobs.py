"""The jobs that `make chaos` disturbs: commands, what they leave, and how they are repeated."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from faults.material import SETTINGS
from metrix.report.page.escaping import escape_markdown

OF_PHOTOS: dict[str, Any] = {"data": "photos", "train_classes": None, "batch_size": 6}
# Pooling by averages where features are mixed: the kernel of max pooling runs on OpenMP, which must not be forked.
TRAINING: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"ema": 0.9, "schedule": "cosine", "mixup": ["embed", "feature"], "pool": "avg"},
    "proxies": {"loss": "proxy-anchor", "clip": 1.0, "warmup_epochs": 1},
    "memory": {"memory": 24, "memory_after": 1},
    "micro-batches": {"micro_batch": 4},
    "workers": {**OF_PHOTOS, "workers": 2},
    "cache": {**OF_PHOTOS, "cache": "disk"},
    "views": {**OF_PHOTOS, "freeze_to": "all", "views": 2},
    "two processes": {**OF_PHOTOS, "mixup": ["feature"], "pool": "avg", "frozen_bn": True},
}


@dataclass(frozen=True)
class Place:
    """The folder of one disturbed or undisturbed job; `base` has what all share: photos, a run, drawn glyphs."""

    folder: Path
    base: Path

    @property
    def output(self) -> Path:
        return self.folder / "output"


class Job(NamedTuple):
    """A command, what it leaves, and how it is repeated; `processes` as torchrun would start them."""

    prepare: Callable[[Place], None]
    command: Callable[[Place], list[str]]
    contents: Callable[[Place], dict[str, Any]]
    processes: int = 1
    only_kills: bool = False  # what writes is not metrix: its writes are not made to fail


def train_command(kind: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        if (place.output / "config.yaml").exists():
            return ["train", "--resume", str(place.output), "--quiet"]
        values = SETTINGS | TRAINING[kind]
        data = str(place.base / "photos") if values["data"] == "photos" else values["data"]
        flags: list[str] = []
        for key, value in values.items():
            name = "--" + key.replace("_", "-")
            if value is True:
                flags.append(name)
            elif key != "data" and value is not None:
                flags += [name, ",".join(value) if isinstance(value, list) else str(value)]
        return ["train", data, *flags, "--output", str(place.output), "--quiet"]

    return command


def read_run(place: Place) -> dict[str, Any]:
    return read_run_at(place.output)


def read_run_at(run: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    found: dict[str, Any] = {}
    for file in sorted(run.rglob("*.safetensors")):
        tensors = load_file(file)
        found |= {f"{file.relative_to(run)}: {key}": (x.shape, x.tobytes()) for key, x in tensors.items()}
    found["metrics.jsonl"] = (run / "metrics.jsonl").read_text()
    results = json.loads((run / "results.json").read_text())
    found["results.json"] = {key: value for key, value in results.items() if not _varies(key)}
    return found


def _varies(key: str) -> bool:
    """Whether a result depends on the machine and on interruptions."""
    return "seconds" in key or key in ("peak_memory", "finished")


def read_files(*patterns: str) -> Callable[[Place], dict[str, Any]]:
    def read(place: Place) -> dict[str, Any]:
        files = sorted(file for pattern in patterns for file in place.folder.glob(pattern) if file.is_file())
        # Some files name the run that they belong to, in Markdown with a backslash before "_".
        own = b"|".join(re.escape(path.encode()) for path in (str(place.folder), escape_markdown(place.folder)))
        texts = {str(file.relative_to(place.folder)): re.sub(own, b"", file.read_bytes()) for file in files}
        # A page has tables in base64.
        return {name: re.sub(rb"data:text/csv;base64,[^\"]*", b"", text) for name, text in texts.items()}

    return read


def read_index(place: Place) -> dict[str, Any]:
    """The current generation; a second build that follows a complete one has another number."""
    from metrix.search import Index

    opened = Index.open(place.output)
    found = {
        str(record["id"]): (sorted(record.items()), vector.tobytes())
        for _, items in opened.store.scan()
        for record, vector in zip(items.records(), items.vectors, strict=True)
    }
    opened.close()
    return found | {"count": opened.description.count}


def read_reproduction(place: Place) -> dict[str, Any]:
    """Weights and measures of the cells, and the tables."""
    found: dict[str, Any] = {}
    for results in sorted(place.output.glob("cells/*/run/results.json")):
        run = results.parent
        # embeddings are a cache, which may be missing after a write that failed
        kept = {name: value for name, value in read_run_at(run).items() if not name.startswith("embeddings")}
        found |= {f"{run.parent.name}/{name}": value for name, value in kept.items()}
    return found | read_files("output/report-files/*.csv")(place)


def copy_run(place: Place) -> None:
    shutil.copytree(place.base / "run", place.output)


def copy_run_aside(place: Place) -> None:
    shutil.copytree(place.base / "run", place.folder / "run")


def nothing(place: Place) -> None:
    pass


REPRODUCE = ["reproduce", "utilization", "--data", "glyphs-mini", "--seeds", "1", "--train-classes", "8"]
REPRODUCE += ["--batch-size", "12", "--per-class", "3", "--max-steps", "2", "--quiet"]

JOBS: dict[str, Job] = {
    **{kind: Job(nothing, train_command(kind), read_run) for kind in TRAINING if kind != "two processes"},
    "two processes": Job(nothing, train_command("two processes"), read_run, processes=2),
    "embed": Job(
        nothing,
        lambda p: ["embed", str(p.base / "run"), "-o", str(p.output) + ".parquet", "--engine", "torch", "--quiet"],
        read_files("*.parquet"),
    ),
    "evaluate": Job(
        copy_run,
        lambda p: ["evaluate", str(p.output), "--bootstrap", "20", "--json"],
        read_files("output/embeddings/*.safetensors", "output/evaluation.json"),
    ),
    "index": Job(
        nothing,
        lambda p: ["index", str(p.base / "run"), str(p.base / "photos"), "-o", str(p.output)],
        read_index,
    ),
    "report": Job(
        copy_run_aside,
        lambda p: [
            *("report", str(p.folder / "run"), "-o", str(p.output / "report.html"), "--quiet", "--test-only"),
            *("--bootstrap", "20", "--classes", "3", "--queries", "2"),
        ],
        read_files("output/**/*"),
    ),
    "reproduce": Job(nothing, lambda p: [*REPRODUCE, "-o", str(p.output)], read_reproduction),
}
