"""A collapse of the embedding is noticed once, and healthy training is not mistaken for one."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F

from metrix.train import collapse, train
from metrix.train.collapse import CollapseWatch, measure_separation


def test_separation_is_the_literal_one():
    torch.manual_seed(0)
    x, y = torch.randn(20, 4), torch.arange(20) % 5
    f = F.normalize(x.double(), dim=1)
    pairs = [(i, j) for i in range(20) for j in range(20) if i != j]
    positive = torch.stack([f[i] @ f[j] for i, j in pairs if y[i] == y[j]])
    negative = torch.stack([f[i] @ f[j] for i, j in pairs if y[i] != y[j]])
    spread = ((positive.var() + negative.var()) / 2) ** 0.5
    expected = [positive.mean(), negative.mean(), (positive.mean() - negative.mean()) / spread]
    assert measure_separation(x, y)[:3] == pytest.approx([float(v) for v in expected], abs=1e-5)


def test_equal_embeddings_have_no_separation_and_a_batch_of_one_class_is_not_measured():
    assert measure_separation(torch.ones(6, 4), torch.arange(6) // 2)[2] == 0.0
    assert measure_separation(torch.randn(6, 4), torch.zeros(6)) is None
    assert measure_separation(torch.randn(6, 4), torch.arange(6)) is None


def feed(measurements):
    watch = CollapseWatch()
    return watch, [watch.add(list(m), 10 * n + 1, 1) for n, m in enumerate(measurements)]


def test_a_collapse_is_told_once_with_its_figures():
    watch, told = feed([(0.6, 0.2, 2.0)] + [(0.981, 0.98, 0.3)] * 25)
    assert [n for n, text in enumerate(told) if text] == [10]
    for word in ("0.981", "0.980", "separation 0.30", "first step 2.00", "--lr", "--head-init whiten", "step 101"):
        assert word in told[10]
    assert watch.to_dict()["recovered"] is False
    for _ in range(collapse.WINDOW):
        watch.add([0.9, 0.1, 3.0], 300, 2)
    assert watch.to_dict()["recovered"] is True


# the first two were measured on glyphs from random weights, by steps of ten
HEALTHY = {
    "multi-similarity": [(0.95, 0.92, 1.3), (0.92, 0.24, 4.1), (0.95, 0.03, 5.9)] + [(0.98, 0.05, 8.4)] * 20,
    "a learning rate of 0.3": [(0.952, 0.920, 1.32), (0.995, 0.951, 1.13), (0.997, 0.932, 1.16), (0.995, 0.9, 1.4)]
    + [(0.992, 0.839, 1.78), (0.987, 0.757, 1.87), (0.979, 0.495, 2.72)] * 6,
    "a network from scratch, nearly collapsed at first": [(0.99, 0.985, 0.8)] * 5 + [(0.8, 0.3, 2.0)] * 30,
    "one that learns slowly": [(0.99, 0.985, 0.8 + 0.01 * n) for n in range(40)],
    "one that stays where it began": [(0.99, 0.985, 0.8)] * 40,
    "a short plateau": [(0.9, 0.1, 2.0)] * 3 + [(0.98, 0.98, 0.0)] * 5 + [(0.9, 0.1, 2.0)] * 20,
    "a pretrained network": [(0.5, 0.2, 1.5)] * 3 + [(0.9, 0.2, 4.0)] * 30,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_training_is_not_warned_of(name):
    watch, told = feed(HEALTHY[name])
    assert not any(told)
    assert watch.to_dict() is None


def test_the_whole_way_to_the_results(small, tmp_path, monkeypatch):
    healthy = train(small, tmp_path / "healthy")
    assert healthy.results["collapse"] is None
    assert healthy.results["trained_parameters"] > 0
    assert healthy.results["peak_memory"]["bytes"] > 2**20

    monkeypatch.setattr(collapse, "EVERY", 1)
    monkeypatch.setattr(collapse, "WINDOW", 3)
    monkeypatch.setattr(collapse, "measure_separation", lambda embeddings, labels: torch.tensor([0.99, 0.99, 0.0, 1.0]))
    run = train(small, tmp_path / "collapsed")
    assert run.results["collapse"] == {
        "step": 3,
        "epoch": 1,
        "positive_similarity": 0.99,
        "negative_similarity": 0.99,
        "separation": 0.0,
        "separation_at_first_step": 0.0,
        "recovered": False,
    }
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert sum("collapse" in line for line in lines) == 1


def test_an_embedding_that_really_collapses(small, tmp_path, monkeypatch):
    """All embeddings are drawn to one point, and weight decay takes what still tells them apart."""
    from metrix import losses

    monkeypatch.setattr(collapse, "EVERY", 1)
    monkeypatch.setattr(collapse, "WINDOW", 5)
    pull = losses.GenericLoss(rho_pos=lambda s: 1.0 - s, rho_neg=lambda s: 1.0 - s)
    monkeypatch.setattr("metrix.train.state.build_loss", lambda *_: pull)
    settings = {"mixup": (), "lr": 0.02, "weight_decay": 25.0, "epochs": 8, "max_steps": 40}
    run = train(small.with_values(settings), tmp_path / "run")
    assert run.results["collapse"] is not None
    assert run.results["collapse"]["positive_similarity"] > 0.9
    assert not run.results["collapse"]["recovered"]
