"""Duplicates and suspects, planted and found."""

from __future__ import annotations

import numpy as np
import pytest

from metrix.errors import InvalidInput, LabelError
from metrix.search import Index, cleaning, find_duplicates, find_suspects


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
    monkeypatch.setattr(cleaning, "QUERIES", 17)
    monkeypatch.setattr(cleaning, "FIRST_K", 2)
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
        assert given[int(one.nearest[1:])] == one.suggested
    shares = [one.share - one.own_share for one in found]
    assert shares == sorted(shares, reverse=True)


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
    monkeypatch.setattr(cleaning, "FIRST_K", 2)
    (group,) = find_duplicates(Index.build(x), 0.98)
    assert group.ids == (0, 1, 2, 3, 4, 5)
