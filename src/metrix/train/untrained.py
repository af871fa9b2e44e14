"""Whether training beat the untrained network, and what to try where it did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TRY = "a lower learning rate (--lr), --freeze-to, or --head-init whiten"


def compare_with_untrained(metrics: Sequence[dict[str, Any]], results: dict[str, Any]) -> dict[str, Any]:
    """Recall@1 before training and the best after it, for `results.json`; empty where either was not measured.

    Args:
        metrics: the lines of metrics.jsonl
        results: the other results, with `test`

    Returns:
        `untrained`: `on` (the part measured: `val`, which selects the epoch, or `test`), `before`, `after`, and
        whether training beat the untrained network (`beaten`).
    """
    validated = {line["epoch"]: float(line["val"]["recall"]["1"]) for line in metrics if "val" in line}
    if 0 in validated and len(validated) > 1:
        after = max(value for epoch, value in validated.items() if epoch > 0)
        return {"untrained": {"on": "val", "before": validated[0], "after": after, "beaten": after > validated[0]}}
    before, test = results.get("untrained_test"), results.get("test")
    if before is None or test is None or not results.get("steps"):
        return {}
    first, last = (float(found["recall"]["1"]) for found in (before, test))
    return {"untrained": {"on": "test", "before": first, "after": last, "beaten": last > first}}


def describe_harm(results: dict[str, Any]) -> str:
    """A sentence for runs in which training did not beat the untrained network, and what to try; else empty.

    >>> found = {"untrained": {"on": "val", "before": 0.947, "after": 0.94, "beaten": False}, "best_epoch": 0}
    >>> describe_harm(found).partition(";")[0]
    'no epoch beat the untrained network (Recall@1 94.7 on the validation classes, at most 94.0 after training)'
    """
    found = results.get("untrained")
    if not found or found["beaten"]:
        return ""
    before, after = 100 * found["before"], 100 * found["after"]
    if found["on"] == "test":
        return (
            f"training did not beat the untrained network (Recall@1 {before:.1f} on the unseen classes, {after:.1f} "
            f"after training); try {TRY}, or --epochs 0, which saves the untrained network"
        )
    kept = "the model is the untrained network" if results.get("best_epoch") == 0 else "the model is a trained one"
    return (
        f"no epoch beat the untrained network (Recall@1 {before:.1f} on the validation classes, at most {after:.1f} "
        f"after training); {kept}; try {TRY}"
    )
