"""Requests drawn from the service's own OpenAPI description: whatever is sent, the answer is never a 500."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info < (3, 11):
    pytest.skip("schemathesis needs Python 3.11", allow_module_level=True)

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from metrix.serve.access import Access
from metrix.serve.api import build_service
from metrix.serve.limits import Limits

TOKEN = {"Authorization": "Bearer sesame"}
EXAMPLES = 25  # of each operation
WITH_PARAMETERS = [
    ("/search", "GET"),
    ("/search", "POST"),
    ("/classify", "GET"),
    ("/classify", "POST"),
    ("/items/{id}", "GET"),
    ("/image/{id}", "GET"),
]
WITHOUT = [("/info", "GET"), ("/livez", "GET"), ("/readyz", "GET"), ("/metrics", "GET"), ("/reload", "POST")]
CASES = [
    *((path, method, mode) for path, method in WITH_PARAMETERS for mode in ("positive", "negative")),
    *((path, method, "positive") for path, method in WITHOUT),
]


@pytest.fixture(scope="module")
def api(indexed: Path) -> Any:
    app = build_service(indexed / "photos.index", limits=Limits(seconds=20), access=Access("sesame"))
    yield schemathesis.openapi.from_asgi("/openapi.json", app, headers=TOKEN)
    app.state.service.batcher.close()


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_no_request_ends_in_a_server_error(api: Any, path: str, method: str, mode: str) -> None:
    kind = getattr(schemathesis.GenerationMode, mode.upper())
    drawn: st.SearchStrategy[Any] = api[path][method].as_strategy(generation_mode=kind)
    seen = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def check(case: Any) -> None:
        answer = case.call(headers=TOKEN)
        seen.append(answer.status_code)
        case.validate_response(answer, checks=[not_a_server_error])

    check()
    assert seen
    assert set(seen) <= {200, 400, 404, 405, 413, 415, 422}
