"""What every request passes: origin, tokens, time from its arrival, names, log lines, and what is counted."""

from __future__ import annotations

import io
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from metrix.errors import InvalidInput
from metrix.serve.access import Access
from metrix.serve.api import build_service
from metrix.serve.limits import Limits
from metrix.serve.logs import write_logs
from tests.serve.serving import connect, serve
from tests.serve.test_service import client_of

ONE = "kind 0/0.jpg"


@pytest.fixture(scope="module")
def client(indexed: Path) -> Iterator[TestClient]:
    with client_of(indexed / "photos.index") as opened:
        yield opened


def test_methods_are_counted_by_name_only_if_they_are_known(client: TestClient) -> None:
    client.request("A" * 60_000, "/search")
    client.request("FOO", "/search")
    text = client.get("/metrics").text
    assert 'method="other"' in text
    assert "AAAA" not in text
    assert "FOO" not in text


def test_pages_from_elsewhere_cannot_post_or_frame(client: TestClient, indexed: Path) -> None:
    foreign: list[dict[str, str]] = [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9"},
        {"origin": "http://[x"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ]
    for headers in foreign:
        assert client.post("/reload", headers=headers).status_code == 403, headers
        assert client.post("/search", json={"id": ONE}, headers=headers).status_code == 403, headers
    for headers in ({"origin": "http://127.0.0.1"}, {}, {"sec-fetch-site": "same-origin"}):
        assert client.post("/search", json={"id": ONE}, headers=headers).status_code == 200, headers
    for path in ("/", "/docs"):
        assert "frame-ancestors 'none'" in client.get(path).headers["content-security-policy"]
    assert client.get("/info").headers["x-frame-options"] == "DENY"
    assert client.get(f"/image/{ONE}").headers["cross-origin-resource-policy"] == "same-origin"
    with client_of(indexed / "photos.index", access=Access("sesame")) as guarded:
        cookie, bearer = {"cookie": "metrix_token=sesame"}, {"authorization": "Bearer sesame"}
        evil = {"origin": "https://evil.example"}
        assert guarded.post("/reload", headers=cookie | evil).status_code == 403
        assert guarded.post("/reload", headers=cookie).status_code == 200
        assert (
            guarded.post("/reload", headers=bearer | evil).status_code == 200
        )  # no page can send it without being told


def test_tokens_in_any_script(indexed: Path) -> None:
    with serve(build_service(indexed / "photos.index", access=Access("Schlüssel-鍵"))) as address:
        for sent, status in (("Schlüssel-鍵", 200), ("Schlussel-鍵", 401), ("-", 401)):
            headers = [(b"Authorization", b"Bearer " + sent.encode())]
            assert httpx.get(f"{address}/info", headers=headers).status_code == status, sent
        quoted = "Schl%C3%BCssel-%E9%8D%B5"
        assert httpx.get(f"{address}/info", headers={"cookie": f"metrix_token={quoted}"}).status_code == 200


def test_metrics_without_a_token_if_asked(indexed: Path) -> None:
    with client_of(indexed / "photos.index", access=Access("sesame", open_metrics=True)) as client:
        text = client.get("/metrics").text
        assert client.get("/info").status_code == 401
    if Path("/proc/self/status").exists():
        assert float(re.findall(r"^process_resident_memory_bytes (\S+)", text, re.M)[0]) > 1e7


def test_the_time_of_a_request_counts_from_its_arrival(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(indexed / "photos.index", Limits(seconds=0.3)) as client:
        state = client.app.state.service.current  # type: ignore[attr-defined]
        monkeypatch.setattr(type(state), "find_row", lambda *_: time.sleep(1.5))
        start = time.monotonic()
        assert client.get("/search", params={"id": ONE}).status_code == 504
        assert client.get(f"/items/{ONE}").status_code == 504
        assert time.monotonic() - start < 1.4


def test_an_error_says_nothing_of_the_folders_of_the_machine(indexed: Path, run: Path) -> None:
    with client_of(indexed / "photos.index") as client:
        service = client.app.state.service  # type: ignore[attr-defined]
        answers = [client.get("/search", params={"id": ONE, "same": True})]

        def refuse(*_: Any) -> Any:
            raise InvalidInput(f"{service.folder}: {service.current.index.description.model.run} is damaged")

        service.reload = refuse
        answers.append(client.post("/reload"))
    for answer in answers:
        assert answer.status_code in (409, 422)
        for folder in (indexed, run.parent):
            assert str(folder) not in answer.text


def logged(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_requests_are_logged_with_their_names(indexed: Path) -> None:
    stream = io.StringIO()
    with write_logs("info", "json", stream), client_of(indexed / "photos.index", access=Access("sesame")) as client:
        token = {"authorization": "Bearer sesame"}
        named = client.get("/search", params={"id": ONE}, headers=token | {"x-request-id": "mine-7"})
        assert named.headers["x-request-id"] == "mine-7"
        odd = client.get("/info", headers=token | {"x-request-id": "a b;c"})
        assert re.fullmatch("[0-9a-f]{16}", odd.headers["x-request-id"])
        client.get("/info")
        client.get("/livez")
        service = client.app.state.service  # type: ignore[attr-defined]
        service.items.run = None  # a fault of the service
        failed = client.get(f"/items/{ONE}", headers=token)
        assert failed.status_code == 500
        assert failed.headers["x-request-id"] in failed.json()["detail"]
    lines = logged(stream.getvalue())
    by_status = {line["status"]: line for line in lines if "status" in line}
    assert by_status[200]["level"] == "info"
    assert (by_status[401]["level"], by_status[401]["path"]) == ("warning", "/info")
    assert (by_status[500]["level"], by_status[500]["request"]) == ("error", failed.headers["x-request-id"])
    assert "TypeError" in by_status[500]["traceback"]
    assert [line["request"] for line in lines if line.get("path", "").startswith("/search")] == ["mine-7"]
    assert not any(line.get("path") == "/livez" for line in lines)  # probes come every few seconds
    assert "shutting down" in [line["message"] for line in lines]


def test_a_request_cannot_fake_a_line_of_the_log(indexed: Path) -> None:
    stream = io.StringIO()
    with write_logs("info", "text", stream), client_of(indexed / "photos.index") as client:
        client.get("/items/x%0a2026-01-01T00:00:00.000Z INFO    fake%1b[31m")
    lines = stream.getvalue().splitlines()
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert "\x1b" not in stream.getvalue()
    assert any("\\n2026-01-01" in line and "status=404" in line for line in lines)


def test_a_log_that_nobody_reads_does_not_hold_up_the_service(indexed: Path) -> None:
    class Blocked(io.StringIO):
        def write(self, _: str) -> int:
            time.sleep(30)
            return 0

    with write_logs("info", "text", Blocked()), client_of(indexed / "photos.index") as client:
        start = time.monotonic()
        for _ in range(20):
            client.get("/info")
    assert time.monotonic() - start < 10


def test_a_client_that_leaves_is_not_a_failure_of_the_service(indexed: Path) -> None:
    stream = io.StringIO()
    head = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\nContent-Length: 5000\r\n\r\n"
    with write_logs("info", "json", stream), serve(build_service(indexed / "photos.index")) as address:
        part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="q.jpg"\r\n\r\nabc'
        for kind, body in ((b"multipart/form-data; boundary=x", part), (b"application/json", b'{"id"')):
            opened = connect(address, head % kind + body)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
            time.sleep(0.2)
            opened.close()
        deadline = time.monotonic() + 5
        while (text := httpx.get(f"{address}/metrics").text).count(
            'status="499"} 2.0'
        ) < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert 'metrix_requests_total{method="POST",route="/search",status="499"} 2.0' in text
    assert 'status="500"' not in text
    assert "traceback" not in stream.getvalue()
