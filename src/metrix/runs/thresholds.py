"""The similarity above which two images are the same thing, measured on a run's held-out classes and kept with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from metrix.errors import InvalidInput
from metrix.evaluate.few_classes import describe_few_classes
from metrix.messages import first_few
from metrix.runs.evaluation import embed_examples
from metrix.runs.output import write_output
from metrix.runs.trained_model import TrainedModel
from metrix.search import Pairs, Threshold, count_pairs
from metrix.train.network import name_examples

FILE = "threshold.json"


@dataclass(frozen=True, eq=False)
class MeasuredThreshold:
    """A threshold, the pairs that it was chosen on, and which classes those are of."""

    threshold: Threshold
    pairs: Pairs
    about: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        pairs = {"same_class": int(self.pairs.same.sum()) // 2, "different": int(self.pairs.different.sum()) // 2}
        return {
            **self.threshold.model_dump(),
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items()},
            "few_classes": bool(self.caution),
            "pairs": pairs,
            **self.about,
        }

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % intervals over classes of precision, recall and far at the threshold; none without resamples."""
        return self.pairs.intervals(self.threshold.similarity)

    @property
    def caution(self) -> str:
        """A sentence on how little figures of few classes mean; empty for five and more."""
        return describe_few_classes(self.pairs.classes)


def measure_threshold(
    model: TrainedModel,
    target: str,
    wanted: float,
    *,
    data: str | None = None,
    resamples: int = 500,
    seed: int = 0,
) -> MeasuredThreshold:
    """Choose the similarity for a wanted precision, recall or false-accept rate (`far`) over all pairs of test images.

    Args:
        model: of the run, from `open_run`.
        target: precision, recall or far.
        wanted: the fraction to reach.
        data: other data than the run's own; its test part is used.
        resamples: of the bootstrap over classes, for the interval; 0 for none.
        seed: of the bootstrap.
    """
    examples = embed_examples(model, data)
    vectors, labels = examples.everything
    pairs = count_pairs(vectors, labels, resamples, seed)
    names = sorted(set(labels.tolist()))
    about = {
        "images": pairs.images,
        "examples": name_examples(model.config),
        "classes": pairs.classes,
        "class_names": names,
        "data": (examples.about or {}).get("data"),
        "part": "test",
        "model": model.digest,
        "run": str(model.run.path),
        "resamples": resamples,
        "confidence": 0.95,
    }
    return MeasuredThreshold(pairs.threshold(target, wanted), pairs, about)


def describe_classes(found: MeasuredThreshold) -> str:
    """Which classes the pairs are of, in a sentence."""
    about = found.about
    return (
        f"all pairs of {about['images']:,} {about['examples']} of {about['classes']:,} held-out classes of "
        f"{about['data']} ({first_few(about['class_names'])})"
    )


def write_threshold(model: TrainedModel, found: MeasuredThreshold) -> Path:
    """Keep a threshold in the run's folder, where indexes take it from."""
    path = model.run.path / FILE
    text = json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n"
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def read_threshold(model: TrainedModel) -> Threshold | None:
    """The threshold that a run's folder has for its model; None if there is none, or it is of another model."""
    path = model.run.path / FILE
    if not model.is_whole or not path.is_file():  # it is of similarities of whole embeddings
        return None
    try:
        content = json.loads(path.read_bytes())
        if content["model"] != model.digest:
            return None
        return Threshold.model_validate({name: content[name] for name in Threshold.model_fields})
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise InvalidInput(
            f"{path}: expected what metrix threshold wrote, got a damaged file; measure it anew"
        ) from error
