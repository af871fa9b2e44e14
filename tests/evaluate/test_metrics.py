"""The table of metrics: complete, without doubles, and an unknown name is an error."""

from __future__ import annotations

import numpy as np
import pytest

from metrix.errors import ChoiceError
from metrix.evaluate import clustering, retrieval
from metrix.evaluate.metrics import METRICS, find_metric, metric_name, retrieval_metrics, sort_keys


def test_keys_and_names_are_unique() -> None:
    assert len({metric.key for metric in METRICS}) == len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.description
        assert metric.key.endswith("@k") == metric.name.endswith("@K") == metric.at_k


def test_retrieval_computes_every_metric_of_the_table() -> None:
    x, labels = np.random.default_rng(0).standard_normal((30, 4)), np.arange(30) % 5
    found = retrieval(x, labels, ks=(1, 3), resamples=10)
    keys = {metric.key_at(k) for metric in retrieval_metrics() for k in (1, 3)}
    assert set(found.means) == set(found.intervals) == keys
    assert {metric.key for metric in METRICS} >= {"nmi", "ami"}
    assert clustering(x, labels).to_dict().keys() >= {"nmi", "ami"}


def test_a_table_shows_the_metrics_in_one_order() -> None:
    assert [metric_name(key) for key in sort_keys(["map@2", "map", "precision@2", "recall@2", "map@r"])] == [
        "Recall@2",
        "MAP@R",
        "mAP",
        "Precision@2",
        "mAP@2",
    ]


@pytest.mark.parametrize("key", ["recal@1", "recall@k", "recall@0", "recall", "nmi@4", "map@r@1", ""])
def test_an_unknown_metric_is_an_error(key: str) -> None:
    with pytest.raises(ChoiceError, match="unknown metric"):
        find_metric(key)
    with pytest.raises(ChoiceError, match="recall@k"):
        sort_keys(["map@r", key])
