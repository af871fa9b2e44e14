"""An index of an old model answers queries of a new one through an adapter, and as before once that is undone."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from metrix.errors import DataError, InvalidInput, LabelError, ShapeError
from metrix.retrieve import upgrading
from metrix.retrieve.adapter_measures import NEW, OLD, measure_adapters
from metrix.retrieve.classify import Classifier, Prediction
from metrix.retrieve.encoder import ImageEncoder, fingerprint
from metrix.retrieve.indexing import add_images, index_images
from metrix.retrieve.queries import embed_queries, find_prefix, open_encoder, queries_by_id, same_threshold
from metrix.retrieve.upgrading import upgrade_index
from metrix.runs.open_set import measure_index
from metrix.runs.trained_model import open_run
from metrix.search import Index, Items, count_pairs
from metrix.search.adapters import fit_adapter
from metrix.search.adapting import undo_upgrade
from metrix.search.cross_pairs import count_cross_pairs
from metrix.serve.api import build_service
from metrix.serve.limits import Limits
from metrix.serve.state import ServedIndex
from tests.photos import draw_photo, write_photos
from tests.rounding import up_to_rounding

CLASSES, EACH = 6, 6


@pytest.fixture(scope="module")
def old_index(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 36 photos by `run`, with a threshold, beside `photos`."""
    folder = tmp_path_factory.mktemp("upgraded")
    photos = write_photos(folder / "photos", CLASSES, EACH)
    index = index_images(open_run(run), [photos], folder / "p.index").index
    items = next(iter(index.store.scan()))[1]
    threshold = count_pairs(items.vectors, items.columns["label"].to_pylist(), 0).threshold("far", 0.2)
    index.description.model_copy(update={"threshold": threshold}).write(folder / "p.index")
    return folder / "p.index"


@pytest.fixture
def index(old_index: Path, tmp_path: Path) -> Index:
    found = Index.open(shutil.copytree(old_index, tmp_path / "p.index"))
    found.description.write(tmp_path / "p.index")  # with places as seen from here
    return found.reopen()


def test_queries_go_through_the_new_model_and_the_adapter(index: Index, run: Path, other_run: Path) -> None:
    before, vectors = index.description, index.take(np.arange(36)).vectors
    done = upgrade_index(index, other_run, resamples=50)
    now = Index.open(str(index.folder))
    assert (now.take(np.arange(36)).vectors == vectors).all()
    assert now.description.model == fingerprint(open_run(other_run))
    assert now.description.model_of_items == before.model
    assert now.description.adapter is not None
    assert now.description.adapter.pairs == 36
    files = {path.name for path in now.folder.iterdir() if not path.name.startswith(".")}
    assert now.description.adapter.file in files

    encoder = ImageEncoder(open_run(other_run))
    photo = Path(str(before.root)) / "kind 2" / "3.jpg"
    raw, _, _ = encoder.embed_files([photo])
    expected = fit_adapter(done.pairs.new, done.pairs.old, done.kind, done.pairs.labels)(raw)
    asked = embed_queries(open_encoder(now), now, [photo])
    np.testing.assert_allclose(asked.vectors, expected, atol=1e-6)
    assert asked.own == (int(now.find(["kind 2/3.jpg"])[0]),)
    hits = now.search(raw, 36)
    order = np.argsort(-(vectors @ expected[0]), kind="stable")
    assert hits.similarities[0] == pytest.approx((vectors @ expected[0])[order], abs=1e-5)
    assert hits.rows[0, 0] == order[0]
    items_own = now.search(vectors[:1], 1, adapted=True)
    assert items_own.similarities[0, 0] == pytest.approx(1, abs=1e-5)

    served = ServedIndex(now.folder, Limits())
    np.testing.assert_allclose(served.read_vector(raw[0].tolist()), expected[0], atol=1e-6)
    assert served.encoder is not None
    np.testing.assert_allclose(served.encoder.embed([encoder.view(photo)]), expected, atol=1e-6)
    again = ServedIndex(now.folder, Limits(), before=served)
    assert again.encoder is served.encoder
    undo_upgrade(now.folder)
    assert ServedIndex(now.folder, Limits(), before=served).encoder is not served.encoder


def test_thresholds_are_chosen_anew_and_come_back(index: Index, other_run: Path) -> None:
    before = index.description
    done = upgrade_index(index, other_run, resamples=20)
    now = Index.open(str(index.folder))
    queries = done.measured.mapped[done.kind]
    literal = count_cross_pairs(queries, done.pairs.old, done.pairs.labels, 0).threshold("far", 0.2)
    assert now.description.threshold is not None
    assert now.description.threshold.similarity == literal.similarity == same_threshold(now)
    assert literal.similarity != before.threshold.similarity  # type: ignore[union-attr]
    assert any("chosen anew" in one for one in done.remarks)
    classifier = Classifier.fit(now)
    assert classifier.measured == now.description.open_set is not None
    assert classifier.measured is not None
    assert (classifier.measured.items, classifier.measured.classes) == (36, 6)
    assert classifier.caution == ""
    with pytest.raises(InvalidInput, match="which was upgraded to another"):
        measure_index(now, "false_accept", 0.1)
    undo_upgrade(now.folder)
    assert Index.open(now.folder).description == before
    assert [path.name for path in now.folder.iterdir() if "adapter" in path.name] == []
    with pytest.raises(InvalidInput, match="got one without an adapter"):
        undo_upgrade(now.folder)


def test_items_are_classified_as_before(index: Index, other_run: Path, metrix: Any) -> None:
    """An item keeps its vector, so its class and probability stay those of the old model, by every way of asking."""
    ids = ["kind 2/3.jpg", "kind 4/1.jpg"]

    def ask(threshold: float | None = None) -> list[Prediction]:
        opened = Index.open(str(index.folder))
        return Classifier.fit(opened, threshold=threshold).predict_queries(queries_by_id(opened, ids))

    def ask_service() -> Any:
        with TestClient(build_service(index.folder), base_url="http://127.0.0.1") as client:
            single = client.get("/classify", params={"id": ids[0]}).json()
            vector = index.take(index.find(ids[:1])).vectors[0].tolist()
            queries = {"queries": [{"id": ids[0]}, {"id": ids[1]}, {"vector": vector}]}
            several = client.post("/classify", json=queries).json()["answers"]
            assert {**single, "generation": 0} == up_to_rounding({**several[0], "generation": 0})
            return several

    calibrated = ask()
    measured = measure_index(index, "false_accept", 0.1, resamples=20).chosen.open_set
    index.description.model_copy(update={"open_set": measured}).write(index.folder)
    before = ask()
    assert [one.label for one in before] != [one.label for one in ask(1.0)]
    served = ask_service()
    told = metrix("classify", index.folder, "--id", ids[0], "--json").json
    upgrade_index(Index.open(index.folder), other_run, resamples=20)
    assert ask() == before
    assert ask(1.0)[0].unknown
    assert ask_service()[:2] == up_to_rounding(served[:2])
    again = metrix("classify", index.folder, "--id", ids[0], "--json").json
    assert again["predictions"] == told["predictions"]
    assert (again["calibration"], again["threshold"]) == (told["calibration"], told["threshold"])

    now = Index.open(str(index.folder))
    assert now.description.adapter is not None
    forgotten = now.description.adapter.before.model_copy(update={"open_set": None})
    record = now.description.adapter.model_copy(update={"before": forgotten})
    now.description.model_copy(update={"adapter": record}).write(now.folder)
    assert ask() == calibrated
    only = Classifier.fit(index.folder).for_items()
    assert only.caution == ""
    assert only.for_items() is only


def test_what_held_for_the_old_model_is_set_aside_without_labels(index: Index, run: Path, other_run: Path) -> None:
    bare = [Items(items.ids, items.vectors, items.columns.select([])) for _, items in index.store.scan()]
    kept = index.description
    index = Index.create(index.folder, bare, model=kept.model, root=kept.root, threshold=kept.threshold)
    done = upgrade_index(index, other_run, resamples=20)
    assert done.measured.classes is None
    assert done.measured.searches[OLD].recall == 1  # each item finds itself
    assert done.measured.chance == pytest.approx(1 / 36)
    assert any("set aside" in one for one in done.remarks)
    now = Index.open(index.folder)
    assert now.description.threshold is None
    with pytest.raises(InvalidInput, match="none that holds for queries of the new model"):
        same_threshold(now, open_run(other_run))


def test_figures_are_those_of_a_literal_computation(index: Index, other_run: Path) -> None:
    done = upgrade_index(index, other_run, keep=False, resamples=50)
    assert Index.open(index.folder).description == index.description  # only measured
    measured, labels = done.measured, np.array(done.pairs.labels)
    sides = {OLD: (done.pairs.old, done.pairs.old), NEW: (done.pairs.new, done.pairs.new)}
    sides |= {kind: (mapped, done.pairs.old) for kind, mapped in measured.mapped.items()}
    assert {"procrustes", "low-rank", "mlp"} <= set(sides)
    for key, (queries, gallery) in sides.items():
        similar = queries @ gallery.T
        np.fill_diagonal(similar, -2)
        right = labels[similar.argmax(1)] == labels
        assert measured.searches[key].recall == pytest.approx(right.mean())
        alike = (labels[:, None] == labels) & ~np.eye(36, dtype=bool)
        assert measured.searches[key].same_class == pytest.approx(similar[alike].mean(), abs=1e-4)
    best = max(one.recall for name, one in measured.searches.items() if name in measured.mapped)
    assert measured.searches[done.kind].recall == best
    assert measured.chance == pytest.approx(5 / 35)
    assert (measured.held_out, measured.classes, measured.queries) == ("classes", 6, 36)


def test_no_figure_is_of_images_that_the_adapter_was_fitted_on() -> None:
    """Old vectors that have nothing to do with the new ones: fitted on itself, an adapter would find some."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 5)
    new, old = rng.normal(size=(60, 40)), rng.normal(size=(60, 40)) + 3 * rng.normal(size=(12, 40))[labels]
    found = measure_adapters(new, old, labels.tolist(), ["low-rank", "procrustes"], resamples=200)
    assert found.searches[OLD].recall > 0.9
    for kind in ("low-rank", "procrustes"):
        low, high = found.searches[kind].interval or (0, 0)
        assert low <= found.chance + 0.05
        assert high < 0.4
    itself = fit_adapter(new, old, "procrustes")(new)
    assert (labels[(itself @ old.T).argmax(1)] == labels).mean() > 0.5


def test_images_are_added_by_either_model_and_no_third(
    index: Index, run: Path, other_run: Path, tmp_path: Path
) -> None:
    upgrade_index(index, other_run, resamples=20)
    root = Path(str(index.description.root))
    more = [root / "kind 0" / "more.png", root / "kind 1" / "more.png"]
    try:
        for n, path in enumerate(more):
            draw_photo(n, 99).save(path)
        by_old = add_images(open_run(run), [more[0]], index.folder)
        assert not by_old.mapped
        raw, _, _ = ImageEncoder(open_run(run)).embed_files([more[0]])
        np.testing.assert_allclose(by_old.index.get(["kind 0/more.png"]).vectors, raw, atol=1e-6)
        by_new = add_images(open_run(other_run), [more[1]], index.folder)
        assert by_new.mapped
        raw, _, _ = ImageEncoder(open_run(other_run)).embed_files([more[1]])
        np.testing.assert_allclose(by_new.index.get(["kind 1/more.png"]).vectors, by_new.index.adapt(raw), atol=1e-6)
        record = Index.open(index.folder).description.adapter
        assert record is not None
        assert record.mapped == 1
    finally:
        for path in more:
            path.unlink()
    third = Path(shutil.copytree(run, tmp_path / "third"))
    from safetensors.torch import load_file, save_file

    weights = next(third.glob("model/*.safetensors"))
    from safetensors import safe_open

    with safe_open(weights, "pt") as file:
        about = file.metadata()
    save_file({name: one + 1e-3 for name, one in load_file(weights).items()}, weights, about)
    for place, dim, said in (
        (third, 64, f"expected {run}, which made the items of {index.folder}, or {other_run}, which .* got {third}"),
        (run, 8, rf"dimension: expected 64, of the model that .* \({run}\), got 8 \({run}\)"),
        (other_run, 8, rf"dimension: expected 64, of the model that .* \({other_run}\), got 8 \({other_run}\)"),
    ):
        wrong = open_run(place, dim=dim, force_dim=True)
        with pytest.raises(InvalidInput, match=said):
            add_images(wrong, [root / "kind 0" / "0.jpg"], index.folder, replace=True)
    done = upgrade_index(Index.open(index.folder), third, resamples=0)  # a second upgrade, and back to the first model
    assert done.index.description.adapter is not None
    assert done.index.description.adapter.before.model == index.description.model_of_items
    assert len([path for path in index.folder.iterdir() if path.name.startswith("adapter-")]) == 1


def test_copies_and_merges_keep_to_the_model_of_the_items(index: Index, other_run: Path, tmp_path: Path) -> None:
    plain = index.save(tmp_path / "plain.index")
    upgrade_index(index, other_run, resamples=20)
    copy = index.save(tmp_path / "copy.index")
    vectors = np.random.default_rng(0).normal(size=(3, copy.query_dim))
    assert (copy.search(vectors, 5).similarities == index.search(vectors, 5).similarities).all()
    assert copy.description.threshold == index.description.threshold
    plain.delete([f"kind {c}/{n}.jpg" for c in range(5) for n in range(6)])
    copy.delete([f"kind 5/{n}.jpg" for n in range(6)])
    copy.merge(plain)
    assert len(copy) == 36
    assert copy.search(vectors, 5).similarities == pytest.approx(index.search(vectors, 5).similarities, abs=1e-6)


def test_other_images_serve_as_pairs(index: Index, run: Path, other_run: Path, tmp_path: Path) -> None:
    others = write_photos(tmp_path / "others", 7, 5)
    (others / "kind 0" / "broken.jpg").write_bytes(b"none")
    done = upgrade_index(index, other_run, images=[others], keep=False, resamples=0)
    assert len(done.pairs) == 35
    old, _, _ = ImageEncoder(open_run(run)).embed_files([others / "kind 1" / "2.jpg"])
    assert abs(done.pairs.old - old).max(1).min() < 1e-5
    assert done.measured.classes == 7
    some = upgrade_index(index, other_run, images=[others], most=25, keep=False, resamples=0)
    assert len(some.pairs) == 25
    with pytest.raises(InvalidInput, match=r"--images: expected at least 25 images .* got 5"):
        upgrade_index(index, other_run, images=[others / "kind 1"])
    with pytest.raises(InvalidInput, match="give --old RUN"):
        upgrade_index(index, other_run, images=[others], old_run=tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="of the model that the index was built with"):
        upgrade_index(index, other_run, images=[others], old_run=other_run)


def test_an_index_of_a_prefix_is_upgraded(run: Path, other_run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", CLASSES, EACH)
    short = open_run(run, dim=16, force_dim=True)
    index = index_images(short, [photos], tmp_path / "short.index").index
    for images in ([], [photos]):
        done = upgrade_index(index, other_run, images=images, resamples=0)
        assert (done.pairs.old.shape[1], done.pairs.new.shape[1]) == (16, 64)
        assert Index.open(index.folder).query_dim == 64
    draw_photo(0, 99).save(photos / "kind 0" / "more.png")
    for trained in (run, other_run):
        opened = open_run(trained, dim=find_prefix(index.description, trained), force_dim=True)
        assert add_images(opened, [photos / "kind 0" / "more.png"], index.folder, replace=True).index.dim == 16


def test_hostile_indexes_and_files(index: Index, run: Path, other_run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="another model than made"):
        upgrade_index(index, run)
    with pytest.raises(InvalidInput, match="names no model"):
        upgrade_index(Index.build(np.eye(4)), other_run)
    described = index.description.model_dump()
    gone = index.description.model_copy(update={"root": str(tmp_path / "gone"), "relative_root": None})
    with pytest.raises(
        InvalidInput, match=r"expected at least 25 items whose images are in .*got 0 \(36 images missing"
    ):
        upgrade_index(Index(index.store, gone, index.folder), other_run)
    upgrade_index(index, other_run, resamples=0)
    assert described != Index.open(index.folder).description.model_dump()
    raw = np.ones((1, index.query_dim + 1))
    with pytest.raises(ShapeError, match="of the model that queries go through"):
        index.search(raw)
    file = index.folder / index.description.adapter.file  # type: ignore[union-attr]
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    with pytest.raises(DataError, match="undo it with metrix upgrade --undo"):
        Index.open(index.folder)
    path = index.folder / "description.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "adapter": {**text["adapter"], "file": "../x.safetensors"}}))
    with pytest.raises(DataError, match="file leads out of the index"):
        Index.open(index.folder)
    path.write_text(json.dumps(text))
    assert undo_upgrade(index.folder).adapter is None
    assert Index.open(index.folder).description.model_dump() == described


def test_few_or_strange_labels() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5))
    two = measure_adapters(x, x[:, :3], ["a", "b"] * 20, ["procrustes"], resamples=20)
    assert (two.held_out, two.classes) == ("images", 2)
    one = measure_adapters(x, x[:, :3], None, ["procrustes"], resamples=0)
    assert one.searches["procrustes"].interval is None
    assert "identity" not in measure_adapters(x, x[:, :3], None, resamples=0).searches
    with pytest.raises(LabelError):
        measure_adapters(x, x, [str(n) for n in range(40)], ["procrustes"])
    with pytest.raises(InvalidInput, match=r"expected at least 25 images embedded by both models.* got 24;"):
        measure_adapters(x[:24], x[:24], None, ["procrustes"])
    assert measure_adapters(x[:25], x[:25], None, ["procrustes"], resamples=0).images == 25
    uneven = ["a"] * 30 + ["b", "c", "d", "e", "f"] * 2  # without the largest class, too few would be left
    found = measure_adapters(x, x, uneven, ["procrustes"], resamples=0)
    assert (found.held_out, found.classes) == ("images", 6)


def test_an_adapter_that_finds_less_than_the_old_model_is_remarked(
    index: Index, other_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = upgrade_index(index, other_run, keep=False, resamples=20).measured
    chosen = measured.searches[measured.chosen]
    for high, certain in ((-0.01, True), (0.0, False)):
        worse = dataclasses.replace(chosen, difference=-0.2, difference_interval=(-0.3, high))
        found = dataclasses.replace(measured, searches={**measured.searches, measured.chosen: worse})
        monkeypatch.setattr(upgrading, "measure_adapters", lambda *_, found=found, **__: found)
        remarks = upgrade_index(index, other_run, keep=False).remarks
        assert any("less than those of the old model: Recall@1 -20.0" in one for one in remarks) == certain


def test_an_adapter_that_cannot_fit_is_an_error_before_images_are_embedded(
    index: Index, other_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrading, "pair_items", lambda *_: pytest.fail("images were embedded"))
    shorter = Index(index.store, index.description, index.folder)
    monkeypatch.setattr(Index, "dim", 16)
    with pytest.raises(ShapeError, match="identity: expected vectors of one dimension, got 64 of the new model and 16"):
        upgrade_index(shorter, other_run, kind="identity")


def test_the_command(metrix: Any, refused: Any, index: Index, run: Path, other_run: Path) -> None:
    done = metrix("upgrade", index.folder, "--run", other_run, "--bootstrap", 20)
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    assert "36 queries among 36 items of the index, of 6 classes, each without its own item" in words
    assert "a random order has a Recall@1 of 14.3 %" in words
    assert "1,000 often suffice" in done.err
    assert "items by" in metrix("index", "--info", "-o", index.folder).out
    photo = Path(str(index.description.root)) / "kind 2" / "3.jpg"
    for verb in ("search", "classify"):
        assert metrix(verb, index.folder, photo, "--json").code == 0
    found = metrix("upgrade", index.folder, "--run", other_run, "--dry-run", "--adapter", "procrustes", "--json")
    assert found.json["adapter"] == "procrustes"
    assert not found.json["kept"]
    assert metrix("upgrade", index.folder, "--undo").code == 0
    refused("upgrade", index.folder, "--undo", words="without an adapter")
    refused("upgrade", index.folder, words="--run: expected the run of the new model")
    refused("upgrade", index.folder, "--run", run, words="there is nothing to upgrade")
    refused("upgrade", index.folder, "--run", other_run, "--undo", words="expected without --undo")
    refused("upgrade", index.folder, "--run", other_run, "--old", run, words="expected with --images")
    refused("upgrade", index.folder, "--run", other_run, "--adapter", "linear", words="expected auto, identity")
    refused("upgrade", index.folder / "none", "--run", other_run, words="expected an index")
    refused("upgrade", index.folder / "none", "--undo", words="expected an index")
