"""The routes behind the page on labels: who may decide, what is refused, and that nothing but the table changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from metrix.retrieve.decisions import DecisionFile
from metrix.search import Index
from metrix.serve.access import Access
from metrix.serve.api import build_labeller, build_service

HERE = "http://127.0.0.1"
WRITE = {"Authorization": "Bearer pen"}
READ = {"Authorization": "Bearer eye"}


@pytest.fixture
def doubtful(own_index: Path) -> Path:
    """An index with one label that is surely wrong and one that is missing."""
    index = Index.open(own_index)
    index.set_columns(["kind 0/1.jpg", "kind 2/1.jpg"], {"label": ["kind 2", None]})
    index.close()
    return own_index


@pytest.fixture
def client(doubtful: Path, tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(build_labeller(doubtful, tmp_path / "d.csv", who="anna"), base_url=HERE) as opened:
        yield opened


def wait_for(client: TestClient, path: str = "/labelling", **options: Any) -> Any:
    for _ in range(600):
        answer = client.get(path, **options)
        if answer.status_code != 202:
            return answer
    raise AssertionError("it never ends")


def test_decisions_are_written_and_not_asked_again(client: TestClient, doubtful: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in doubtful.rglob("*") if path.is_file()}
    about = wait_for(client).json()
    assert about["writable"]
    assert about["left"] == list(range(about["total"]))
    questions = client.get("/labelling/questions", params={"count": 200}).json()
    assert {"kind 0/1.jpg", "kind 2/1.jpg"} <= {one["id"] for one in questions}
    body = {"id": "kind 0/1.jpg", "decision": "accept", "label": "kind 0"}
    made = client.post("/labelling/decisions", json=body).json()
    assert made["made"] | {"when": ""} == {
        "id": "kind 0/1.jpg",
        "old": "kind 2",
        "new": "kind 0",
        "decision": "accept",
        "of": None,
        "who": "anna",
        "when": "",
    }
    at = next(n for n, one in enumerate(questions) if one["id"] == "kind 0/1.jpg")
    assert at not in client.get("/labelling").json()["left"]
    again = client.post("/labelling/decisions", json={**body, "decision": "keep", "label": None, "who": "ben"}).json()
    assert again["before"]["who"] == "anna"
    client.post("/labelling/decisions", json={"id": "kind 0/1.jpg", "decision": "undo"})
    assert client.get("/labelling").json()["left"] == about["left"]
    assert len((tmp_path / "d.csv").read_text("utf-8").splitlines()) == 4
    assert {path: path.read_bytes() for path in doubtful.rglob("*") if path.is_file()} == before
    client.post("/labelling/decisions", json={"id": "kind 2/1.jpg", "decision": "class", "label": "brand new"})
    assert "brand new" in client.get("/labelling").json()["classes"]
    assert client.get("/label").status_code == 200
    assert client.get("/image/kind 0/1.jpg").status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"id": "no.jpg", "decision": "keep"}, 422),
        ({"id": "kind 0/1.jpg", "decision": "kill"}, 422),
        ({"id": "kind 0/1.jpg", "decision": "relabel"}, 422),
        ({"id": "kind 0/1.jpg", "decision": "relabel", "label": "x" * 201}, 422),
        ({"id": "kind 0/1.jpg", "decision": "relabel", "label": "a\u0000b"}, 422),
        ({"id": "kind 0/1.jpg", "decision": "relabel", "label": 3}, 422),
        ({"id": "kind 0/1.jpg", "decision": "keep", "file": "/etc/passwd"}, 422),
        ({"id": "kind 0/1.jpg", "decision": "duplicate", "of": "no.jpg"}, 422),
        ({"id": "x" * 5000, "decision": "keep"}, 422),
        ({"id": "x" * 30_000, "decision": "keep"}, 413),
        ([], 422),
    ],
)
def test_wrong_decisions(body: Any, status: int, client: TestClient, tmp_path: Path) -> None:
    assert client.post("/labelling/decisions", json=body).status_code == status
    assert not (tmp_path / "d.csv").exists()


def test_pages_elsewhere_cannot_decide(client: TestClient, tmp_path: Path) -> None:
    text = json.dumps({"id": "kind 0/1.jpg", "decision": "keep"})
    plain = {"Content-Type": "application/json"}
    for headers, status in (
        ({**plain, "Origin": "http://evil.example"}, 403),
        ({**plain, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**plain, "Host": "evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),  # what a form can send
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ):
        assert client.post("/labelling/decisions", content=text, headers=headers).status_code == status
    surrogate = '{"id": "\\ud800", "decision": "keep"}'
    assert client.post("/labelling/decisions", content=surrogate, headers=plain).status_code == 422
    assert not (tmp_path / "d.csv").exists()


def test_a_token_guards_reading_and_deciding(doubtful: Path, tmp_path: Path) -> None:
    access = Access("pen", "pen")
    with TestClient(build_labeller(doubtful, tmp_path / "d.csv", access=access), base_url=HERE) as client:
        body = {"id": "kind 0/1.jpg", "decision": "keep"}
        assert client.get("/labelling").status_code == 401
        assert client.post("/labelling/decisions", json=body).status_code == 401
        assert wait_for(client, headers=WRITE).json()["writable"]
        assert client.post("/labelling/decisions", json=body, headers=WRITE).status_code == 200


def test_a_service_takes_decisions_only_with_its_write_token(doubtful: Path) -> None:
    body = {"id": "kind 0/1.jpg", "decision": "keep"}
    file = DecisionFile(doubtful.with_suffix(".labels.csv"))
    with TestClient(build_service(doubtful), base_url=HERE) as client:
        about = wait_for(client).json()
        assert (about["writable"], about["tokens"]) == (False, False)
        assert client.post("/labelling/decisions", json=body).status_code == 403
    with TestClient(build_service(doubtful, access=Access("eye", "pen")), base_url=HERE) as client:
        assert client.get("/labelling").status_code == 401
        about = wait_for(client, headers=READ).json()
        assert (about["writable"], about["tokens"]) == (False, True)
        assert client.post("/labelling/decisions", json=body, headers=READ).status_code == 401
        assert file.read() == {}
        assert client.get("/labelling", headers=WRITE).json()["writable"]
        assert client.post("/labelling/decisions", json=body, headers=WRITE).status_code == 200
        assert list(file.read()) == ["kind 0/1.jpg"]
    with TestClient(build_service(doubtful, page=False), base_url=HERE) as client:
        assert client.get("/labelling").status_code == 404


def test_a_table_that_cannot_be_written_is_said_without_its_folder(doubtful: Path) -> None:
    app = build_labeller(doubtful, Path("/proc/labels/d.csv"))
    with TestClient(app, base_url=HERE) as client:
        answer = client.post("/labelling/decisions", json={"id": "kind 0/1.jpg", "decision": "keep"})
        assert answer.status_code == 507
        assert answer.json()["detail"].startswith("d.csv cannot be written")


def test_an_index_without_labels_says_so(tmp_path: Path) -> None:
    import numpy as np

    Index.build(np.eye(3)).save(tmp_path / "plain.index")
    with TestClient(build_labeller(tmp_path / "plain.index", tmp_path / "d.csv"), base_url=HERE) as client:
        answer = wait_for(client)
        assert answer.status_code == 422
        assert "expected an index with labels" in answer.json()["detail"]
