"""Whether embeddings of a new run can be searched among those of an old one: new → old, beside old → old, new → new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metrix.errors import InvalidInput
from metrix.evaluate.cross_model import CrossRecalls, measure_across_models
from metrix.runs.trained_model import TrainedModel

SEARCHES = ("old → old", "new → old", "new → new")  # queries → gallery


@dataclass(frozen=True, eq=False)
class CrossEvaluation:
    """Recall@1 by SEARCHES, and what it was measured on."""

    found: CrossRecalls
    about: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        searches = {name: one.to_dict() for name, one in self.found.searches.items()}
        return {**self.about, "queries": self.found.queries, "chance": self.found.chance, "searches": searches}


def evaluate_across_runs(
    new: TrainedModel, old: TrainedModel, data: str | None = None, part: str = "test", resamples: int = 1000
) -> CrossEvaluation:
    """Measure Recall@1 of queries by each of two runs among images by each.

    Args:
        new, old: of the runs, from `open_run`.
        data: other data than the new run's own.
        part: of it.
        resamples: of the bootstrap over classes; 0 for none.

    Raises:
        InvalidInput: the embeddings have two lengths, or the runs have other images in this part.
    """
    if new.config.model.dim != old.config.model.dim:
        raise InvalidInput(
            f"--against: expected embeddings of dimension {new.config.model.dim}, as {new.run.path} has, got "
            f"{old.config.model.dim} of {old.run.path}; they can be compared through an adapter only: metrix upgrade"
        )
    own = new.config.data.data
    mine = new.embed(part, data)
    its = old.embed(part, data if data is not None or old.config.data.data == own else own)
    if mine.fingerprint != its.fingerprint:
        raise InvalidInput(
            f"--against: expected the same images in part {part!r} of both runs, got {len(mine):,} and {len(its):,} "
            "others, as the runs split the data in other ways; give data to measure on (--data DATA --part all)"
        )
    x, y = mine.vectors, its.vectors
    sides = dict(zip(SEARCHES, ((y, y), (x, y), (x, x)), strict=True))
    found = measure_across_models(sides, mine.labels, resamples=resamples)
    about = {
        "run": str(new.run.path),
        "against": str(old.run.path),
        "data": data or own,
        "part": part,
        "images": len(mine),
        "classes": len(np.unique(mine.labels)),
    }
    return CrossEvaluation(found, about)
