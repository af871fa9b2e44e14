from __future__ import annotations

import itertools
import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from metrix.data import BalancedSampler, RandomSampler
from metrix.data.item_seeds import Repeat
from metrix.errors import InvalidInput

# Classes of 1, 2, 3, ... 12 images, with labels that have gaps and are not sorted.
LABELS = np.random.default_rng(0).permutation([10 * k for k in range(1, 13) for _ in range(k)])


def balanced(**options: int) -> BalancedSampler:
    return BalancedSampler(LABELS, **{"classes_per_batch": 4, "per_class": 3, **options})


def epoch_of(sampler: BalancedSampler | RandomSampler, epoch: int = 0, start: int = 0) -> list[list[int]]:
    sampler.set_epoch(epoch, start)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return batches


@pytest.mark.parametrize(("classes", "per_class"), list(itertools.product([1, 4, 5, 12], [1, 3, 20])))
def test_every_batch_is_whole_and_every_class_is_visited(classes: int, per_class: int) -> None:
    sampler = BalancedSampler(LABELS, classes, per_class, seed=1)
    needed = -(-12 // classes)
    for epoch in range(3):
        batches = epoch_of(sampler, epoch)
        for batch in batches:
            counts = Counter(LABELS[batch].tolist())
            assert len(counts) == classes
            assert set(counts.values()) == {per_class}
        assert {label for batch in batches[:needed] for label in LABELS[batch].tolist()} == set(LABELS.tolist())


def test_classes_are_visited_evenly() -> None:
    batches = epoch_of(balanced(classes_per_batch=5, batches=12))  # 60 visits of 12 classes
    visits = Counter(label for batch in batches for label in set(LABELS[batch].tolist()))
    assert max(visits.values()) - min(visits.values()) <= 1


def test_a_class_gives_all_its_images_before_one_comes_again() -> None:
    visits: Counter[int] = Counter(itertools.chain(*epoch_of(balanced(batches=30))))
    for label in np.unique(LABELS):
        of_class = [visits[i] for i in np.flatnonzero(label == LABELS).tolist()]
        assert max(of_class) - min(of_class) <= 1


def test_small_classes_repeat_as_evenly_as_can_be_and_others_not_within_a_batch() -> None:
    for batch in epoch_of(balanced(per_class=5, batches=20)):
        counts = Counter(batch)
        for label in set(LABELS[batch].tolist()):
            size = int((label == LABELS).sum())
            of_class = [counts[i] for i in np.flatnonzero(label == LABELS).tolist() if counts[i]]
            assert len(of_class) == min(size, 5)
            assert max(of_class) - min(of_class) <= 1


def test_an_index_that_comes_again_in_an_epoch_says_so() -> None:
    seen: Counter[int] = Counter()
    for index in itertools.chain(*epoch_of(balanced(batches=20))):
        assert getattr(index, "visit", 0) == seen[index]
        assert isinstance(index, Repeat) == (seen[index] > 0)
        seen[index] += 1
    assert max(seen.values()) > 1
    again = pickle.loads(pickle.dumps(Repeat(7, visit=2)))
    assert (again, again.visit) == (7, 2)


def test_the_default_length_is_that_of_the_images_or_of_the_classes() -> None:
    assert len(BalancedSampler(LABELS, 4, 3)) == 7  # 78 images / 12
    assert len(BalancedSampler(LABELS, 4, 100)) == 3  # 12 classes / 4


@pytest.mark.parametrize("make", [balanced, lambda **o: RandomSampler(50, 12, **o)])
def test_seed_and_epoch_decide_everything(make: type[BalancedSampler]) -> None:
    state = np.random.get_state()[1].copy(), torch.get_rng_state().clone()  # noqa: NPY002
    assert epoch_of(make(seed=5), 2) == epoch_of(make(seed=5), 2)
    assert epoch_of(make(seed=5), 2) != epoch_of(make(seed=5), 3)
    assert epoch_of(make(seed=5), 2) != epoch_of(make(seed=6), 2)
    assert np.array_equal(state[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(state[1], torch.get_rng_state())


@pytest.mark.parametrize("make", [balanced, lambda **o: RandomSampler(50, 12, **o)])
def test_a_resumed_epoch_goes_on_where_it_stopped(make: type[BalancedSampler]) -> None:
    whole = epoch_of(make(), 4)
    for start in range(len(whole) + 1):
        resumed = epoch_of(make(), 4, start)
        assert resumed == whole[start:]
        visits = [getattr(i, "visit", 0) for batch in resumed for i in batch]
        assert visits == [getattr(i, "visit", 0) for batch in whole[start:] for i in batch]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("make", [balanced, lambda **o: RandomSampler(50, 12, **o)])
def test_ranks_share_the_same_global_batch(make: type[BalancedSampler], world_size: int) -> None:
    shares = [epoch_of(make(rank=rank, world_size=world_size), 1) for rank in range(world_size)]
    together = [list(itertools.chain(*parts)) for parts in zip(*shares, strict=True)]
    assert together == epoch_of(make(), 1)
    assert {len(share) for rank in shares for share in rank} == {12 // world_size}


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_take_whole_classes(world_size: int) -> None:
    shares = [epoch_of(balanced(rank=rank, world_size=world_size)) for rank in range(world_size)]
    for parts in zip(*shares, strict=True):
        classes = [set(LABELS[part].tolist()) for part in parts]
        assert sum(map(len, classes)) == len(set.union(*classes)) == 4


@pytest.mark.parametrize(("size", "batch"), [(50, 12), (48, 12), (12, 12), (13, 12), (5, 1)])
def test_random_visits_every_image_and_fills_every_batch(size: int, batch: int) -> None:
    batches = epoch_of(RandomSampler(size, batch), 1)
    assert {len(b) for b in batches} == {batch}
    assert all(len(set(b)) == batch for b in batches)
    counts = Counter(itertools.chain(*batches))
    assert set(counts) == set(range(size))
    assert sum(counts.values()) - size < batch


def test_labels_may_be_a_list_an_array_or_a_tensor() -> None:
    expected = epoch_of(BalancedSampler(LABELS, 4, 3))
    assert epoch_of(BalancedSampler(LABELS.tolist(), 4, 3)) == expected
    assert epoch_of(BalancedSampler(torch.from_numpy(LABELS), 4, 3)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_batch": 13}, "from 1 to the number of classes, 12, got 13"),
        ({"classes_per_batch": 0}, "from 1 to the number of classes, 12, got 0"),
        ({"per_class": 0}, "per_class: expected an integer ≥ 1, got 0"),
        ({"batches": 2}, "expected at least 3, to have all 12 classes in an epoch, got 2"),
        ({"world_size": 5}, "at least world_size=5.*got 4"),
        ({"rank": 2, "world_size": 2}, "rank: expected an integer from 0 to 1 .*got 2"),
        ({"rank": -1}, "rank: expected an integer from 0 to 0 .*got -1"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        balanced(**options)


def test_random_sampler_says_what_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="from 1 to the number of examples, 5, got 6"):
        RandomSampler(5, 6)
    with pytest.raises(InvalidInput, match="at least world_size"):
        RandomSampler(9, 3, world_size=4)
    with pytest.raises(InvalidInput, match="start_batch from 0 to 2, got epoch 0, start_batch 3"):
        RandomSampler(6, 3).set_epoch(0, 3)
