"""Items of an old model are embedded anew in portions; the index answers alike until the last one, then as a new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import DataError, InvalidInput
from metrix.retrieve import replacing
from metrix.retrieve.indexing import add_images, index_images
from metrix.retrieve.replacing import replace_items
from metrix.retrieve.upgrading import upgrade_index
from metrix.runs.trained_model import open_run
from metrix.search import Index, Settings
from tests.photos import draw_photo, write_photos


@pytest.fixture
def old(run: Path, tmp_path: Path) -> Path:
    photos = write_photos(tmp_path / "photos", 6, 6)
    index_images(open_run(run), [photos], tmp_path / "p.index").index.close()
    return tmp_path / "p.index"


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "BATCH", 8)


def answers(folder: Path, queries: np.ndarray) -> tuple[Any, Any]:
    hits = Index.open(folder).search(queries, 36)
    return hits.ids.tolist(), hits.similarities


def require_fresh(folder: Path, fresh: Path) -> None:
    """The index is what a new one of the new model is."""
    mine, new = Index.open(folder), Index.open(fresh)
    apart = {"generation": 0, "place": {}, "relative_run": None, "skipped": 0}
    assert mine.description.model_copy(update=apart) == new.description.model_copy(update=apart)
    a, b = (one.take(np.arange(len(one))) for one in (mine, new))
    assert a.ids.to_pylist() == b.ids.to_pylist()
    assert a.columns.equals(b.columns)
    np.testing.assert_allclose(a.vectors, b.vectors, atol=1e-6)


@pytest.mark.parametrize("upgraded", [True, False], ids=["upgraded", "not upgraded"])
def test_portions_change_no_answer_until_the_last(
    old: Path, other_run: Path, tmp_path: Path, few_at_once: None, upgraded: bool
) -> None:
    if upgraded:
        upgrade_index(Index.open(old), other_run, resamples=0)
    run = None if upgraded else other_run
    queries = np.random.default_rng(0).normal(size=(4, Index.open(old).query_dim))
    before, generation = answers(old, queries), Index.open(old).description.generation
    for waiting in (26, 16, 6):
        done = replace_items(old, run, limit=10)
        assert (done.embedded, done.waiting, done.complete) == (10, waiting, False)
        now = answers(old, queries)
        assert now[0] == before[0]
        assert (now[1] == before[1]).all()
    assert Index.open(old).description.generation == generation
    done = replace_items(old, run, limit=10)
    assert (done.embedded, done.complete) == (6, True)
    index_images(open_run(other_run), [tmp_path / "photos"], tmp_path / "fresh.index")
    require_fresh(old, tmp_path / "fresh.index")
    assert not list(old.glob(".replacing-*/"))
    assert [path.name for path in old.iterdir() if path.name.startswith("adapter")] == []
    assert replace_items(old, other_run).embedded == 0
    with pytest.raises(InvalidInput, match="got neither: metrix index RUN"):
        replace_items(old)


def test_no_item_is_lost_or_doubled_by_changes_meanwhile(
    old: Path, run: Path, other_run: Path, tmp_path: Path, few_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = tmp_path / "photos"
    replace_items(old, other_run, limit=20)
    draw_photo(1, 77).save(photos / "kind 1" / "more.png")
    add_images(open_run(run), [photos / "kind 1" / "more.png"], old)
    Index.open(old).delete(["kind 0/1.jpg"])
    (photos / "kind 0" / "1.jpg").unlink()
    draw_photo(4, 78).save(photos / "kind 0" / "2.jpg", quality=95)  # another image under the same name
    Index.open(old).set_columns(["kind 0/3.jpg"], {"label": ["special"]})
    switch = replacing._switch

    def add_then_switch(index: Index, *others: Any) -> None:
        if not (photos / "kind 2" / "late.png").exists():  # right before the switch
            draw_photo(2, 79).save(photos / "kind 2" / "late.png")
            add_images(open_run(run), [photos / "kind 2" / "late.png"], old)
        switch(index, *others)

    monkeypatch.setattr(replacing, "_switch", add_then_switch)
    done = replace_items(old, other_run)
    assert done.complete
    assert len(done.index) == 37
    fresh = index_images(open_run(other_run), [photos], tmp_path / "fresh.index").index
    ids = fresh.take(np.arange(37)).ids.to_pylist()
    found = done.index.get(ids)
    np.testing.assert_allclose(found.vectors, fresh.get(ids).vectors, atol=1e-6)
    labels = dict(zip(ids, found.columns["label"].to_pylist(), strict=True))
    assert labels["kind 0/3.jpg"] == "special"


def test_what_was_added_by_the_old_model_after_the_switch_is_refused(
    old: Path, run: Path, other_run: Path, tmp_path: Path
) -> None:
    """Embedded before the switch, written after it: vectors of two models never mix."""
    index = Index.open(old)
    items = index.get(["kind 0/1.jpg"]).with_ids(["kind 0/copy.jpg"])
    replace_items(old, other_run)
    with pytest.raises(InvalidInput, match="replaced by those of another model"):
        index.add(items)
    assert len(Index.open(old)) == 36


def test_a_killed_replacement_loses_nothing(old: Path, other_run: Path, tmp_path: Path, few_at_once: None) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom metrix.retrieve import replacing, staged_vectors\n"
        "replacing.BATCH, add, done = 8, staged_vectors.StagedVectors.add, []\n"
        "def add_or_die(*given):\n"
        "    if len(done) == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    done.append(add(*given))\n"
        "staged_vectors.StagedVectors.add = add_or_die\n"
        "replacing.replace_items(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, old, other_run], env={**os.environ}, check=False)
    assert ended.returncode == -signal.SIGKILL
    portions = sorted(old.glob(".replacing-*/*.arrow"))
    assert len(portions) == 2
    assert len(Index.open(old)) == 36
    damaged = portions[1].read_bytes()
    portions[1].write_bytes(damaged[: len(damaged) // 2])
    (portions[0].parent / ".000003.arrow.0a1b2c3d").write_bytes(b"half")
    done = replace_items(old, other_run)
    assert (done.embedded, done.complete) == (28, True)  # without the sound portion of 8
    index_images(open_run(other_run), [tmp_path / "photos"], tmp_path / "fresh.index")
    require_fresh(old, tmp_path / "fresh.index")


def test_images_that_cannot_be_read(old: Path, other_run: Path, tmp_path: Path) -> None:
    (tmp_path / "photos" / "kind 0" / "1.jpg").unlink()
    (tmp_path / "photos" / "kind 0" / "2.jpg").write_bytes(b"broken")
    before = Index.open(old).description
    with pytest.raises(DataError, match=r"2 of 36 images are missing or cannot be read.*kind 0/1.jpg.*--max-bad 2"):
        replace_items(old, other_run)
    assert Index.open(old).description == before
    done = replace_items(old, other_run, max_bad=2)
    assert (done.embedded, done.complete, sorted(done.left_out)) == (2, True, ["kind 0/1.jpg", "kind 0/2.jpg"])
    assert len(done.index) == 34
    assert done.index.description.skipped == 2


def test_what_was_an_image_when_it_was_embedded_is_left_out_too(
    old: Path, other_run: Path, tmp_path: Path, few_at_once: None
) -> None:
    replace_items(old, other_run, limit=8)
    (tmp_path / "photos" / "kind 0" / "1.jpg").write_bytes(b"broken since")
    done = replace_items(old, other_run, max_bad=1)
    assert done.left_out == ("kind 0/1.jpg",)
    assert len(done.index) == 35
    assert done.index.find(["kind 0/1.jpg"]).tolist() == [-1]


def test_images_that_have_moved(old: Path, other_run: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"none of its 36 images can be read in .*photos: .* say where with --root"):
        replace_items(old, other_run, max_bad=36)
    done = replace_items(old, other_run, root=tmp_path / "elsewhere")
    assert (done.embedded, done.complete) == (36, True)


@pytest.mark.parametrize("kind", ["hnsw", "milvus"])
def test_other_kinds_and_stores(kind: str, run: Path, other_run: Path, tmp_path: Path) -> None:
    photos, store = write_photos(tmp_path / "photos", 6, 6), "faiss"
    if kind == "milvus":
        pytest.importorskip("pymilvus", reason="Milvus is NOT TESTED: pip install 'metrix[milvus]'")
        pytest.importorskip("milvus_lite", reason="Milvus is NOT TESTED: pip install 'metrix[milvus]'")
        store = f"milvus:{tmp_path / 'photos.db'}"
    chosen: dict[str, Any] = {"kind": "exact" if kind == "milvus" else kind, "store": store, "settings": Settings()}
    index = index_images(open_run(run), [photos], tmp_path / "p.index", **chosen).index
    upgrade_index(index, other_run, resamples=0)
    queries = np.random.default_rng(0).normal(size=(3, index.query_dim))
    adapted = index.adapt(queries)
    vectors = index.get(index.take(np.arange(36)).ids.to_pylist()).vectors
    assert index.search(queries, 1).similarities[:, 0] == pytest.approx((adapted @ vectors.T).max(1), abs=1e-5)
    index.close()
    done = replace_items(tmp_path / "p.index")
    assert done.complete
    assert done.index.kind == chosen["kind"]
    fresh = index_images(open_run(other_run), [photos], tmp_path / "fresh.index").index
    asked = done.index.search(queries, 5), fresh.search(queries, 5)
    assert asked[0].ids.tolist() == asked[1].ids.tolist()
    np.testing.assert_allclose(asked[0].similarities, asked[1].similarities, atol=1e-5)
    done.index.close()


def test_the_command(metrix: Any, refused: Any, old: Path, other_run: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    refused("index", "-o", old, "--update", "--only-old", words="got neither")
    refused("index", "-o", old, "--only-old", words="expected with --update")
    refused("index", other_run, photos, "-o", old, "--update", "--only-old", words="expected no data")
    refused("index", other_run, "--update", "--only-old", words="expected the index, got none")
    refused("index", other_run, photos, "-o", old, "--limit", 3, words="expected with --update --only-old")
    refused("index", other_run, "-o", old, "--update", "--only-old", "--engine", "bf16", words="--engine torch")
    refused("index", other_run, "-o", old, "--update", "--only-old", "--dim", 8, words="expected whole vectors")
    photos.rename(tmp_path / "moved")
    photos, moved = tmp_path / "moved", ("--root", tmp_path / "moved")
    part = metrix("index", other_run, "-o", old, "--update", "--only-old", "--limit", 30, *moved)
    assert part.code == 0, part.err
    assert "6 images to go; the index answers as before" in part.out
    whole = metrix("index", other_run, "-o", old, "--update", "--only-old", "--json", *moved)
    assert whole.json["complete"]
    assert whole.json["embedded"] == 6
    assert metrix("search", old, photos / "kind 0" / "0.jpg", "--json", *moved).code == 0
