"""`/classify`: the answers of `Classifier`, several in a request, while an index changes, and without labels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from metrix.retrieve.classify import Classifier, Prediction
from metrix.search import Index, Items
from metrix.serve import classes as served_classes
from metrix.serve.access import Access
from metrix.serve.limits import Limits
from tests.photos import draw_photo
from tests.serve.test_service import client_of, png

ONE, OTHER = "kind 0/0.jpg", "kind 2/3.jpg"
WRITER = {"authorization": "Bearer pen"}


@pytest.fixture(scope="module")
def client(indexed: Path) -> Iterator[TestClient]:
    with client_of(indexed / "photos.index", Limits(queries=5)) as opened:
        yield opened


@pytest.fixture(scope="module")
def classifier(indexed: Path) -> Classifier:
    return Classifier.fit(indexed / "photos.index")


def shown(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON has it."""
    plain = prediction.to_dict()
    del plain["query"]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def require_same(answer: dict[str, Any], prediction: Prediction) -> None:
    expected = shown(prediction)
    assert {name: answer[name] for name in ("label", "unknown", "best")} == {
        name: expected[name] for name in ("label", "unknown", "best")
    }
    assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-4)
    assert answer["known"] == pytest.approx(expected["known"], abs=1e-4)
    assert [one["label"] for one in answer["classes"]] == [one["label"] for one in expected["classes"]]
    assert [one["id"] for one in answer["neighbours"]] == [one["id"] for one in expected["neighbours"]]


def test_the_answers_are_those_of_the_classifier(client: TestClient, classifier: Classifier, indexed: Path) -> None:
    path = indexed / "photos" / ONE
    (own,) = classifier.predict([path])
    by_id = client.get("/classify", params={"id": ONE}).json()
    require_same(by_id, own)
    assert by_id["generation"] == 1
    require_same(client.post("/classify", json={"id": ONE}).json(), own)
    vector = client.get(f"/items/{ONE}", params={"vector": True}).json()["vector"]
    (alone,) = classifier.predict_vectors([vector])  # the item votes for it
    assert alone.neighbours[0]["id"] == ONE
    require_same(client.post("/classify", json={"vector": vector}).json(), alone)
    require_same(client.post("/classify", files={"image": path.read_bytes()}).json(), alone)
    assert client.get("/info").json()["classes"] == 3
    assert "metrix_index_classes 3.0" in client.get("/metrics").text


def test_several_queries_are_answered_as_one_by_one(client: TestClient) -> None:
    dim = client.get("/info").json()["dim"]
    asked: list[dict[str, Any]] = [{"id": ONE}, {"id": OTHER}, {"id": "none"}, {"vector": [1.0] * (dim + 1)}]
    answer = client.post("/classify", json={"queries": asked}).json()
    alone = [client.post("/classify", json=one).json() for one in asked]
    assert [{**one, "generation": 1} for one in answer["answers"][:2]] == alone[:2]
    assert [one["detail"] for one in answer["answers"][2:]] == [one["detail"] for one in alone[2:]]
    images = [("image", (f"{n}.png", png(draw_photo(n, n))["image"][1])) for n in range(3)]
    images.append(("image", ("broken.png", b"no image")))
    found = client.post("/classify", files=images).json()["answers"]
    assert [one["best"] for one in found[:3]] == ["kind 0", "kind 1", "kind 2"]
    assert "not an image" in found[3]["detail"]
    mixed = client.post("/search", json={"queries": asked[:2]}, params={"k": 2}).json()["answers"]
    assert [set(one) for one in mixed] == [{"neighbours"}] * 2


def test_threshold_and_filter(client: TestClient, classifier: Classifier) -> None:
    def ask(**params: Any) -> Any:
        return client.get("/classify", params={"id": ONE, **params})

    known = ask().json()["known"]
    assert 0 < known < 1
    below, above = ask(threshold=known * 0.99).json(), ask(threshold=min(1, known * 1.01)).json()
    assert (below["label"], below["unknown"], above["label"], above["unknown"]) == ("kind 0", False, None, True)
    assert above["best"] == "kind 0"
    only = ask(where="label=kind 1").json()
    assert {one["label"] for one in only["neighbours"]} == {"kind 1"}
    assert [one["label"] for one in only["classes"]] == ["kind 1"]
    nothing = ask(where="label=none").json()
    assert (nothing["label"], nothing["unknown"], nothing["classes"], nothing["known"]) == (None, True, [], 0.0)
    for wrong in ({"threshold": 2}, {"threshold": -0.1}, {"where": "labl=x"}, {"where": "x" * 2000}):
        assert ask(**wrong).status_code == 422, wrong


def test_limits_and_access_are_those_of_search(indexed: Path) -> None:
    folder = indexed / "photos.index"
    with client_of(folder, Limits(queue=3, upload=5000, pixels=100), access=Access("eye")) as client:
        client.headers["authorization"] = "Bearer eye"
        assert client.post("/classify", json={"queries": [{"id": ONE}] * 4}).status_code == 429
        assert client.post("/classify", content=b"x" * 6000, headers={"content-type": "x"}).status_code in (413, 415)
        assert client.post("/classify", files={"image": b"x" * 6000}).status_code == 413
        assert client.post("/classify", files=png(draw_photo(0, 0))).status_code == 413
        assert client.post("/classify", content=b"x", headers={"content-type": "text/plain"}).status_code == 415
        assert client.post("/classify", json={"id": "none"}).status_code == 404
        assert client.get("/classify", params={"id": ONE}, headers={"authorization": "Bearer no"}).status_code == 401
        assert "metrix_pending_queries 0.0" in client.get("/metrics").text


def test_a_class_that_is_enrolled_is_known_at_once(own_index: Path) -> None:
    with client_of(own_index, access=Access(write_token="pen"), poll=60) as client:
        dim = client.get("/info").json()["dim"]
        far = np.zeros(dim)
        far[0] = 1.0
        assert client.post("/classify", json={"vector": far.tolist()}).json()["best"] != "kind 9"
        near = far + 0.01 * np.random.default_rng(0).standard_normal((3, dim))
        new = [{"id": f"new {n}", "vector": list(one), "columns": {"label": "kind 9"}} for n, one in enumerate(near)]
        assert client.post("/items", json={"items": new}, headers=WRITER).status_code == 200
        answer = client.post("/classify", json={"vector": far.tolist()}).json()
        assert (answer["label"], answer["generation"]) == ("kind 9", 2)
        assert client.get("/info").json()["classes"] == 4


def test_classes_are_read_once_for_each_state(own_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    fit = Classifier.fit.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Classifier], *arguments: Any, **options: Any) -> Classifier:
        read.append(arguments)
        found: Classifier = fit(cls, *arguments, **options)
        return found

    monkeypatch.setattr(Classifier, "fit", classmethod(counted))
    with client_of(own_index, poll=60) as client:
        for _ in range(5):
            assert client.get("/classify", params={"id": ONE}).status_code == 200
        assert len(read) == 1
        Index.open(own_index).delete([OTHER])
        assert client.post("/reload").status_code == 200
        assert client.get("/classify", params={"id": ONE}).json()["generation"] == 2
    assert len(read) == 2


def test_searches_go_on_while_classes_are_read(own_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = Classifier.fit.__func__  # type: ignore[attr-defined]
    slow = True

    def hold(cls: type[Classifier], index: Any, *, report: Any, **options: Any) -> Classifier:
        while slow:
            time.sleep(0.01)
            report("reading classes", 0, 1)
        found: Classifier = fit(cls, index, report=report, **options)
        return found

    monkeypatch.setattr(Classifier, "fit", classmethod(hold))
    monkeypatch.setattr(served_classes, "PATIENCE", 0.05)
    with client_of(own_index, poll=60) as client:
        answer = client.get("/classify", params={"id": ONE})
        assert (answer.status_code, "try again" in answer.text) == (503, True)
        assert answer.headers["retry-after"] == "1"
        assert client.get("/search", params={"id": ONE}).status_code == 200
        assert client.get("/info").json()["classes"] is None
        Index.open(own_index).delete([OTHER])  # the first state is given up
        assert client.post("/reload").status_code == 200
        slow = False
        monkeypatch.setattr(served_classes, "PATIENCE", 5.0)
        assert client.get("/classify", params={"id": ONE}).json()["generation"] == 2


def test_an_index_without_labels_says_so(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    Index.create(tmp_path / "i", iter([Items.read(vectors)])).close()
    with client_of(tmp_path / "i") as client:
        for _ in range(2):
            answer = client.get("/classify", params={"id": 3})
            assert (answer.status_code, "expected an index with labels" in answer.text) == (422, True)
        assert client.get("/search", params={"id": 3}).status_code == 200


def test_an_index_in_milvus_lite(tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite")
    rng = np.random.default_rng(0)
    labels = [f"k{n % 4}" for n in range(60)]
    centres = rng.standard_normal((4, 8))
    vectors = np.stack([centres[n % 4] + 0.5 * rng.standard_normal(8) for n in range(60)]).astype(np.float32)
    store = f"milvus:{tmp_path / 'store.db'}"
    items = Items.read(vectors, [f"{n:02d}" for n in range(60)], {"label": labels})
    Index.create(tmp_path / "i", iter([items]), store=store).close()
    twin = Classifier.fit(Index.build(vectors, [f"{n:02d}" for n in range(60)], columns={"label": labels}))
    with client_of(tmp_path / "i", store=store, poll=60) as client:
        found = client.post("/classify", json={"queries": [{"vector": one.tolist()} for one in vectors[:9]]}).json()
        for answer, expected in zip(found["answers"], twin.predict_vectors(vectors[:9]), strict=True):
            require_same(answer, expected)
