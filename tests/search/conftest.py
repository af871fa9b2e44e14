"""A Milvus server that the tests of this folder share, and the stores that each of them is run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a server."""
    from tests.search.milvus_server import NoServer, run_server

    try:
        with run_server(tmp_path_factory.mktemp("milvus")) as uri:
            yield uri
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture(params=["lite", "server"])
def milvus(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store for `Index.create`: a local one, then a server."""
    if request.param == "lite":
        return f"milvus:{tmp_path / 'photos.db'}"
    return f"milvus:{request.getfixturevalue('milvus_server')}"
