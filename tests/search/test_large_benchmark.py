"""The benchmarks of large indexes, on small ones."""

from __future__ import annotations

import pytest

pytest.importorskip("faiss")

from benchmarks import __main__ as runner
from benchmarks import large


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"QUERIES": 5, "CHANGED": 3, "BLOCK": 400}.items():
        monkeypatch.setattr(large, name, value)


def test_large_indexes_are_measured_only_on_request() -> None:
    assert not set(runner.LARGE) & set(runner.GROUPS)
    parts = [name for name, _ in runner.parts([*runner.LARGE], False, 1000)]
    assert parts == [*(f"large: {kind}, {data}" for kind, data in large.CASES), "duplicates"]


def test_blocks_are_the_same_each_time() -> None:
    vectors = large.Vectors("clustered", 1000)
    first, second = ([block.sum() for block in vectors.blocks()] for _ in range(2))
    assert [len(block) for block in vectors.blocks()] == [400, 400, 200]
    assert first == second
    assert len(set(first)) == 3


def test_a_large_index_is_built_searched_and_changed() -> None:
    rows = {row["name"].split(": ")[1]: row for row in large.run("sq8", "clustered", 1000)}
    names = ["building", "recall@10", "one query, warm", "5 queries at once", "memory to search"]
    assert list(rows) == [*names, "adding 3", "deleting 3"]
    assert rows["recall@10"]["value"] >= 0.98  # all codes, and then the vectors
    assert all(row["value"] > 0 for row in rows.values())


def test_identical_vectors_are_the_only_group() -> None:
    rows = large.duplicates(1000)
    assert [row["target"] for row in rows] == ["≤ 2", None]
    assert rows[0]["reached"]


def test_a_full_disk_is_said_before_anything_is_built() -> None:
    with pytest.raises(SystemExit, match=r"disk: expected .* GB free"):
        large.run("sq8", "random", 10**12)
