"""No request holds up another: hanging files, failing batches, costly queries, large uploads."""

from __future__ import annotations

import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from metrix.search import Index, Items
from metrix.serve import answering, state
from metrix.serve.limits import Limits
from tests.photos import draw_photo
from tests.serve.test_service import HOST, client_of, hold_up, png

ONE = "kind 0/0.jpg"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_a_pipe_among_the_images_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    os.mkfifo(tmp_path / "photos" / "pipe.jpg")
    draw_photo(0, 0).save(tmp_path / "photos" / "a.jpg")
    items = Items.read(np.eye(2, dtype=np.float32), ["pipe.jpg", "a.jpg"])
    Index.create(tmp_path / "i", iter([items]), root=str(tmp_path / "photos")).close()
    with client_of(tmp_path / "i") as client:
        version = client.get("/explore").json()["collections"][0]["version"]
        start = time.monotonic()
        for path in ("/image/pipe.jpg", f"/explore/{version}/image/0"):
            for _ in range(12):
                assert client.get(path).status_code == 404
        assert time.monotonic() - start < 5
        assert client.get("/image/a.jpg").status_code == 200


def test_files_that_hang_hold_up_neither_searches_nor_reloads(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, hang = Limits(reading=0.3, seconds=5), threading.Event()
    with client_of(indexed / "photos.index", limits) as client, ThreadPoolExecutor(40) as pool:
        version = client.get("/explore").json()["collections"][0]["version"]
        monkeypatch.setattr(state, "read_picture", lambda *_: hang.wait(30))
        start = time.monotonic()
        paths = [f"/image/{ONE}", f"/explore/{version}/image/0"]
        waiting = [pool.submit(client.get, path) for path in paths * 20]
        assert {one.result().status_code for one in waiting} <= {503, 504}
        assert client.get(f"/image/{ONE}").status_code == 503  # at once: all threads hang
        for _ in range(5):
            assert client.get("/search", params={"id": ONE}).status_code == 200
            assert client.post("/search", files=png(draw_photo(0, 0))).status_code == 200
            assert client.post("/reload").status_code == 200
            assert client.get(f"/explore/{version}/query", params={"row": 1}).status_code == 200
        assert time.monotonic() - start < 15
        monkeypatch.undo()
        hang.set()
        deadline = time.monotonic() + 5
        while client.get(f"/image/{ONE}").status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert client.get(f"/image/{ONE}").status_code == 200


def test_a_batch_that_fails_is_searched_once(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(_: Any, queries: Any, *given: Any, **more: Any) -> Any:
        calls.append(len(queries.vectors))
        raise RuntimeError("the store has gone")

    with client_of(indexed / "photos.index") as client, ThreadPoolExecutor(9) as pool:
        go, entered = hold_up(client)
        first = pool.submit(client.get, "/search", params={"id": ONE})
        assert entered.acquire(timeout=10)
        rest = [pool.submit(client.get, "/search", params={"id": ONE}) for _ in range(8)]
        lane = client.app.state.service.batcher._lanes[0]  # type: ignore[attr-defined]
        deadline = time.monotonic() + 10
        while lane.qsize() < 8 and time.monotonic() < deadline:
            time.sleep(0.005)
        monkeypatch.setattr(answering, "search_queries", fail)
        go.set()
        assert {one.result().status_code for one in (first, *rest)} == {500}
    assert calls == [1, 8]


def test_costly_queries_do_not_hold_up_others(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, hold = answering.search_queries, threading.Event()

    def slow(index: Any, queries: Any, k: int, **more: Any) -> Any:
        if more["where"]:
            assert hold.wait(20)
        return real(index, queries, k, **more)

    monkeypatch.setattr(answering, "search_queries", slow)
    with client_of(indexed / "photos.index") as client, ThreadPoolExecutor(1) as pool:
        costly = pool.submit(client.get, "/search", params={"id": ONE, "where": "label=kind 1"})
        for _ in range(5):
            assert client.get("/search", params={"id": ONE}).status_code == 200
            assert client.post("/search", files=png(draw_photo(0, 0))).status_code == 200
        assert not costly.done()
        hold.set()
        assert costly.result().status_code == 200


def test_queries_that_were_given_up_are_not_searched(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, searched = answering.search_queries, []

    def count(index: Any, queries: Any, *given: Any, **more: Any) -> Any:
        searched.append(len(queries.vectors))
        return real(index, queries, *given, **more)

    monkeypatch.setattr(answering, "search_queries", count)
    with client_of(indexed / "photos.index", Limits(seconds=0.3)) as client:
        go, _ = hold_up(client)
        assert client.get("/search", params={"id": ONE}).status_code == 504  # it is in a batch already
        assert client.get("/search", params={"id": ONE}).status_code == 504  # it waits for one
        go.set()
        assert client.get("/search", params={"id": ONE}).status_code == 200
    assert sum(searched) <= 2


def test_malformed_conditions_are_refused_before_they_wait(indexed: Path) -> None:
    with client_of(indexed / "photos.index", Limits(queue=1)) as client:
        place = client.app.state.service.batcher.reserve()  # type: ignore[attr-defined]
        assert client.get("/search", params={"id": ONE, "where": "no condition"}).status_code == 422
        assert client.get("/search", params={"id": ONE}).status_code == 429
        place.cancel()


def test_filters_of_a_request_have_few_conditions(indexed: Path) -> None:
    """A thousand comparisons with each of millions of items would hold up all other queries with filters."""
    half = " or ".join(f"label=k{n}" for n in range(50))
    with client_of(indexed / "photos.index") as client:
        for where, status in (([half, half], 200), ([half, half, "not label=a"], 422)):
            answer = client.get("/search", params={"id": ONE, "where": where})
            assert answer.status_code == status, answer.text
        assert "at most 100 conditions, got 101" in answer.json()["detail"]


def test_uploads_that_wait_have_a_budget_of_bytes(indexed: Path) -> None:
    limits = Limits(waiting=300_000, upload=200_000)
    with client_of(indexed / "photos.index", limits) as client, ThreadPoolExecutor(2) as pool:
        go, entered = hold_up(client)
        large = draw_photo(0, 0).resize((200, 200)).effect_spread(100)
        files = png(large)
        size = len(files["image"][1])
        assert 100_000 < size < 190_000
        first = pool.submit(client.post, "/search", files=files)
        assert entered.acquire(timeout=10)
        second = pool.submit(client.post, "/search", files=files)
        batcher = client.app.state.service.batcher  # type: ignore[attr-defined]
        deadline = time.monotonic() + 10
        while batcher.pending < 2 and time.monotonic() < deadline:
            time.sleep(0.005)
        refused = client.post("/search", files=files)
        assert refused.status_code == 429
        assert "bytes are waiting" in refused.json()["detail"]
        assert client.get("/livez").status_code == 200
        go.set()
        assert first.result().status_code == second.result().status_code == 200
        assert "metrix_pending_upload_bytes 0.0" in client.get("/metrics").text
        assert client.post("/search", files=files).status_code == 200


def test_images_that_are_decoded_together_have_a_budget_of_pixels(
    indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    with client_of(indexed / "photos.index", Limits(pixels=50_000)) as client, ThreadPoolExecutor(6) as pool:
        current = client.app.state.service.current  # type: ignore[attr-defined]
        real = current.encoder.view

        def watched(image: Any) -> Any:
            held.append(current._decoding.held)
            time.sleep(0.02)
            return real(image)

        monkeypatch.setattr(current.encoder, "view", watched)
        files = png(draw_photo(0, 0).resize((200, 200)))
        assert {
            one.result().status_code for one in [pool.submit(client.post, "/search", files=files) for _ in range(6)]
        } == {200}
    assert held == [40_000] * 6


def test_jpeg_2000_only_if_asked(indexed: Path) -> None:
    file = io.BytesIO()
    try:
        Image.new("RGB", (64, 64), "red").save(file, "JPEG2000")
    except OSError:
        pytest.skip("this Pillow does not write JPEG 2000")
    for limits, status in ((Limits(), 422), (Limits(slow_formats=True), 200)):
        with client_of(indexed / "photos.index", limits) as client:
            answer = client.post("/search", files={"image": file.getvalue()})
            assert answer.status_code == status, answer.text
            assert status == 200 or "JPEG 2000" in answer.json()["detail"]


def test_long_json_is_refused_before_it_is_read(indexed: Path) -> None:
    with client_of(indexed / "photos.index") as client:
        body = b'{"vector": [' + b"0.123456789," * 1_000_000 + b"1]}"
        answer = client.post(f"{HOST}/search", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 413
