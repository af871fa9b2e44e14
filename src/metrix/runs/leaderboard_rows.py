"""The rows of a leaderboard that runs give: one for each setting, over its seeds."""

from __future__ import annotations

import hashlib
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput
from metrix.evaluate.metrics import find_metric
from metrix.evaluate.seeds import critical_value
from metrix.runs.evaluation import Evaluation, embed_examples, evaluate_examples
from metrix.runs.leaderboard import SCHEMA, LeaderboardRow, Measured, MeasuredData, Protocol
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.train.batches import Report, ignore_report
from metrix.train.config import Config
from metrix.train.data_place import path_of
from metrix.train.network import with_usual_weights

FILES = ("compatible_with", "weights")  # whose folders are those of one machine
UNRELATED = ("seed", "workers", "cache", "device", "log", "micro_batch", "checkpoint_steps", "compile")


def measure_rows(
    runs: Sequence[Path],
    spec: str | None = None,
    *,
    names: Sequence[str] | None = None,
    resamples: int = 1000,
    report: Report = ignore_report,
    reading: Mapping[str, Any] | None = None,
) -> list[LeaderboardRow]:
    """Measure runs on their test classes; those that differ in their seed only are one row, with an interval over it.

    Args:
        runs: folders of finished runs.
        spec: other data to measure on.
        names: of the rows, one for each run; by default those of their folders.
        resamples: for the interval of a single run, over classes.
        report: called with the progress.
        reading: other values for settings of how images are read, as for `open_run`.
    """
    if names is not None and len(names) != len(runs):
        raise InvalidInput(f"names: expected one for each of {len(runs)} runs, got {len(names)}")
    given = names or [Path(run).resolve().name for run in runs]
    rows = []
    for done, (run, name) in enumerate(zip(runs, given, strict=True), start=1):
        model = open_run(Path(run), report, reading=reading)
        found = evaluate_examples(embed_examples(model, spec), resamples=resamples, clustered=False)
        rows.append(build_row(model, found, name))
        report("measuring", done, len(runs))
    return merge_seeds(rows)


def build_row(model: TrainedModel, found: Evaluation, name: str) -> LeaderboardRow:
    """The row of one run."""
    from metrix import __version__

    config, about, retrieval = model.config, found.about, found.retrieval
    return LeaderboardRow.model_validate(
        {
            "schema": SCHEMA,
            "name": name,
            "method": config.mixing.mixup_method if config.mixing.mixup else "clean",
            "loss": config.loss.loss if config.train.scheme == "none" else config.train.scheme,
            "mixup": ", ".join(config.mixing.mixup) or "none",
            "backbone": config.model.backbone,
            "dim": int(about["dim"]),
            "dataset": MeasuredData(
                name=name_data(str(about["data"])),
                digest=hashlib.sha256(str(about["fingerprint"]).encode()).hexdigest(),
                classes=retrieval.classes,
                queries=retrieval.queries,
                gallery=retrieval.gallery_size,
            ),
            "protocol": Protocol(
                training=digest_training(model),
                search="exact" if retrieval.search_loss is None else "approximate",
                sequences=retrieval.sequences is not None,
            ),
            "measures": {
                key: _measure(value, retrieval.intervals.get(key), retrieval.over)
                for key, value in retrieval.means.items()
                if find_metric(key).higher_is_better
            },
            "seeds": (config.train.seed,),
            "models": (model.digest,),
            "command": describe_command(config),
            "metrix": __version__,
        }
    )


def _measure(value: float, interval: tuple[float, float] | None, over: str) -> Measured:
    if interval is None or not all(map(math.isfinite, interval)):
        return Measured(value=float(value))
    low, high = (min(max(float(bound), 0.0), 1.0) for bound in interval)
    value = float(value)  # resamples that are all alike may be off it by rounding
    return Measured.model_validate({"value": value, "low": min(low, value), "high": max(high, value), "over": over})


def merge_seeds(rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """One row for each setting: the mean over its seeds with Student's 95 % interval, or the row of a single one."""
    settings: dict[str, list[LeaderboardRow]] = {}
    for row in rows:
        key = repr((row.command, row.dataset, row.protocol, row.dim))
        settings.setdefault(key, []).append(row)
    merged = []
    for group in settings.values():
        several = {row.seeds: row for row in group}
        merged.append(group[0] if len(several) == 1 else _merge(list(several.values())))
    return merged


def _merge(rows: Sequence[LeaderboardRow]) -> LeaderboardRow:
    measures = {}
    for key in rows[0].measures:
        values = [row.measures[key].value for row in rows if key in row.measures]
        if len(values) == len(rows):
            mean = statistics.fmean(values)
            margin = critical_value(len(values)) * statistics.stdev(values) / math.sqrt(len(values))
            measures[key] = _measure(mean, (mean - margin, mean + margin), "seeds")
    return rows[0].model_copy(
        update={
            "measures": measures,
            "seeds": tuple(seed for row in rows for seed in row.seeds),
            "models": tuple(one for row in rows for one in row.models),
        }
    )


def digest_training(model: TrainedModel) -> str | None:
    """A digest of the images that a run was trained or selected on; None for a network that was not trained."""
    config = model.config
    if config.train.epochs == 0 and config.model.head_init == "random":
        return None
    fingerprint = model.run.data_fingerprint
    if not fingerprint:
        return None
    choice = config.data
    parts = (fingerprint, choice.train_classes, choice.fold, choice.unseen, choice.split_seed)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def name_data(spec: str) -> str:
    """A name of data without the folder that it is in.

    >>> name_data("cub:/data/CUB_200_2011"), name_data("glyphs"), name_data("hf:owner/cars")
    ('CUB_200_2011', 'glyphs', 'hf:owner/cars')
    """
    path = path_of(spec)
    return spec if path is None else path.name or str(path)


def describe_command(config: Config) -> str:
    """The command that trains with these settings, without the seed, the folders of files and what changes no result.

    >>> describe_command(Config().with_values({"loss": "contrastive", "mixup": (), "seed": 3}))
    'metrix train glyphs --loss contrastive --mixup none'
    """
    found = config.differences_to(Config())
    if with_usual_weights(config).model.weights is not None:  # as the command line takes them if none are named
        found["weights"] = config.model.weights or "random"
    words = ["metrix", "train", name_data(config.data.data)]
    if config.distil.teacher is not None:
        words = ["metrix", "distil", name_data(config.distil.teacher), "--data", name_data(config.data.data)]
    for key, value in found.items():
        if key in (*UNRELATED, "data", "root", "teacher"):
            continue
        if key == "unlabelled":  # given once for each
            words += [word for folder in value for word in _flag(key, name_data(folder))]
        else:
            words += _flag(key, name_data(value) if key in FILES and value is not None else value)
    return shlex.join(words)


def _flag(key: str, value: Any) -> list[str]:
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, bool):
        return [name if value else f"--no-{name[2:]}"]
    if isinstance(value, list | tuple):
        return [name, ",".join("all" if one is None else str(one) for one in value) or "none"]
    return [name, "none" if value is None else str(value)]
