"""An index in Milvus, served: searches from several threads, items, changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from metrix.search import Index, Items
from metrix.serve.access import Access
from tests.serve.test_service import client_of

pytest.importorskip("milvus_lite")

WRITER = {"authorization": "Bearer pen"}


def test_an_index_in_milvus_lite_is_served_and_changed(tmp_path: Path) -> None:
    serve_and_change(tmp_path / "i", f"milvus:{tmp_path / 'store.db'}")


def serve_and_change(folder: Path, store: str) -> None:
    """Compare the answers of a served index with those of faiss, and change it; `tests/search` has a server."""
    vectors = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    ids = [f"{n:02d}" for n in range(60)]
    items = Items.read(vectors, ids, {"label": [f"k{n % 3}" for n in range(60)]})
    Index.create(folder, iter([items]), store=store).close()
    twin = Index.build(vectors, ids, columns={"label": [f"k{n % 3}" for n in range(60)]})
    with client_of(folder, store=store, access=Access(write_token="pen"), poll=60) as client:
        asked = [{"id": one, "k": 5} for one in ids[:12]] + [
            {"id": one, "k": 5, "where": "label=k1"} for one in ids[:6]
        ]
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda params: client.get("/search", params=params), asked))
        assert {answer.status_code for answer in answers} == {200}
        for params, answer in zip(asked, answers, strict=True):
            own = [int(params["id"])]
            where = [params["where"]] if "where" in params else []
            expected = twin.search(vectors[own], 5, exclude=[params["id"]], where=where).records()[0]
            assert [hit["id"] for hit in answer.json()["neighbours"]] == [hit["id"] for hit in expected]
        assert client.get("/items", params={"start": 50, "count": 20}).json()["total"] == 60
        assert client.delete("/items/03", headers=WRITER).json()["items"] == 59
        assert client.get("/items/03").status_code == 404
        new = {"items": [{"id": "new", "vector": vectors[3].tolist(), "columns": {"label": "k9"}}]}
        assert client.post("/items", json=new, headers=WRITER).json()["items"] == 60
        found = client.post("/search", json={"vector": vectors[3].tolist()}, params={"k": 1}).json()["neighbours"][0]
        assert (found["id"], found["label"]) == ("new", "k9")
