"""`metrix compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_differences_are_paired_over_the_same_queries(metrix: Any, run: Path, other_run: Path) -> None:
    from metrix import evaluate
    from metrix.runs.trained_model import open_run

    outcome = metrix("compare", run, other_run, "--json", "--ks", "1,2", "--bootstrap-over", "queries")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert found["baseline"] == str(run)
    first, second = found["runs"]
    assert first["against_baseline"] is None

    per_query = []
    for path in (run, other_run):
        test = open_run(path).embed("test")
        per_query.append(evaluate.retrieval(test.vectors, test.labels, ks=(1, 2)).per_query["recall@1"])
    difference = second["against_baseline"]["differences"]["recall@1"]
    assert difference["difference"] == pytest.approx(np.mean(per_query[1] - per_query[0]), abs=1e-12)
    assert second["against_baseline"]["over"] == "queries"
    assert difference["low"] <= difference["difference"] <= difference["high"]
    # Sharper than two separate samples: what both find or both miss does not vary.
    spread = np.sqrt(sum(values.var() / len(values) for values in per_query))
    assert difference["high"] - difference["low"] < 2 * 1.96 * spread


def test_only_settings_that_differ_are_told(metrix: Any, run: Path, other_run: Path) -> None:
    found = metrix("compare", run, other_run, "--json", "--bootstrap", "10").json
    assert found["runs"][0]["settings"] == {"holdout": 0.0, "max_steps": 20, "seed": 0}
    assert found["runs"][1]["settings"] == {"holdout": 0.1, "max_steps": 3, "seed": 1}
    out = metrix("compare", run, other_run, "--bootstrap", "10").out
    for word in ("max_steps", "Recall@1", "Difference to", "interval"):
        assert word in out, out


def test_a_run_does_not_differ_from_itself(metrix: Any, run: Path) -> None:
    found = metrix("compare", run, run, "--json", "--bootstrap", "50").json["runs"][1]["against_baseline"]
    assert all(d["difference"] == d["low"] == d["high"] == 0 for d in found["differences"].values())
    assert not any(d["significant"] for d in found["differences"].values())


def test_different_test_images_are_refused(refused: Any, run: Path, tmp_path: Path, metrix: Any) -> None:
    import shutil

    from metrix.train.run_folder import RunFolder

    copy = tmp_path / "elsewhere"
    shutil.copytree(run, copy)
    folder = RunFolder(copy)
    folder.write_text("config.yaml", folder.config.with_values({"split_seed": 5}).to_yaml())
    refused("compare", run, copy, words=("different test data", "--data"))
    refused("compare", run, words=("two or more",))
    refused("compare", run, tmp_path / "none", words=("is no run",))


def test_advice(metrix: Any, refused: Any, tmp_path: Path) -> None:
    from tests.runs.test_advice import pairs

    runs = pairs(tmp_path, [0.50, 0.51, 0.52], [0.53, 0.55, 0.57])
    told = metrix("compare", "--advise", *runs)
    assert told.code == 0, told.err
    for words in ("seed", "+4.0 ± 2.5", "Mixup helped"):
        assert words in told.out
    assert metrix("compare", "--advise", *runs, "--json").json[0]["decided"] is True
    refused("compare", "--advise", *runs[:3], words=("no clean runs",))
