"""Compressed vectors: codes against quantisation in NumPy, the table, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metrix.errors import ChoiceError, InvalidInput
from metrix.runs.compression import measure_compression
from metrix.runs.evaluation import Examples
from metrix.search.compression import CodeSearcher, compress, parse_kinds
from tests.command_line import metrix
from tests.trained_runs import own_copy


def clouds(classes: int = 20, each: int = 15, dim: int = 48, spread: float = 1.1) -> Examples:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    vectors = rng.normal(size=(classes, dim))[labels] + spread * rng.normal(size=(len(labels), dim))
    return Examples((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels)


def recall_at_1(similarity: np.ndarray, labels: np.ndarray) -> float:
    similarity = similarity.astype(np.float64)
    np.fill_diagonal(similarity, -np.inf)
    return float(np.mean(labels[similarity.argmax(axis=1)] == labels))


def measured(examples: Examples, kind: str, dim: int = 48) -> float:
    found = measure_compression(examples, [kind.split(",")[0]], [dim], resamples=0)
    (row,) = (row for row in found.rows if (row.codes.kind, row.dim) == (kind, dim))
    return row.retrieval.means["recall@1"]


@pytest.mark.parametrize("dim", [48, 12])
def test_codes_of_a_byte_are_those_of_numpy(dim: int) -> None:
    examples = clouds()
    x = examples.vectors[:, :dim] / np.linalg.norm(examples.vectors[:, :dim], axis=1, keepdims=True)
    low, high = x.min(axis=0), x.max(axis=0)
    steps = np.floor((x - low) / (high - low) * 255)
    decoded = low + (steps + 0.5) / 255 * (high - low)
    assert measured(examples, "sq8", dim) == pytest.approx(recall_at_1(x @ decoded.T, examples.labels), abs=1e-9)
    (codes,) = compress(x.astype(np.float32), "sq8")
    assert codes.bytes == dim


def test_bits_are_those_of_numpy() -> None:
    examples = clouds(classes=6, each=15)  # fewer than are compared again
    x, n = examples.vectors, len(examples.vectors)
    signs = np.where(x > 0, 1.0, -1.0)
    alone, rescored = compress(x, "binary")
    assert (alone.bytes, rescored.bytes) == (6, 6)
    differing = (signs[:, None] != signs[None]).sum(axis=2)
    found = CodeSearcher(alone, x).search_rows(np.arange(n), n)
    by_distance = np.take_along_axis(differing, found, axis=1)
    assert (np.diff(by_distance, axis=1) >= 0).all()  # equal ones in any order
    assert np.array_equal(np.sort(found, axis=1), np.tile(np.arange(n), (n, 1)))
    found = CodeSearcher(rescored, x).search_rows(np.arange(n), n)
    assert (np.diff(np.take_along_axis(x @ signs.T, found, axis=1), axis=1) <= 1e-5).all()
    assert measured(examples, "binary, rescored") == pytest.approx(recall_at_1(x @ signs.T, examples.labels), abs=0.02)


def test_neighbours_in_the_list_have_no_advantage_among_equals() -> None:
    """Every vector the same: what is found first is drawn, and is right as often as chance."""
    labels = np.repeat(np.arange(30), 10)
    same = Examples(np.ones((300, 8), np.float32) / np.sqrt(8, dtype=np.float32), labels)
    assert measured(same, "binary", 8) < 0.15


def test_a_prefix_in_float32_is_measured_as_its_slice_and_the_whole_is_first() -> None:
    examples = clouds()
    found = measure_compression(examples, ["pq16", "pq5"][:1], [12, 48], [12], resamples=50)
    kinds = [(row.codes.kind, row.dim, row.trained, row.codes.bytes) for row in found.rows]
    assert kinds == [
        ("float32", 48, True, 192),
        ("float16", 48, True, 96),
        ("pq16", 48, True, 16),
        ("float32", 12, True, 48),
        ("float16", 12, True, 24),
    ]
    assert found.left_out == ("pq16: expected a number of bytes that divides the dimension 12, got 16",)
    x = examples.vectors[:, :12] / np.linalg.norm(examples.vectors[:, :12], axis=1, keepdims=True)
    assert found.rows[3].retrieval.means["recall@1"] == pytest.approx(recall_at_1(x @ x.T, examples.labels))
    assert found.rows[0].within_noise
    assert found.rows[1].within_noise
    assert not found.rows[3].within_noise
    assert all(row.seconds > 0 for row in found.rows)
    assert not measure_compression(examples, [], [13], [12], resamples=0).rows[2].trained


def test_what_cannot_be_is_refused() -> None:
    examples = clouds(classes=4, each=5)
    for kinds, dims, message in (
        (["pq7"], [], "divides the dimension 48, got 7"),
        (["pq8"], [], "expected at least 256 vectors, got 20"),
        ([], [49], "expected numbers from 1 to 48, of the whole embedding, got 49"),
        ([], [0], "got 0"),
    ):
        with pytest.raises(InvalidInput, match=message):  # before anything is measured
            measure_compression(examples, kinds, dims, resamples=0, report=lambda *_: pytest.fail("measured"))
    with pytest.raises(ChoiceError, match="pq0"):
        parse_kinds("sq8,pq0")


def test_the_command_prints_one_table(shared_folder: Path, tmp_path: Path) -> None:
    run = own_copy(shared_folder, tmp_path, "matryoshka", max_steps=12, dim=16, matryoshka=(4, 8))
    asked = ("evaluate", run, "--compress", "sq8,binary", "--dims", "8,6", "--bootstrap", 20)
    found = metrix(*asked, "--json")
    assert found.code == 0, found.err
    rows = found.json["rows"]
    assert [(row["kind"], row["dim"]) for row in rows[:6]] == [
        *((kind, 16) for kind in ("float32", "float16", "sq8", "binary", "binary, rescored")),
        ("float32", 8),
    ]
    assert [row["trained"] for row in rows if row["kind"] == "sq8"] == [True, True, False]
    assert {"recall@1", "map@r", "recall@1 difference", "within_noise", "seconds_per_query"} <= set(rows[0])
    table = metrix(*asked)
    assert "6, not trained" in table.out
    for wrong in (("--compress", "sq9"), ("--dims", "x"), ("--dims", "8", "--ks", "1"), ("--dims", "17")):
        refused = metrix("evaluate", run, *wrong)
        assert (refused.code, refused.out) == (2, "")
