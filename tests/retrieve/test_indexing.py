"""From images to an index and back: the same view for both, interruptions, changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import InvalidInput
from metrix.retrieve import queries as searching
from metrix.retrieve.encoder import ImageEncoder, fingerprint
from metrix.retrieve.indexing import add_images, index_images
from metrix.retrieve.item_images import image_file, read_item_image
from metrix.retrieve.queries import embed_queries, open_model
from metrix.runs.thresholds import measure_threshold, read_threshold, write_threshold
from metrix.runs.trained_model import open_run
from metrix.search import Index
from tests.photos import draw_photo, write_photos


@pytest.fixture(scope="module")
def run(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of these tests alone, without a threshold."""
    ignored = shutil.ignore_patterns("threshold.json")
    return Path(shutil.copytree(run, tmp_path_factory.mktemp("own") / "run", ignore=ignored))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def test_an_indexed_image_finds_itself(run: Path, photos: Path, tmp_path: Path) -> None:
    model = open_run(run)
    done = index_images(model, [photos], tmp_path / "p.index")
    index = done.index
    assert (done.images, len(index), index.dim) == (18, 18, model.config.model.dim)
    assert index.description.root == str(photos)
    assert index.description.model == fingerprint(model)
    encoder = ImageEncoder(model)
    vectors, rows, skipped = encoder.embed_files([photos / f"kind {c}" / "3.jpg" for c in range(3)])
    assert rows == [0, 1, 2]
    assert skipped == []
    np.testing.assert_allclose(vectors, index.get([f"kind {c}/3.jpg" for c in range(3)]).vectors, atol=1e-5)
    found = index.search(vectors, 1, model=encoder.fingerprint)
    assert found.ids[:, 0].tolist() == [f"kind {c}/3.jpg" for c in range(3)]
    with (photos / "kind 0" / "0.jpg").open("rb") as file:
        np.testing.assert_array_equal(encoder.view(file), encoder.view(photos / "kind 0" / "0.jpg"))
    left = [path.name for path in (tmp_path / "p.index").iterdir() if path.name.startswith(".embedding-")]
    assert left == []


def test_an_embedded_image_finds_itself_as_a_file(run: Path, tmp_path: Path) -> None:
    from PIL import Image

    model = open_run(run)
    index = index_images(model, ["glyphs-mini"], tmp_path / "g.index").index
    own = open_run(run).embed("all").vectors
    np.testing.assert_allclose(next(iter(index.store.scan(2000)))[1].vectors, own, atol=1e-6)
    name = "U+1E00/DejaVuSans-Bold"
    Image.fromarray(read_item_image(index, name)).save(tmp_path / "glyph.png")
    queries = embed_queries(ImageEncoder(model, "glyphs-mini"), index, [tmp_path / "glyph.png"])
    found = index.search(queries.vectors, 1)
    assert found.ids[0, 0] == name
    assert found.similarities[0, 0] == pytest.approx(1, abs=1e-5)
    with pytest.raises(InvalidInput, match="expected an index of image files"):
        image_file(index, name)


def test_queries_know_which_item_they_are(run: Path, photos: Path, tmp_path: Path) -> None:
    model = open_run(run)
    index = index_images(model, [photos], tmp_path / "p.index").index
    draw_photo(1, 99).save(tmp_path / "new.png")
    queries = embed_queries(ImageEncoder(model), index, [photos / "kind 1" / "2.jpg", tmp_path / "new.png"])
    assert queries.own == (*index.find(["kind 1/2.jpg"]), -1)
    assert queries.own[0] >= 0
    answers = searching.search_queries(index, queries, 18)
    assert len(answers[0]) == 17
    assert len(answers[1]) == 18
    assert set(answers[0][0]) == {"id", "similarity", "label"}
    few = searching.search_queries(index, queries, 18, minimum=0.9999)
    assert all(hit["similarity"] >= 0.9999 for hits in few for hit in hits)


def test_add_and_update(run: Path, photos: Path, tmp_path: Path) -> None:
    model = open_run(run)
    index_images(model, [photos], tmp_path / "p.index")
    draw_photo(2, 50).save(photos / "kind 2" / "new.png")
    (photos / "kind 2" / "bad.png").write_bytes(b"no")
    done = add_images(model, [photos / "kind 2" / "new.png", photos / "kind 2" / "bad.png"], tmp_path / "p.index")
    assert (done.images, len(done.skipped), len(done.index)) == (1, 1, 19)
    assert done.index.description.skipped == 1
    with pytest.raises(InvalidInput, match="in the index already"):
        add_images(model, [photos / "kind 2" / "new.png"], tmp_path / "p.index")
    before = done.index.get(["kind 2/new.png"]).vectors
    draw_photo(0, 51).save(photos / "kind 2" / "new.png")
    done = add_images(model, [photos / "kind 2"], tmp_path / "p.index", replace=True)
    assert len(done.index) == 19
    assert np.abs(done.index.get(["kind 2/new.png"]).vectors - before).max() > 1e-4
    draw_photo(0, 51).save(tmp_path / "outside.png")
    with pytest.raises(InvalidInput, match="expected paths below"):
        add_images(model, [tmp_path / "outside.png"], tmp_path / "p.index")


def test_another_model_is_refused(run: Path, other_run: Path, photos: Path, tmp_path: Path) -> None:
    index = index_images(open_run(run), [photos], tmp_path / "p.index").index
    with pytest.raises(InvalidInput, match="model: expected"):
        open_model(index, other_run)
    with pytest.raises(InvalidInput, match="model: expected"):
        add_images(open_run(other_run), [photos], tmp_path / "p.index")
    assert open_model(index).digest == open_run(run).digest
    description = index.description.model_copy(
        update={"model": index.description.model.model_copy(update={"run": "/nowhere"})}
    )  # type: ignore[union-attr]
    description.write(tmp_path / "p.index")
    with pytest.raises(InvalidInput, match=r"expected /nowhere.*--run RUN"):
        open_model(Index.open(tmp_path / "p.index"))
    assert open_model(Index.open(tmp_path / "p.index"), run).digest == open_run(run).digest


def test_a_path_that_leads_outside_is_refused(run: Path, photos: Path, tmp_path: Path) -> None:
    index = index_images(open_run(run), [photos], tmp_path / "p.index").index
    assert image_file(index, "kind 0/0.jpg") == photos / "kind 0" / "0.jpg"
    for one in ("../secret.jpg", "/etc/passwd", "kind 0/../../x"):
        with pytest.raises(InvalidInput, match="expected a path below"):
            image_file(index, one)


def test_a_killed_build_keeps_the_old_index_and_resumes(run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", classes=4, per_class=200)
    few = write_photos(tmp_path / "few", classes=2, per_class=2)
    target = tmp_path / "p.index"
    index_images(open_run(run), [few], target)
    command = [
        sys.executable,
        "-m",
        "metrix",
        "index",
        str(run),
        str(photos),
        "-o",
        str(target),
        "--overwrite",
        "--json",
    ]
    process = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not list(target.glob(".embedding-*/0*.npy")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(Index.open(target)) == 4
    blocks = list(target.glob(".embedding-*/0*.npy"))
    assert blocks
    written = {path: path.stat().st_mtime_ns for path in blocks}
    seen: list[tuple[str, int, int]] = []
    done = index_images(open_run(run, lambda what, at, of: seen.append((what, at, of))), [photos], target)
    embedded = [at for what, at, _ in seen if what == "embedding"]
    assert len(embedded) == 4 - len(written)  # blocks of 256 of 800 images, without those that were kept
    assert len(done.index) == 800
    assert not list(target.glob(".embedding-*"))


def test_the_threshold_goes_with_the_model(run: Path, other_run: Path, photos: Path, tmp_path: Path) -> None:
    model = open_run(run)
    assert read_threshold(model) is None
    index = index_images(model, [photos], tmp_path / "before.index").index
    with pytest.raises(InvalidInput, match="metrix threshold"):
        searching.same_threshold(index, model)
    found = measure_threshold(model, "recall", 0.5, resamples=20)
    path = write_threshold(model, found)
    try:
        stored = json.loads(path.read_text())
        assert stored["classes"] == len(stored["class_names"]) == found.pairs.classes
        assert read_threshold(model) == found.threshold
        index = index_images(model, [photos], tmp_path / "p.index").index
        assert index.description.threshold == found.threshold
        assert searching.same_threshold(index) == found.threshold.similarity
        (other_run / "threshold.json").write_text(path.read_text())
        assert read_threshold(open_run(other_run)) is None  # it is of another model
        (other_run / "threshold.json").write_text('{"model": 3')
        with pytest.raises(InvalidInput, match="damaged"):
            read_threshold(open_run(other_run))
    finally:
        path.unlink()
        (other_run / "threshold.json").unlink(missing_ok=True)


def test_the_threshold_is_of_the_test_classes(run: Path) -> None:
    from metrix import data

    found: Any = measure_threshold(open_run(run), "far", 0.01, resamples=10)
    part = data.open("glyphs-mini").test
    assert found.about["class_names"] == sorted(part.class_names)
    assert found.pairs.images == len(part)
    assert int(found.pairs.same.sum() + found.pairs.different.sum()) == len(part) * (len(part) - 1)
    assert found.threshold.far <= 0.01


def test_a_query_is_cropped_to_its_box(run: Path, photos: Path, tmp_path: Path) -> None:
    rows = ["path,label,x_1,y_1,x_2,y_2", "kind 0/0.jpg,a,0,0,20,20", "kind 1/0.jpg,b,10,5,30,40", "kind 2/0.jpg,c,,,,"]
    (photos / "parts.csv").write_text("\n".join(rows) + "\n")
    model = open_run(run)
    index = index_images(model, [photos / "parts.csv"], tmp_path / "p.index").index
    ids = ("kind 0/0.jpg#0,0,20,20", "kind 1/0.jpg#10,5,30,40", "kind 2/0.jpg")
    queries = embed_queries(ImageEncoder(model), index, [photos / "parts.csv"])
    assert queries.own == tuple(index.find(ids)) == (0, 1, 2)
    assert queries.names == tuple(f"{photos}/{one}" for one in ids)
    np.testing.assert_allclose(queries.vectors, index.get(list(ids)).vectors, atol=1e-5)
    whole = embed_queries(ImageEncoder(model), index, [photos / "kind 0" / "0.jpg"])
    assert whole.own == (-1,)
    assert not np.allclose(whole.vectors[0], queries.vectors[0], atol=1e-3)
