from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from pathlib import Path

import pytest
import torch

from metrix import data


def epoch(part: data.Part, number: int, workers: int = 0, start: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    sampler = data.BalancedSampler(part.labels, classes_per_batch=2, per_class=4)
    part.set_epoch(number)
    sampler.set_epoch(number, start)
    return list(data.loader(part, sampler, workers=workers))


def same(ours: list[tuple[torch.Tensor, torch.Tensor]], theirs: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    assert len(ours) == len(theirs) > 0
    return all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(ours, theirs, strict=True))


@pytest.fixture
def train(photos: Path) -> data.Part:
    return data.open(photos).train.with_transform(data.train_transform(12), seed=4)


def test_labels_count_from_zero_without_gaps(photos: Path) -> None:
    dataset = data.open(photos).hold_out(0.3)
    for part in (dataset.train, dataset.val, dataset.test):
        assert sorted(set(part.labels.tolist())) == list(range(part.num_classes))
        names = [part.class_names[k] for k in part.labels.tolist()]
        assert [path.split("/")[0] for path in part.paths] == names
    assert not {*dataset.train.class_names, *dataset.val.class_names} & set(dataset.test.class_names)


def test_batches_do_not_depend_on_processes_or_the_start(train: data.Part) -> None:
    whole = epoch(train, 1)
    assert same(whole, epoch(train, 1))
    assert same(whole, epoch(train, 1, workers=2))
    assert same(whole[1:], epoch(train, 1, start=1))


def test_views_differ_by_epoch_seed_and_visit(train: data.Part) -> None:
    first, _ = train[3]
    assert torch.equal(first, train[3][0])
    assert not torch.equal(first, train[data.Repeat(3, 1)][0])
    assert not torch.equal(first, train.with_transform(train.transform, seed=5)[3][0])
    train.set_epoch(1)
    assert train.epoch == 1
    assert not torch.equal(first, train[3][0])
    train.set_epoch(0)
    assert torch.equal(first, train[3][0])


def test_repeats_in_a_batch_are_different_views(train: data.Part) -> None:
    """Classes have 3 images and give 4 to a batch."""
    images, _ = epoch(train, 0)[0]
    assert len({tuple(image.flatten().tolist()) for image in images}) > 6


def test_running_processes_see_the_new_epoch(train: data.Part) -> None:
    sampler = data.BalancedSampler(train.labels, 2, 4)
    loader = data.loader(train, sampler, workers=1)  # its process stays for all epochs
    first = list(loader)
    train.set_epoch(1)
    second = list(loader)
    assert not same(first, second)
    sampler.set_epoch(0)
    assert same(second, list(data.loader(train, sampler)))


def test_global_random_state_is_left_alone(train: data.Part) -> None:
    before = torch.get_rng_state()
    epoch(train, 0)
    assert torch.equal(before, torch.get_rng_state())


def test_any_callable_is_a_transform(train: data.Part) -> None:
    from torchvision.transforms import v2

    plain = v2.Compose([v2.RandomResizedCrop(12, antialias=True), v2.RandomHorizontalFlip()])
    part = train.with_transform(plain, seed=4)
    ours, theirs = train[2][0], part[2][0]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.IMAGENET_MEAN, data.IMAGENET_STD))
    assert torch.allclose(ours * std + mean, theirs / 255, atol=1e-5)


def test_a_plain_dataloader_reads_the_same(train: data.Part) -> None:
    plain = torch.utils.data.DataLoader(train, batch_size=4)
    assert same(list(plain), list(data.loader(train, batch_size=4)))


def test_without_a_sampler_all_images_come_in_order(photos: Path) -> None:
    test = data.open(photos).test.with_transform(data.inference_transform(12))
    labels = torch.cat([labels for _, labels in data.loader(test, batch_size=4)])
    assert torch.equal(labels, test.labels)


def test_a_part_keeps_its_transform_to_itself(train: data.Part) -> None:
    other = train.with_transform(None)
    other.set_epoch(7)
    assert train.epoch == 0
    assert train.transform is not None
    assert other[0][0].dtype == torch.uint8


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
def test_parts_travel_to_other_processes(photos: Path, cache: str) -> None:
    part = data.open(photos, cache=cache).train
    copy = pickle.loads(pickle.dumps(part))
    assert all(torch.equal(part[n][0], copy[n][0]) for n in range(len(part)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="loader processes are not forked here")
def test_a_signal_waits_until_all_loader_processes_are_started(train: data.Part, monkeypatch) -> None:
    """A handler that raises would otherwise leave some of them half started."""
    started: list[int | None] = []
    start = multiprocessing.process.BaseProcess.start

    def start_and_interrupt(process: multiprocessing.process.BaseProcess) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        start(process)
        started.append(process.pid)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start_and_interrupt)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        iter(data.loader(train, workers=2))
    assert len(started) == 2
    assert signal.getsignal(signal.SIGINT) is handler
