"""Divide and Conquer: batches of one cluster train one slice, the last epochs the whole."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from metrix import Clean, Embedder, losses
from metrix.data import BalancedSampler, RandomSampler
from metrix.errors import InvalidInput
from metrix.train import Config, Interrupted, train
from metrix.train import divide_and_conquer as dividing
from metrix.train.config import parse_config
from metrix.train.divide_and_conquer import DividedSampler, Slices, match_clusters
from tests.train.test_crash import Sends, _same

# 16 classes, of 1, 2, ... 16 images; images of a class are in clusters 0 and 1, or 2 and 3
LABELS = np.random.default_rng(0).permutation([k for k in range(16) for _ in range(k + 1)])
CLUSTERS = 2 * (LABELS % 2) + np.random.default_rng(1).integers(2, size=len(LABELS))
VALUES = {
    "loss": "margin",
    "scheme": "divide-and-conquer",
    "clusters": 4,
    "finetune_epochs": 1,
    "epochs": 4,
    "max_steps": None,
    "holdout": 0.0,
}


@pytest.fixture
def config(small: Config) -> Config:
    """4 epochs of 8 steps: clusters at 0 and 2, the last one whole."""
    return small.with_values(VALUES)


def epoch_of(sampler: DividedSampler, epoch: int = 0, start: int = 0) -> list[list[int]]:
    sampler.set_epoch(epoch, start)
    return list(sampler)


def divided(whole: BalancedSampler | RandomSampler) -> DividedSampler:
    sampler = DividedSampler(whole, LABELS)
    sampler.divide(CLUSTERS)
    return sampler


WHOLES = {
    "balanced": lambda **o: BalancedSampler(LABELS, 4, 3, **o),
    "random": lambda **o: RandomSampler(len(LABELS), 12, **o),
}


@pytest.mark.parametrize("kind", WHOLES)
def test_a_batch_is_of_one_cluster(kind: str) -> None:
    sampler = divided(WHOLES[kind]())
    turns: Counter[int | None] = Counter()
    for epoch in range(3):
        batches = epoch_of(sampler, epoch)
        assert len(batches) == WHOLES[kind]().batches_per_epoch
        for number, batch in enumerate(batches):
            (cluster,) = set(CLUSTERS[batch].tolist())
            assert cluster == sampler.learner(number)
            assert len(set(LABELS[batch].tolist())) >= 2
            assert len(batch) == 12
            turns[cluster] += 1
        for start in (1, 5):
            resumed = epoch_of(sampler, epoch, start)
            assert resumed == batches[start:]
            assert [getattr(i, "visit", 0) for b in resumed for i in b] == [
                getattr(i, "visit", 0) for b in batches[start:] for i in b
            ]
    assert set(turns) == {0, 1, 2, 3}
    assert max(turns.values()) - min(turns.values()) <= 1


def test_an_image_alone_of_its_class_in_its_cluster_waits() -> None:
    sampler = divided(BalancedSampler(LABELS, 4, 3, batches=200))
    seen = {int(i) for batch in epoch_of(sampler) for i in batch}
    alone = {i for i in range(len(LABELS)) if ((LABELS[i] == LABELS) & (CLUSTERS[i] == CLUSTERS)).sum() == 1}
    assert alone
    assert seen == set(range(len(LABELS))) - alone


def test_an_image_that_comes_again_says_so() -> None:
    visits: Counter[int] = Counter()
    for batch in epoch_of(divided(BalancedSampler(LABELS, 4, 3, batches=100))):
        for index in batch:
            assert getattr(index, "visit", 0) == visits[index]
            visits[index] += 1


def test_a_cluster_of_one_class_waits_and_without_any_other_nothing_is_divided() -> None:
    sampler = DividedSampler(WHOLES["balanced"](), LABELS)
    sampler.divide(np.where(LABELS == 15, 1, 0))
    assert {sampler.learner(n) for n in range(9)} == {0}
    assert 15 not in {LABELS[i] for batch in epoch_of(sampler) for i in batch}
    sampler.divide(LABELS)
    assert sampler.learner(0) is None
    assert epoch_of(sampler, 3) == epoch_of(DividedSampler(WHOLES["balanced"](), LABELS), 3)
    whole = WHOLES["balanced"]()
    whole.set_epoch(3)
    assert epoch_of(sampler, 3) == list(whole)


@pytest.mark.parametrize("kind", WHOLES)
def test_ranks_share_the_same_global_batch(kind: str) -> None:
    parts = [epoch_of(divided(WHOLES[kind](rank=rank, world_size=2)), 1) for rank in range(2)]
    together = [a + b for a, b in zip(*parts, strict=True)]
    for batch in together:
        assert len(set(CLUSTERS[batch].tolist())) == 1
    if kind == "random":
        assert together == epoch_of(divided(WHOLES[kind]()), 1)


def test_slices_are_those_of_the_whole_embedding() -> None:
    class Network(nn.Module):
        def features(self, x: Tensor) -> Tensor:
            return x

        def head(self, z: Tensor) -> Tensor:
            return nn.functional.normalize(z, dim=1)

    slices, x = Slices(Network(), 3), torch.randn(5, 12)
    assert torch.equal(slices.head(x), nn.functional.normalize(x, dim=1))
    slices.learner = 2
    torch.testing.assert_close(slices.head(slices.features(x)), nn.functional.normalize(x[:, 6:9], dim=1))


def test_clusters_keep_their_numbers() -> None:
    rng = np.random.default_rng(0)
    before = rng.integers(8, size=500)
    renamed = rng.permutation(8)[before]
    assert np.array_equal(match_clusters(renamed, before, 8), before)
    noisy = np.where(rng.random(500) < 0.2, rng.integers(8, size=500), renamed)
    assert np.mean(match_clusters(noisy, before, 8) == before) > 0.75


def spied(patch: pytest.MonkeyPatch) -> tuple[list[int], list[tuple[int | None, int]]]:
    """The seeds of clusterings, and the learner and width of the embedding of every step."""
    clusterings: list[int] = []
    steps: list[tuple[int | None, int]] = []
    k_means, head = dividing.k_means, Slices.head

    def counted(unit: Any, clusters: int, seed: int, **options: int) -> Any:
        clusterings.append(seed)
        return k_means(unit, clusters, seed, **options)

    def recorded(self: Slices, z: Tensor) -> Tensor:
        out = head(self, z)
        steps.append((self.learner, out.shape[1]))
        return out

    patch.setattr(dividing, "k_means", counted)
    patch.setattr(Slices, "head", recorded)
    return clusterings, steps


@pytest.mark.parametrize("source", [{}, {"freeze_to": "stage2", "views": 2}, {"workers": 1}, {"sampler": "random"}])
def test_a_run(source: dict[str, Any], config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clusterings, steps = spied(monkeypatch)
    run = train(config.with_values(source), tmp_path / "run")
    per_epoch = len(steps) // 4
    assert clusterings == [0, 2]
    assert {width for _, width in steps[: 3 * per_epoch]} == {2}
    assert len({learner for learner, _ in steps[: 3 * per_epoch]}) > 2
    assert set(steps[3 * per_epoch :]) == {(None, 8)}
    saved = load_file(run.last)["scheme/clusters"]
    assert sorted(saved.unique().tolist()) == [0, 1, 2, 3]
    assert run.results is not None
    assert 0.0 < run.results["test"]["recall"]["1"] <= 1.0


def test_a_batch_trains_its_slice_and_the_trunk_alone() -> None:
    torch.manual_seed(0)
    embedder = Embedder("glyphs-cnn", 8)
    slices = Slices(embedder, 2)
    slices.learner = 1
    out = Clean(losses.Margin()).step(slices, torch.rand(12, 1, 32, 32), torch.arange(12) % 4)
    out.loss.backward()
    assert out.embeddings.shape == (12, 2)
    gradient = embedder.head.linear.weight.grad.abs().amax(1)
    assert gradient[2:4].min() > 1e-3
    assert gradient[[0, 1, 4, 5, 6, 7]].max() < 1e-6
    assert all(p.grad.any() for p in embedder.backbone.parameters())


def test_an_interrupted_run_goes_on_to_the_same_end(config: Config, tmp_path: Path) -> None:
    whole = train(config, tmp_path / "whole")
    for at in (3, 8, 16, 18, 26):  # between two clusterings, before and after the second, when whole
        with pytest.raises(Interrupted):
            train(config, tmp_path / str(at), watcher=Sends(at, signal.SIGINT))
        _same(train(resume=tmp_path / str(at)), whole)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mixup": ["embed"], "loss": "contrastive"}, "slices train without mixup"),
        ({"loss": "proxy-anchor", "mixup": []}, "proxies or centres have the length of the whole embedding"),
        ({"loss": "soft-triple"}, "a loss of pairs, such as margin"),
        ({"dim": 10}, "dim: expected a multiple of clusters=4.*got 10"),
        ({"clusters": 8}, "clusters: expected at most 4 for 8 training classes.*got 8"),
        ({"finetune_epochs": 4}, "finetune_epochs: expected fewer than the 4 complete epochs, got 4"),
        (
            {"max_steps": 12, "finetune_epochs": None},
            "finetune_epochs: expected fewer than the 1 complete epochs, got 1",
        ),
    ],
)
def test_what_cannot_be_divided_begins_no_run(
    values: dict[str, Any], message: str, config: Config, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        train(config.with_values(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_scheme_can_be_given_as_the_loss() -> None:
    """It is the margin loss of its authors, divided, without mixup."""
    config = Config().with_values({"loss": "divide-and-conquer", "margin": 0.3})
    assert (config.loss.loss, config.loss.margin, config.train.scheme) == ("margin", 0.3, "divide-and-conquer")
    assert config.mixing.mixup == ()
    assert parse_config({"loss": {"loss": "divide-and-conquer", "margin": 0.3}}) == config
