"""`Classifier`: labels, probabilities and "unknown" from an index."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import InvalidInput, LabelError, MetrixWarning
from metrix.retrieve.classify import Classifier
from metrix.retrieve.indexing import add_images
from metrix.runs.open_set import measure_index, measure_open_set, read_open_set, write_open_set
from metrix.runs.trained_model import open_run
from metrix.search import Index
from tests.photos import draw_photo


def clouds(classes: int = 12, each: int = 9, unknown: int = 4, spread: float = 0.12, seed: int = 0) -> Any:
    """Vectors around centres: enrolled items with labels, queries of the same classes, and queries of others."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes + unknown, 16))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)

    def around(which: Any, times: int) -> Any:
        chosen = np.repeat(np.asarray(which), times)
        return centres[chosen] + spread * rng.normal(size=(len(chosen), 16)), [f"class {c}" for c in chosen]

    return around(range(classes), each), around(range(classes), 5), around(range(classes, classes + unknown), 20)


def test_labels_and_unknown_of_clouds() -> None:
    (vectors, labels), (known, right), (others, _) = clouds()
    classifier = Classifier.fit(Index.build(vectors, columns={"label": labels}))
    found = classifier.predict_vectors(3 * known)
    assert np.mean([one.label == label for one, label in zip(found, right, strict=True)]) > 0.9
    assert np.mean([one.unknown for one in classifier.predict_vectors(others)]) > 0.9
    assert classifier.threshold == 0.5
    for one in found:
        assert one.classes[0].label == one.best
        assert one.probability == one.classes[0].probability <= one.known + 1e-12
        assert sum(each.votes for each in one.classes) <= 1 + 1e-9
        assert one.neighbours[0]["similarity"] == max(near["similarity"] for near in one.neighbours)


def test_probabilities_are_as_often_right_as_they_say() -> None:
    (vectors, labels), (known, right), (others, _) = clouds(classes=40, each=30, unknown=40, spread=0.3)
    classifier = Classifier.fit(Index.build(vectors, columns={"label": labels}))
    found = classifier.predict_vectors(known)
    hits = [one.best == label for one, label in zip(found, right, strict=True)]
    sure = [one.probability for one in found]
    wrong = [one.probability for one in classifier.predict_vectors(others)]
    assert np.mean(sure) / 2 + np.mean(wrong) / 2 == pytest.approx(np.mean(hits) / 2, abs=0.05)


def test_a_filter_that_keeps_nothing_leaves_every_query_unknown() -> None:
    (vectors, labels), (known, _), _ = clouds()
    index = Index.build(vectors, columns={"label": labels, "price": list(range(len(labels)))})
    for one in Classifier.fit(index).predict_vectors(known[:3], where=["price<0"]):
        assert (one.label, one.best, one.probability, one.known, one.classes) == (None, None, 0.0, 0.0, ())


def test_images_of_an_index_do_not_vote_for_themselves(indexed: Path) -> None:
    classifier = Classifier.fit(indexed / "photos.index")
    found = classifier.predict([indexed / "photos"])
    assert len(found) == 18
    for one in found:
        own = "/".join(Path(one.query).parts[-2:])
        assert own not in [near["id"] for near in one.neighbours]
    (alone,) = classifier.predict([indexed / "photos" / "kind 1" / "2.jpg"])
    again = next(one for one in found if one.query == alone.query)
    assert (alone.best, alone.unknown) == (again.best, again.unknown)  # alone or with others
    assert alone.probability == pytest.approx(again.probability, abs=1e-4)


def test_images_that_cannot_be_read_are_left_out_with_a_warning(indexed: Path, tmp_path: Path) -> None:
    draw_photo(0, 50).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.warns(MetrixWarning, match=r"1 skipped: .*bad\.png"):
        (found,) = Classifier.fit(indexed / "photos.index").predict([tmp_path])
    assert found.query.endswith("good.png")


def test_a_class_is_enrolled_by_adding_images(indexed: Path, own_index: Path, run: Path) -> None:
    photos = indexed / "photos" / "new kind"
    photos.mkdir()
    try:
        for n in range(6):
            draw_photo(9, n).save(photos / f"{n}.jpg", quality=95)
        manifest = indexed / "photos" / "new.csv"
        manifest.write_text("path,label\n" + "".join(f"new kind/{n}.jpg,new kind\n" for n in range(5)))
        before = {each.label for each in Classifier.fit(own_index).predict([photos / "5.jpg"])[0].classes}
        assert "new kind" not in before
        add_images(open_run(run), [manifest], own_index)
        (found,) = Classifier.fit(own_index).predict([photos / "5.jpg"])
        assert found.best == "new kind"
    finally:
        shutil.rmtree(photos)
        manifest.unlink(missing_ok=True)


def test_the_threshold_of_the_index_is_used_then_that_of_the_run(own_index: Path, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    model = open_run(copy)
    of_run = measure_open_set(model, "false_accept", 0.2, resamples=0)
    path = write_open_set(model, of_run)
    assert read_open_set(copy, model.digest) == of_run.chosen.open_set
    assert read_open_set(copy, "of another model") is None
    assert Classifier.fit(own_index, run=copy).measured == of_run.chosen.open_set
    index = Index.open(own_index)
    of_index = measure_index(index, "false_reject", 0.1, resamples=0)
    index.keep_open_set(of_index.chosen.open_set)
    again = Classifier.fit(own_index, run=copy)
    assert again.measured == Index.open(own_index).description.open_set == of_index.chosen.open_set
    assert again.threshold == of_index.chosen.open_set.probability
    assert Classifier.fit(own_index, run=copy, threshold=0.9).threshold == 0.9
    path.write_text(json.dumps({"model": model.digest}))
    with pytest.raises(InvalidInput, match="damaged file; measure it anew"):
        read_open_set(copy, model.digest)


def test_an_index_that_has_changed_much_is_said_to(own_index: Path) -> None:
    index = Index.open(own_index)
    index.keep_open_set(measure_index(index, "false_reject", 0.1, resamples=0).chosen.open_set)
    assert Classifier.fit(own_index).caution == ""
    index.delete([f"kind 0/{n}.jpg" for n in range(6)])
    assert "choose it anew" in Classifier.fit(own_index).caution


def test_one_image_of_each_class_needs_the_calibration_of_a_run(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    model = open_run(copy)
    test = model.embed("test")
    _, rows = np.unique(test.labels, return_index=True)
    from metrix.retrieve.encoder import fingerprint

    made_by = fingerprint(model, "glyphs-mini")
    lots = Index.build(test.vectors[rows], columns={"label": test.labels[rows].tolist()}).store.scan()
    Index.create(tmp_path / "one.index", (items for _, items in lots), model=made_by)
    with pytest.raises(LabelError, match="--open-set --shots 1"):
        Classifier.fit(tmp_path / "one.index")
    found = measure_open_set(model, "false_accept", 0.1, shots=1, resamples=0)
    assert found.to_dict()["enrolled"] == len(rows)
    write_open_set(model, found)
    (answer,) = Classifier.fit(tmp_path / "one.index").predict_vectors(test.vectors[rows[:1]])
    assert answer.best == test.labels[rows[0]]


def test_bad_values_are_one_error() -> None:
    (vectors, labels), _, _ = clouds()
    index = Index.build(vectors, columns={"label": labels})
    with pytest.raises(InvalidInput, match="expected a probability from 0 to 1, got 2"):
        Classifier.fit(index, threshold=2)
    with pytest.raises(InvalidInput, match="expected dimension 16, as the index has, got 3"):
        Classifier.fit(index).predict_vectors([[1.0, 2.0, 3.0]])


def test_one_image_or_condition_needs_no_list(own_index: Path, indexed: Path) -> None:
    classifier = Classifier.fit(own_index)
    photo = indexed / "photos" / "kind 1" / "2.jpg"
    expected = classifier.predict([photo], where=["label='kind 1'"])
    assert classifier.predict(str(photo), where="label='kind 1'") == expected  # type: ignore[arg-type]
    assert classifier.predict(photo, where=["label='kind 1'"]) == expected  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="expected at least one image, folder or list of paths, got none"):
        classifier.predict([])
    with pytest.raises(InvalidInput, match="threshold: expected a probability from 0 to 1, got 'half'"):
        Classifier.fit(own_index, threshold="half")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="threshold: expected a probability from 0 to 1, got True"):
        Classifier.fit(own_index, threshold=True)
    assert Classifier.fit(own_index, threshold=np.float32(0.5)).threshold == 0.5  # type: ignore[arg-type]
    for wrong in (None, 5, np.eye(2)):
        with pytest.raises(InvalidInput, match="index: expected an index or its folder, got"):
            Classifier.fit(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"expected names of images, .* got an empty one"):
        Classifier.fit(own_index).predict([""])
