"""Duplicates and suspects, planted and found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from metrix.errors import InvalidInput, LabelError
from metrix.search import Index, duplicates, find_duplicates, find_suspects


def planted(seed: int = 0) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    labels = [f"c{i % 6}" for i in range(120)]
    x = rng.standard_normal((6, 16))[np.arange(120) % 6] + 0.3 * rng.standard_normal((120, 16))
    return x, labels


def literal_groups(x: np.ndarray, threshold: float) -> list[set[int]]:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    near = unit @ unit.T >= threshold
    groups: list[set[int]] = []
    for i, j in zip(*np.nonzero(np.triu(near, 1)), strict=True):
        touching = [group for group in groups if {i, j} & group]
        groups = [group for group in groups if group not in touching] + [set().union({i, j}, *touching)]
    return groups


@pytest.mark.parametrize("threshold", [0.85, 0.95, 0.999])
def test_duplicates_are_all_pairs_above_the_threshold(threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = planted()
    x[7], x[50], x[51] = x[3], x[3] * 2, x[3] + 1e-4  # a group of four
    monkeypatch.setattr(duplicates, "QUERIES", 17)
    monkeypatch.setattr(duplicates, "FIRST_K", 2)
    seen: list[tuple[int, int]] = []
    found = find_duplicates(Index.build(x), threshold, lambda done, of: seen.append((done, of)))
    assert {frozenset(group.ids) for group in found} == {frozenset(map(int, g)) for g in literal_groups(x, threshold)}
    assert all(threshold <= group.similarity <= 1.001 for group in found)
    assert sorted(found, key=lambda group: -len(group.ids))[0] == found[0]
    assert seen[-1] == (120, 120)


def test_suspects_are_the_labels_that_were_swapped() -> None:
    x, labels = planted()
    wrong = {5: "c1", 40: "c0", 77: "c3"}
    given = [wrong.get(i, name) for i, name in enumerate(labels)]
    index = Index.build(x, [f"p{i}" for i in range(120)], columns={"label": given})
    found = find_suspects(index, k=8)
    assert {one.id for one in found} == {f"p{i}" for i in wrong}
    for one in found:
        assert one.suggested == labels[int(one.id[1:])]
        assert one.share > 0.5 > one.own_share
        assert [near.label for near in one.neighbours].count(one.suggested) > len(one.neighbours) / 2
    surprises = [one.surprise for one in found]
    assert surprises == sorted(surprises, reverse=True)


def test_items_without_a_label_are_nobodys_suspect() -> None:
    x, labels = planted()
    given = [None if i % 2 else name for i, name in enumerate(labels)]
    assert find_suspects(Index.build(x, columns={"label": given})) == []
    with pytest.raises(LabelError, match="with labels"):
        find_suspects(Index.build(x))
    with pytest.raises(InvalidInput, match="cosine"):
        find_duplicates(Index.build(x), 2.0)


def test_groups_that_nearest_neighbours_alone_do_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trios, tight in themselves and near-identical to each other: the first neighbours are all of one trio."""
    rng = np.random.default_rng(0)
    x = np.ones((6, 8)) + 1e-4 * rng.standard_normal((6, 8))
    x[3:, 0] += 0.5
    monkeypatch.setattr(duplicates, "FIRST_K", 2)
    (group,) = find_duplicates(Index.build(x), 0.98)
    assert group.ids == (0, 1, 2, 3, 4, 5)


def test_a_large_group_takes_memory_that_grows_with_the_items_alone() -> None:
    """Every pair of a group of 5,000 would be 25 million, of about 150 bytes each."""
    import tracemalloc

    rng = np.random.default_rng(0)
    x = rng.standard_normal((8000, 16)).astype(np.float32)
    x[1000:6000] = x[1000]
    index = Index.build(x)
    tracemalloc.start()
    (group,) = find_duplicates(index, 0.999)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert group.ids == tuple(range(1000, 6000))
    assert group.similarity == pytest.approx(1.0, abs=1e-6)
    assert peak < 200e6


def test_a_threshold_follows_the_model() -> None:
    """Vectors that crowd together need a higher one; both find the planted copy and nothing else."""
    rng = np.random.default_rng(0)
    for spread in (0.05, 0.5, 5.0):
        x = np.ones((200, 32)) + spread * rng.standard_normal((200, 32))
        x[7] = x[3] + 0.02 * spread * rng.standard_normal(32)
        index = Index.build(x)
        assert [group.ids for group in find_duplicates(index)] == [(3, 7)]
    crowded, wide = (
        duplicates.choose_duplicate_threshold(Index.build(np.ones((200, 32)) + s * rng.standard_normal((200, 32))))
        for s in (0.05, 5.0)
    )
    assert wide < 0.98 < crowded < 1


def test_a_copy_far_from_all_others_is_found_below_the_threshold() -> None:
    """A half-size copy at 0.9799 whose next neighbour is at 0.51."""
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.standard_normal((40, 40)))[0][:40]  # orthogonal: usually 1 - 0 apart
    near = np.repeat(x[:20], 2, axis=0) + 0.12 * rng.standard_normal((40, 40))  # a class of two each, about 0.7 apart
    copy = near[4] / np.linalg.norm(near[4]) + 0.2 * x[39]
    index = Index.build(np.concatenate([near[:5], near[6:], copy[None]]))
    threshold = duplicates.choose_duplicate_threshold(index)
    found = find_duplicates(index)
    assert [group.ids for group in found] == [(4, 39)]
    assert 0.9 < found[0].similarity < 0.99
    assert found[0].similarity < threshold or find_duplicates(index, threshold) == found
    assert find_duplicates(index, 0.999) == []


def test_what_a_model_confuses_anyway_surprises_less_than_a_wrong_label() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((6, 16))
    centres[1] = centres[0] + 0.05 * rng.standard_normal(16)  # two classes that cannot be told apart
    labels = [f"c{n % 6}" for n in range(240)]
    x = centres[np.arange(240) % 6] + 0.3 * rng.standard_normal((240, 16))
    labels[50] = "c4"  # of c2: planted
    found = find_suspects(Index.build(x, columns={"label": labels}), k=9)
    assert len(found) > 5  # c0 and c1 are mixed up
    assert found[0].id == 50
    assert found[0].suggested == "c2"
    assert found[0].surprise > 2 * found[1].surprise


@pytest.mark.parametrize("threshold", [None, 0.99])
def test_mirrored_copies_are_found_by_the_vectors_of_mirrored_images(threshold: float | None) -> None:
    """A model for which an image and its mirror image are far apart; item 9 is the mirror image of item 4."""
    rng = np.random.default_rng(0)
    x, reflection = rng.standard_normal((30, 16)), np.linalg.qr(rng.standard_normal((16, 16)))[0]
    reflection = reflection @ np.diag([1.0, -1.0] * 8) @ reflection.T  # its own inverse, as mirroring is
    x[9] = x[4] @ reflection + 0.001 * rng.standard_normal(16)
    x[20] = x[21] * 2  # a plain copy
    index, asked = Index.build(x), []

    def mirror(ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        asked.append(list(ids))
        kept = np.array([n for n, one in enumerate(ids) if one != 7], dtype=np.int64)  # 7 cannot be read
        vectors = x[[ids[n] for n in kept]] @ reflection
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), kept

    assert [group.ids for group in find_duplicates(index, threshold)] == [(20, 21)]
    found = find_duplicates(index, threshold, mirror=mirror)
    assert {group.ids for group in found} == {(20, 21), (4, 9)}
    assert all(0.99 < group.similarity <= 1.001 for group in found)
    assert asked == [list(range(30))]
