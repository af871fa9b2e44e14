"""Several queries in a request, pages of items, changes with a token for them, and a service without the page."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from metrix.search import Index, Items
from metrix.serve.access import Access
from metrix.serve.limits import Limits
from tests.photos import draw_photo
from tests.serve.test_service import client_of, png

ONE, OTHER = "kind 0/0.jpg", "kind 2/3.jpg"
WRITER = {"authorization": "Bearer pen"}


@pytest.fixture(scope="module")
def client(indexed: Path) -> Iterator[TestClient]:
    with client_of(indexed / "photos.index", Limits(queries=5, k=100)) as opened:
        yield opened


def test_several_queries_are_answered_as_one_by_one(client: TestClient) -> None:
    vector = client.get(f"/items/{OTHER}", params={"vector": True}).json()["vector"]
    asked: list[dict[str, Any]] = [{"id": ONE}, {"vector": vector}, {"id": "none"}, {"vector": [1.0]}]
    answer = client.post("/search", json={"queries": asked}, params={"k": 3}).json()
    alone = [client.post("/search", json=one, params={"k": 3}).json() for one in asked]
    assert answer["answers"][:2] == [{"neighbours": one["neighbours"]} for one in alone[:2]]
    assert [one["detail"] for one in answer["answers"][2:]] == [one["detail"] for one in alone[2:]]
    assert answer["generation"] == 1
    images = [("image", (f"{n}.png", png(draw_photo(n, n))["image"][1])) for n in range(3)]
    images.append(("image", ("broken.png", b"no image")))
    found = client.post("/search", files=images, params={"k": 2}).json()["answers"]
    assert [one["neighbours"][0]["label"] for one in found[:3]] == ["kind 0", "kind 1", "kind 2"]
    assert "not an image" in found[3]["detail"]


def test_too_many_queries_are_refused(client: TestClient) -> None:
    for body in ({"queries": [{"id": ONE}] * 6}, {"queries": []}, {"queries": [{"id": ONE}], "id": ONE}):
        assert client.post("/search", json=body).status_code == 422
    assert client.post("/search", files=[("image", ("a", b"x"))] * 6).status_code in (400, 422)
    with client_of_queue(client) as small:
        assert small.post("/search", json={"queries": [{"id": ONE}] * 4}).status_code == 429
        assert small.post("/search", json={"queries": [{"id": ONE}] * 3}).status_code == 200
        assert "metrix_pending_queries 0.0" in small.get("/metrics").text


def client_of_queue(client: TestClient) -> TestClient:
    folder = client.app.state.service.folder  # type: ignore[attr-defined]
    return client_of(folder, Limits(queue=3))


def test_pages_of_items(client: TestClient, indexed: Path) -> None:
    seen: list[Any] = []
    start: int | None = 0
    while start is not None:
        page = client.get("/items", params={"start": start, "count": 7}).json()
        assert page["total"] == 18
        seen += page["items"]
        start = page["next"]
    expected = [record for _, items in Index.open(indexed / "photos.index").store.scan() for record in items.records()]
    assert seen == expected
    assert client.get("/items", params={"start": 18}).json()["items"] == []
    for wrong in ({"start": -1}, {"count": 0}, {"count": 1001}):
        assert client.get("/items", params=wrong).status_code == 422


def test_nothing_is_changed_without_a_token_for_it(own_index: Path) -> None:
    attempts: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/items", {"json": {"items": [{"id": "x", "vector": [1]}]}}),
        ("POST", "/items/delete", {"json": {"ids": [ONE]}}),
        ("PUT", f"/items/{ONE}", {"files": png(draw_photo(0, 0))}),
        ("DELETE", f"/items/{ONE}", {}),
    ]
    with client_of(own_index) as client:
        for method, path, body in attempts:
            answer = client.request(method, path, **body)
            assert (answer.status_code, "--write-token" in answer.text) == (403, True), path
    with client_of(own_index, access=Access("eye", "pen")) as client:
        for method, path, body in attempts:
            for headers in ({}, {"authorization": "Bearer eye"}, {"authorization": "Bearer pens"}):
                assert client.request(method, path, headers=headers, **body).status_code == 401, path
        assert client.get("/info", headers=WRITER).json()["items"] == 18
        assert client.get("/info", headers={"authorization": "Bearer eye"}).status_code == 200
    assert len(Index.open(own_index)) == 18


def test_items_are_added_replaced_and_deleted(own_index: Path) -> None:
    with client_of(own_index, access=Access(write_token="pen"), poll=60) as client:
        dim = client.get("/info").json()["dim"]
        new = {"id": "new", "vector": [1.0] + [0.0] * (dim - 1), "columns": {"label": "kind 9"}}

        def post(path: str, body: Any) -> Any:
            return client.post(path, json=body, headers=WRITER)

        assert post("/items", {"items": [new]}).json() == {"generation": 2, "items": 19}
        assert client.get("/items/new").json()["label"] == "kind 9"
        again = post("/items", {"items": [new]})
        assert (again.status_code, "in the index already" in again.text) == (409, True)
        changed = new | {"columns": {"label": "kind 8"}}
        assert post("/items", {"items": [changed], "replace": True}).json() == {"generation": 3, "items": 19}
        assert client.get("/items/new").json()["label"] == "kind 8"
        photo = png(draw_photo(1, 2))
        put = client.put("/items/kind 1/77.jpg", files=photo, data={"item": '{"label": "kind 1"}'}, headers=WRITER)
        assert put.json() == {"generation": 4, "items": 20}
        assert client.post("/search", files=photo, params={"k": 1}).json()["neighbours"][0]["id"] in (
            "kind 1/77.jpg",
            "kind 1/2.jpg",
        )
        assert client.delete("/items/new", headers=WRITER).json() == {"generation": 5, "items": 19}
        assert client.delete("/items/new", headers=WRITER).status_code == 404
        assert post("/items/delete", {"ids": ["kind 1/77.jpg", ONE]}).json() == {"generation": 6, "items": 17}
        wrong: list[tuple[Any, int]] = [
            ({"items": [new | {"vector": [1.0]}]}, 409),
            ({"items": [new | {"vector": [0.0] * dim}]}, 409),
            ({"items": [new | {"columns": {"other": 1}}]}, 409),
            ({"items": [new | {"columns": {"label": 10**30}}]}, 409),
            ({"items": [new, new]}, 409),
            ({"items": []}, 422),
            ({"items": [new | {"id": None}]}, 422),
            ({"things": []}, 422),
        ]
        for body, status in wrong:
            answer = post("/items", body)
            assert answer.status_code == status, (body, answer.text)
            assert str(own_index) not in answer.text
        assert post("/items/delete", {"ids": ["none"]}).status_code == 409
        assert client.put("/items/x", files={"image": b"no image"}, headers=WRITER).status_code == 422
        for text in ('{"label": ["a"]}', '{"label": NaN}', '{"label": "\\ud800"}', "[]", "", "[" * 10_000):
            answer = client.put("/items/x", files=photo, data={"item": text}, headers=WRITER)
            assert answer.status_code == 422, (text[:20], answer.text)
        assert client.get("/info").json()["generation"] == 6
    opened = Index.open(own_index)
    assert (len(opened), opened.find(["new", ONE]).tolist()) == (17, [-1, -1])


def test_a_service_without_the_page(indexed: Path) -> None:
    with client_of(indexed / "photos.index", page=False) as client:
        assert client.get("/search", params={"id": ONE}).status_code == 200
        assert client.get("/openapi.json").status_code == 200
        for path in ("/", "/explore", "/static/app.js", "/docs"):
            assert client.get(path).status_code == 404, path


def test_pictures_are_never_those_of_another_state(indexed: Path, own_index: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for n in range(2):
        (photos / "kind 0").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), ("red", "blue")[n]).save(photos / "kind 0" / f"{n}.png")
    versions = set()
    for name, ids in (("a", ["kind 0/0.png", "kind 0/1.png"]), ("b", ["kind 0/1.png", "kind 0/0.png"])):
        items = Items.read([[1.0, 0.0], [0.0, 1.0]], ids)
        Index.create(tmp_path / name, iter([items]), root=str(photos)).close()
        with client_of(tmp_path / name) as client:
            version = client.get("/explore").json()["collections"][0]["version"]
            assert all(client.get(f"/explore/{old}/image/0").status_code == 410 for old in versions)
            versions.add(version)
            first = client.get(f"/explore/{version}/image/0")
            red, _, blue = Image.open(io.BytesIO(first.content)).convert("RGB").getpixel((5, 5))
            assert (red > blue) == (name == "a")
            assert first.headers["cache-control"] == "private, no-cache"
            for path in (f"/explore/{version}/image/0", f"/image/{ids[0]}"):
                tag = client.get(path).headers["etag"]
                assert client.get(path, headers={"if-none-match": tag}).status_code == 304
                Image.new("RGB", (40, 40), "green").save(photos / ids[0])
                changed = client.get(path, headers={"if-none-match": tag})
                assert (changed.status_code, changed.headers["etag"] != tag) == (200, True)
                Image.new("RGB", (41, 40), ("red", "blue")[name == "b"]).save(photos / ids[0])
    assert len(versions) == 2
