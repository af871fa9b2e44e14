from __future__ import annotations

import numpy as np
import pytest
import torch

from metrix.data.item_seeds import item_keys, seed_torch, uniform


def test_numbers_differ_in_every_part_of_the_key_and_are_spread_evenly() -> None:
    keys = [item_keys(seed, epoch, range(50), visit) for seed in range(3) for epoch in range(3) for visit in range(3)]
    assert len(np.unique(uniform(np.concatenate(keys), 1))) == 50 * 27
    numbers = uniform(item_keys(0, 0, range(20_000)), 4)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.abs(numbers.mean(axis=0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(numbers.T) - np.eye(4)).max() < 0.03


def test_numbers_are_those_of_philox() -> None:
    philox = np.random.Philox(key=[3, 5], counter=[0, 0, 2, 17])  # seed, epoch; visit, index
    assert np.array_equal(uniform(item_keys(3, 5, [17], [2]), 9)[0], np.random.Generator(philox).random(9))


def test_numbers_of_an_item_do_not_depend_on_the_others() -> None:
    keys = item_keys(-1, 7, [4, 2, 9], [0, 3, 1])
    together = uniform(keys, 5)
    for n in range(3):
        assert np.array_equal(uniform(keys[n : n + 1], 5)[0], together[n])


def test_seeding_torch_leaves_the_global_state_alone() -> None:
    (key,) = item_keys(2**63 - 1, 0, [0])
    before = torch.get_rng_state()
    with seed_torch(key):
        first = torch.rand(3)
    with seed_torch(key):
        assert torch.equal(first, torch.rand(3))
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(RuntimeError, match="stop"), seed_torch(key):
        raise RuntimeError("stop")
    assert torch.equal(before, torch.get_rng_state())
