"""The HTTP service in process: every route, limits, access, and the switch to a new index."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from metrix.errors import InvalidInput
from metrix.search import Index, Items
from metrix.serve.access import Access
from metrix.serve.api import build_service
from metrix.serve.limits import Limits
from tests.photos import draw_photo

HOST = "http://127.0.0.1"


def client_of(folder: Path, limits: Limits | None = None, **options: Any) -> TestClient:
    return TestClient(build_service(folder, limits=limits, **options), base_url=HOST, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(indexed: Path) -> Iterator[TestClient]:
    with client_of(indexed / "photos.index") as opened:
        yield opened


def png(image: Image.Image) -> dict[str, Any]:
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"image": ("photo.png", file.getvalue(), "image/png")}


def test_image_id_and_vector_find_the_same(client: TestClient, indexed: Path) -> None:
    one = "kind 2/3.jpg"
    by_id = client.get("/search", params={"id": one, "k": 5}).json()["neighbours"]
    posted = client.post("/search", json={"id": one}, params={"k": 5}).json()["neighbours"]
    vector = client.get(f"/items/{one}", params={"vector": True}).json()["vector"]
    by_vector = client.post("/search", json={"vector": [100 * x for x in vector]}, params={"k": 6}).json()["neighbours"]
    content = (indexed / "photos" / one).read_bytes()
    by_image = client.post("/search", files={"image": content}, params={"k": 6}).json()["neighbours"]
    ids = [[hit["id"] for hit in hits] for hits in (by_id, posted, by_vector[1:], by_image[1:])]
    assert ids[0] == ids[1] == ids[2] == ids[3]
    assert by_image[0]["id"] == by_vector[0]["id"] == one
    assert by_image[0]["similarity"] == pytest.approx(1, abs=1e-4)
    assert set(by_id[0]) == {"id", "similarity", "label"}
    found = Index.open(indexed / "photos.index").search([vector], 6)
    np.testing.assert_allclose([hit["similarity"] for hit in by_vector], found.similarities[0], atol=1e-5)


def test_options_of_a_search(client: TestClient) -> None:
    def ask(**params: Any) -> Any:
        return client.get("/search", params={"id": "kind 0/0.jpg", **params})

    hits = ask(where=["label=kind 1"], k=50).json()["neighbours"]
    assert {hit["label"] for hit in hits} == {"kind 1"}
    assert len(hits) == 6
    nearest = ask(k=1).json()["neighbours"][0]["similarity"]
    assert ask(threshold=min(1, nearest + 1e-4)).json()["neighbours"] == []
    assert ask(rerank=True, expand=2).status_code == 200
    assert len(ask(k=1000).json()["neighbours"]) == 17
    for wrong in ({"k": 0}, {"k": 1001}, {"where": "labl=x"}, {"where": "label"}, {"expand": -1}, {"threshold": 2}):
        assert ask(**wrong).status_code == 422, wrong
    assert "threshold" in ask(same=True).json()["detail"]
    assert ask(same=True, threshold=0).status_code == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"[" * 100_000, 422),
        (b'{"id": "kind 0/0.jpg", "vector": [1]}', 422),
        (b'{"vector": [NaN]}', 422),
        (b'{"vector": []}', 422),
        (b'{"vector": [1, 2]}', 422),
        (b'{"vector": ["x"]}', 422),
        (b'{"other": 1}', 422),
        (b'{"id": "no such"}', 404),
        (rb'{"id": "\ud800"}', 422),
        (rb'{"id": "\u0000"}', 404),
        (b'{"id": 3}', 404),
        (b"\xff\xfe", 422),
    ],
)
def test_malformed_queries_are_refused(client: TestClient, body: bytes, status: int) -> None:
    answer = client.post("/search", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]


def test_vectors_at_the_edge_of_floating_point(client: TestClient) -> None:
    dim = client.get("/info").json()["dim"]
    for values, status in (([0.0], 422), ([1e308], 200), ([5e-324], 200)):
        assert client.post("/search", json={"vector": values * dim}).status_code == status


def test_other_bodies_are_refused(client: TestClient) -> None:
    assert client.post("/search", content=b"x", headers={"content-type": "text/plain"}).status_code == 415
    assert client.post("/search").status_code == 415
    assert client.post("/search", files={"other": b"x"}).status_code == 422
    assert client.post("/search", data={"image": "text"}, files={"x": b""}).status_code in (400, 422)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert client.post("/search", content=b"--y\r\nnonsense", headers=headers).status_code in (400, 422)
    for content in (b"", b"no image", (Path(__file__)).read_bytes()):
        answer = client.post("/search", files={"image": content})
        assert answer.status_code == 422
        assert "BytesIO" not in answer.text


def test_items_images_and_info(client: TestClient, indexed: Path, run: Path) -> None:
    item = client.get("/items/kind 1/2.jpg").json()
    assert item == {"id": "kind 1/2.jpg", "label": "kind 1", "image": "/image/kind%201/2.jpg", "vector": None}
    picture = client.get(item["image"], params={"size": 24})
    assert picture.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(picture.content)).size == (24, 24)
    assert client.get("/items/none").status_code == client.get("/image/none").status_code == 404
    assert client.get(item["image"], params={"size": 5000}).status_code == 422
    info = client.get("/info").json()
    assert (info["items"], info["kind"], info["images"], info["generation"]) == (18, "exact", True, 1)
    assert len(info["model"]["digest"]) == 64
    assert str(run) not in json.dumps(info)  # nothing about the machine's folders
    assert str(indexed) not in json.dumps(info)


def test_probes_metrics_and_docs(client: TestClient) -> None:
    assert client.get("/livez").text == "alive"
    assert client.get("/readyz").json()["ready"] is True
    client.get("/search", params={"id": "kind 0/0.jpg"})
    text = client.get("/metrics").text
    for name in ("batch_size", "queue_wait_seconds", "inference_seconds", "search_seconds", "decoding_seconds"):
        assert f"metrix_{name}_count" in text
    assert 'metrix_requests_total{method="GET",route="/search",status="200"}' in text
    assert "metrix_index_items 18.0" in text
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/search", "/items/{id}", "/image/{id}", "/info", "/livez", "/readyz", "/metrics", "/reload"} <= set(paths)
    assert client.get("/docs").status_code == 200


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be huge."""
    import struct

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_limits_on_bytes_and_pixels(indexed: Path) -> None:
    limits = Limits(upload=200_000, pixels=100_000, k=5)
    with client_of(indexed / "photos.index", limits) as client:
        assert client.post("/search", files={"image": bytes(250_000)}).status_code == 413

        def chunks() -> Iterator[bytes]:  # no stated length
            for _ in range(300):
                yield bytes(1000)

        headers = {"content-type": "application/json"}
        assert client.post("/search", content=chunks(), headers=headers).status_code == 413
        for size in ((10_000, 9_000), (10_001, 10_000), (60_000, 60_000), (400, 251)):
            answer = client.post("/search", files={"image": bomb(*size)})
            assert answer.status_code == 413, (size, answer.text)
            assert "pixels" in answer.json()["detail"]
        assert client.post("/search", files=png(draw_photo(0, 0))).status_code == 200
        assert client.get("/search", params={"id": "kind 0/0.jpg", "k": 6}).status_code == 422


def hold_up(client: TestClient) -> tuple[threading.Event, threading.Semaphore]:
    """Make the batches of a service wait for the event; the semaphore counts those that began."""
    batcher = client.app.state.service.batcher  # type: ignore[attr-defined]
    answer, go, entered = batcher._answer, threading.Event(), threading.Semaphore(0)

    def held(queries: Any, begin: Any) -> Any:
        entered.release()
        assert go.wait(20)
        return answer(queries, begin)

    batcher._answer = held
    return go, entered


def test_a_full_queue_is_429_and_waiting_queries_share_a_batch(indexed: Path) -> None:
    with client_of(indexed / "photos.index", Limits(queue=5)) as client, ThreadPoolExecutor(5) as pool:
        go, entered = hold_up(client)
        first = pool.submit(client.post, "/search", files=png(draw_photo(0, 9)))
        assert entered.acquire(timeout=10)
        rest = [pool.submit(client.post, "/search", files=png(draw_photo(n % 3, n))) for n in range(4)]
        pending = client.app.state.service.batcher  # type: ignore[attr-defined]
        deadline = time.monotonic() + 10
        while pending._lanes[0].qsize() < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        refused = client.post("/search", files=png(draw_photo(0, 0)))
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert client.get("/livez").status_code == 200  # it answers meanwhile
        go.set()
        assert first.result().status_code == 200
        for n, one in enumerate(rest):
            answer = one.result()
            assert answer.json()["neighbours"][0]["label"] == f"kind {n % 3}"
        text = client.get("/metrics").text
    assert 'metrix_batch_size_bucket{le="1.0"} 1.0' in text
    assert "metrix_batch_size_sum 5.0" in text
    assert "metrix_inference_seconds_count 2.0" in text
    assert "metrix_refused_queries_total 1.0" in text
    assert "metrix_pending_queries 0.0" in text


def test_an_answer_that_takes_too_long_is_504(indexed: Path) -> None:
    with client_of(indexed / "photos.index", Limits(seconds=0.2)) as client:
        go, _ = hold_up(client)
        assert client.get("/search", params={"id": "kind 0/0.jpg"}).status_code == 504
        go.set()
        assert client.get("/search", params={"id": "kind 0/0.jpg"}).status_code == 200


def test_shutdown_answers_what_is_waiting(indexed: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with client_of(indexed / "photos.index") as client:
            go, entered = hold_up(client)
            waiting = pool.submit(client.get, "/search", params={"id": "kind 0/0.jpg"})
            assert entered.acquire(timeout=10)
            threading.Timer(0.1, go.set).start()
            assert waiting.result(20).status_code == 200
        assert not client.app.state.service.ready  # type: ignore[attr-defined]


def test_only_with_the_token(indexed: Path) -> None:
    with client_of(indexed / "photos.index", access=Access("sesame")) as client:
        assert client.get("/livez").status_code == client.get("/readyz").status_code == 200
        for path in ("/info", "/search?id=kind 0/0.jpg", "/image/kind 0/0.jpg", "/metrics", "/docs", "/openapi.json"):
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            for wrong in ("Bearer", "Bearer sesam", "Bearer sesamesesame", "Basic sesame", "sesame"):
                assert client.get(path, headers={"authorization": wrong}).status_code == 401
            assert client.get(path, headers={"authorization": "Bearer sesame"}).status_code == 200, path
            assert client.get(path, headers={"authorization": "bearer sesame", "host": "a.org"}).status_code == 200
            assert client.get(path, headers={"cookie": "other=1; metrix_token=sesame"}).status_code == 200
            assert client.get(path, headers={"cookie": "metrix_token=no"}).status_code == 401
        assert client.post("/reload").status_code == 401


def test_without_a_token_only_this_machine(client: TestClient) -> None:
    for host, status in (("localhost:8000", 200), ("[::1]:80", 200), ("evil.example", 403), ("", 403), ("[x", 403)):
        assert client.get("/info", headers={"host": host}).status_code == status, host


def test_files_only_from_the_indexed_root(run: Path, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    draw_photo(0, 0).save(root / "a.png")
    draw_photo(1, 0).save(tmp_path / "secret.png")
    os.symlink(tmp_path / "secret.png", root / "link.png")
    dim = 4
    os.symlink("circle.png", root / "circle.png")
    ids = ["a.png", "../secret.png", str(tmp_path / "secret.png"), "link.png", "gone.png", "text.txt"]
    ids += ["circle.png", "nul\0.png"]
    (root / "text.txt").write_text("not an image")
    vectors = np.eye(dim, dtype=np.float32)[[0, 1, 2, 3, 0, 1, 2, 3]]
    index = Index.create(tmp_path / "i", iter([Items.read(vectors, ids)]), root=str(root))
    index.close()
    with client_of(tmp_path / "i") as client:
        found = [client.get(f"/image/{quote(one, safe='')}").status_code for one in ids]
        assert found == [200, 403, 403, 403, 404, 404, 404, 403]
        assert client.get("/image/..%2F..%2Fetc%2Fpasswd").status_code == 404
        assert "model" in client.post("/search", files=png(draw_photo(0, 0))).json()["detail"]
        assert client.post("/search", json={"vector": [1, 0, 0, 0.1]}).json()["neighbours"][0]["id"] in (
            "a.png",
            "gone.png",
        )


def test_an_index_of_an_embedded_dataset_and_integer_ids(run: Path, tmp_path: Path) -> None:
    from metrix.retrieve.indexing import index_images
    from metrix.runs.trained_model import open_run

    index_images(open_run(run), ["glyphs-mini"], tmp_path / "g").index.close()
    with client_of(tmp_path / "g") as client:
        hits = client.get("/search", params={"id": "U+1E00/DejaVuSans-Bold"}).json()["neighbours"]
        picture = client.get(f"/image/{hits[0]['id']}")
        assert picture.headers["content-type"] == "image/png"
        found = client.post("/search", files={"image": picture.content}).json()["neighbours"]
        assert found[0]["id"] == hits[0]["id"]
    Index.build([[1.0, 0], [0, 1], [1, 1]], columns={"x": [1.0, float("nan"), 2.0]}).save(tmp_path / "n")
    with client_of(tmp_path / "n") as client:
        hits = client.get("/search", params={"id": 0}).json()["neighbours"]
        assert [(hit["id"], hit["x"]) for hit in hits] == [(2, 2.0), (1, None)]
        assert client.get("/items/1").json()["image"] is None
        for unknown in ("7", "x", "-", "99999999999999999999", "1.5", "١"):
            assert client.get("/search", params={"id": unknown}).status_code == 404, unknown


def generation(client: TestClient) -> int:
    found: int = client.get("/info").json()["generation"]
    return found


def wait_for(client: TestClient, expected: int) -> None:
    deadline = time.monotonic() + 20
    while generation(client) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert generation(client) == expected


def test_a_changed_index_is_noticed_and_old_queries_end_on_the_old_one(own_index: Path) -> None:
    with client_of(own_index, poll=0.02) as client, ThreadPoolExecutor(1) as pool:
        go, entered = hold_up(client)
        waiting = pool.submit(client.get, "/search", params={"id": "kind 0/0.jpg", "k": 50})
        assert entered.acquire(timeout=10)
        Index.open(own_index).delete(["kind 0/1.jpg", "kind 0/2.jpg"])
        wait_for(client, 2)
        assert client.get("/info").json()["items"] == 16
        assert client.get("/items/kind 0/1.jpg").status_code == 404
        go.set()
        old = waiting.result().json()
        assert (old["generation"], len(old["neighbours"])) == (1, 17)
        new = client.get("/search", params={"id": "kind 0/0.jpg", "k": 50}).json()
        assert (new["generation"], len(new["neighbours"])) == (2, 15)


def test_a_replaced_folder_is_served_without_an_error_meanwhile(own_index: Path, tmp_path: Path) -> None:
    new = Path(shutil.copytree(own_index, tmp_path / "new"))
    Index.open(new).delete(["kind 0/1.jpg"])
    Index.open(new).delete(["kind 0/2.jpg"])
    with client_of(own_index, poll=0.02) as client:
        statuses: list[int] = []
        stop = threading.Event()

        def keep_asking() -> None:
            while not stop.is_set():
                statuses.append(client.get("/search", params={"id": "kind 1/0.jpg"}).status_code)

        asking = threading.Thread(target=keep_asking)
        asking.start()
        own_index.rename(tmp_path / "old")
        new.rename(own_index)
        wait_for(client, 3)
        stop.set()
        asking.join()
        assert set(statuses) == {200}


def test_a_damaged_index_leaves_the_old_one_in_service(own_index: Path) -> None:
    with client_of(own_index, poll=60) as client:
        Index.open(own_index).delete(["kind 0/1.jpg"])
        assert client.post("/reload").json() == {"generation": 2, "items": 17}
        (own_index / "description.json").write_text("{")
        answer = client.post("/reload")
        assert answer.status_code == 409
        assert "damaged" in answer.json()["detail"]
        assert client.get("/search", params={"id": "kind 0/0.jpg"}).status_code == 200
        assert client.get("/readyz").status_code == 200
        assert 'metrix_index_reloads_total{outcome="failed"} 1.0' in client.get("/metrics").text


def test_no_index_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected an index"):
        build_service(tmp_path / "none")
