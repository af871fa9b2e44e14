"""The switch to a new state: the watcher survives anything, says how far behind it is, and old states are closed."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from metrix.search import Index
from metrix.search.description import FILE
from metrix.serve.state import ServedIndex
from tests.serve.test_service import client_of, generation, wait_for

ONE = "kind 0/0.jpg"


def wait_until(met: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not met() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert met()


def service_of(client: TestClient) -> Any:
    return client.app.state.service  # type: ignore[attr-defined]


def replace(folder: Path, content: str) -> None:
    (folder / "new").write_text(content)
    os.replace(folder / "new", folder / FILE)


def damage(folder: Path, **values: Any) -> None:
    said = json.loads((folder / FILE).read_text())
    replace(folder, json.dumps(said | values))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "no JSON": lambda folder: replace(folder, "{"),
    "binary": lambda folder: (folder / FILE).write_bytes(bytes(range(256))),
    "deep": lambda folder: replace(folder, "[" * 20_000),
    "a folder": lambda folder: ((folder / FILE).unlink(), (folder / FILE).mkdir()),  # type: ignore[func-returns-value]
    "a setting": lambda folder: damage(folder, kind="hnsw", place={"breadth": "abc"}),
    "no items": lambda folder: damage(folder, count=0),
    "a missing run": lambda folder: damage(folder, model={"digest": "0" * 64, "view": "v", "dim": 1, "run": "/none"}),
    "gone": lambda folder: shutil.rmtree(folder),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_watcher_survives_and_the_state_that_is_mended_is_served(own_index: Path, name: str) -> None:
    sound = Path(shutil.copytree(own_index, own_index.with_name("sound")))
    Index.open(sound).delete(["kind 0/1.jpg"])
    with client_of(own_index, poll=0.02) as client:
        assert client.get("/readyz").json()["behind_seconds"] is None
        DAMAGES[name](own_index)
        wait_until(lambda: client.get("/readyz").json()["failed_reloads"] >= 2)  # it tries again
        said = client.get("/readyz").json()
        assert said["behind_seconds"] >= 0
        assert (said["ready"], said["generation"]) == (True, 1)
        assert "metrix_index_behind 1.0" in client.get("/metrics").text
        assert client.get("/search", params={"id": ONE}).status_code == 200
        shutil.rmtree(own_index, ignore_errors=True)
        sound.rename(own_index)
        wait_for(client, 2)
        wait_until(lambda: client.get("/readyz").json()["behind_seconds"] is None)
        assert "metrix_index_behind 0.0" in client.get("/metrics").text


def test_what_could_not_be_opened_is_tried_again_though_it_did_not_change(
    own_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(own_index, poll=0.02) as client:
        real, failing = ServedIndex.__init__, [True]

        def fail(self: Any, *given: Any) -> None:
            if failing:
                raise MemoryError("in this moment")
            real(self, *given)

        monkeypatch.setattr(ServedIndex, "__init__", fail)
        Index.open(own_index).delete(["kind 0/1.jpg"])
        wait_until(lambda: client.get("/readyz").json()["failed_reloads"] >= 2)
        failing.clear()
        wait_for(client, 2)


def test_old_states_are_closed_when_nobody_uses_them(own_index: Path) -> None:
    with client_of(own_index, poll=60) as client:
        service = service_of(client)
        closed: list[str] = []
        old = service.current
        old.index.close = lambda: closed.append("old")
        with old.held():
            Index.open(own_index).delete(["kind 0/1.jpg"])
            assert client.post("/reload").status_code == 200
            assert not closed
        assert closed == ["old"]
        with old.held() as there:
            assert not there
        with service.holding() as state:
            assert state is service.current
        assert closed == ["old"]


def test_nothing_is_opened_again_if_nothing_changed(own_index: Path) -> None:
    with client_of(own_index, poll=60) as client:
        before = service_of(client).current
        assert client.post("/reload").json() == {"generation": 1, "items": 18}
        assert service_of(client).current is before
        assert 'metrix_index_reloads_total{outcome="done"}' not in client.get("/metrics").text


class OneAtATime:
    """A store that notices two threads in it at once."""

    def __init__(self, store: Any) -> None:
        self.store, self.inside, self.crowded = store, 0, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in ("get", "search", "has", "scan"):
            return found

        def watched(*given: Any, **more: Any) -> Any:
            self.inside += 1
            self.crowded |= self.inside > 1
            time.sleep(0.005)
            answer = found(*given, **more)
            answer = list(answer) if name == "scan" else answer
            self.inside -= 1
            return answer

        return watched

    def __len__(self) -> int:
        return len(self.store)


@pytest.fixture
def crowd(own_index: Path) -> Iterator[tuple[TestClient, OneAtATime]]:
    with client_of(own_index, poll=60) as client:
        state = service_of(client).current
        store = OneAtATime(state.index.store)
        state.index.store, state._lock = store, threading.RLock()  # as with Milvus, whose client is for one thread
        yield client, store


def test_a_store_for_one_thread_is_never_used_by_two(crowd: tuple[TestClient, OneAtATime]) -> None:
    client, store = crowd
    paths = [
        f"/search?id={ONE}",
        f"/search?id={ONE}&where=label!=x",
        f"/items/{ONE}?vector=true",
        f"/image/{ONE}",
        "/items?start=3&count=2",
        "/explore",
    ]
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda path=path: statuses.append(client.get(path).status_code))  # type: ignore[misc]
        for path in paths * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * len(paths) * 4
    assert not store.crowded


def test_missing_photos_are_counted_and_found_where_they_have_moved(indexed: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(indexed, tmp_path / "there"))
    said = json.loads((moved / "photos.index" / FILE).read_text())
    lost = {"root": str(tmp_path / "before"), "relative_root": None}
    (moved / "photos.index" / FILE).write_text(json.dumps(said | lost))
    (moved / "photos" / "kind 0" / "1.jpg").unlink()
    for root, missing in ((None, 18), (moved / "photos", 1)):
        with client_of(moved / "photos.index", root=root) as client:
            wait_until(lambda: client.get("/readyz").json()["images_checked"] == 18)
            assert client.get("/readyz").json()["images_missing"] == missing
            assert f"metrix_images_missing {missing}.0" in client.get("/metrics").text
            assert client.get("/image/kind 0/0.jpg").status_code == (404 if root is None else 200)


def test_reloads_and_maps_do_not_pile_up_threads(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 8))
    Index.build(vectors, columns={"label": [str(n % 7) for n in range(300)]}).save(tmp_path / "i")
    with client_of(tmp_path / "i", poll=60) as client:
        before = 0
        for n in range(12):
            Index.open(tmp_path / "i").delete([n])
            assert client.post("/reload").status_code == 200
            version = client.get("/explore").json()["collections"][0]["version"]
            for path in ("points?map=tsne", "points?map=pca", "failures"):
                assert client.get(f"/explore/{version}/{path}").status_code in (200, 202)
            if n == 3:
                before = threading.active_count()
        assert threading.active_count() <= before + 2
        assert generation(client) == 13
