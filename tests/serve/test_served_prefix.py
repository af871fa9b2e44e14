"""A whole index that is served at a prefix answers as an index that was built with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from metrix.errors import InvalidInput
from metrix.retrieve.indexing import index_images
from metrix.retrieve.upgrading import upgrade_index
from metrix.runs.trained_model import open_run
from metrix.search import Index, Items
from metrix.serve.access import Access
from metrix.serve.api import build_service
from metrix.serve.limits import Limits
from metrix.serve.state import ServedIndex
from tests.photos import write_photos
from tests.rounding import up_to_rounding
from tests.serve.test_service import client_of
from tests.trained_runs import own_copy

ONE = "kind 1/2.jpg"


@pytest.fixture(scope="module")
def folder(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`, trained for prefixes of 4 and 8 of 16 numbers; `whole.index` and `short.index`, of 8, of `photos`."""
    folder = tmp_path_factory.mktemp("served-prefix")
    run = own_copy(shared_folder, folder, "matryoshka", max_steps=12, dim=16, matryoshka=(4, 8)).rename(folder / "run")
    photos = write_photos(folder / "photos", classes=3, per_class=9)
    index_images(open_run(run), [photos], folder / "whole.index", kind="sq8")
    index_images(open_run(run, dim=8), [photos], folder / "short.index")
    return folder


def ask(client: TestClient, photo: Path, number: Any) -> list[Any]:
    """Answers to queries by image, id and vector, without what says which state they are of."""
    vector = np.arange(1.0, 9.0).tolist()
    answers = [
        client.get("/search", params={"id": ONE, "k": 5}),
        client.post("/search", params={"k": 12}, files={"image": photo.read_bytes()}),
        client.post("/search", params={"k": 3, "where": "label=kind 0"}, json={"vector": vector}),
        client.get("/classify", params={"id": ONE}),
        client.post("/classify", files={"image": photo.read_bytes()}),
        client.get(f"/items/{ONE}", params={"vector": True}),
    ]
    assert [one.status_code for one in answers] == [200] * len(answers)
    return [up_to_rounding({**one.json(), "generation": number}) for one in answers]


def test_the_answers_are_those_of_an_index_of_the_prefix(folder: Path) -> None:
    photo = folder / "photos" / "kind 2" / "1.jpg"
    with client_of(folder / "short.index") as client:
        expected, about = ask(client, photo, 0), client.get("/info").json()
    with client_of(folder / "whole.index", dim=8) as client:
        assert ask(client, photo, 0) == expected
        now = client.get("/info").json()
        assert (now["dim"], now["kind"], now["model"]) == (8, "exact", about["model"])
        wrong = client.post("/search", json={"vector": [1.0] * 16})
        assert (wrong.status_code, "expected 8 numbers" in wrong.text) == (422, True)
        assert client.get("/", follow_redirects=True).status_code == 200
        changed = Index.open(folder / "whole.index")
        whole = changed.get([ONE]).vectors
        changed.add(Items.read(whole, ["kind 1/copy.jpg"], {"label": ["kind 1"]}))
        client.post("/reload")
        found = client.get("/search", params={"id": ONE, "k": 1}).json()["neighbours"]
        assert [one["id"] for one in found] == ["kind 1/copy.jpg"]
        changed.delete(["kind 1/copy.jpg"])


def test_prefixes_are_refused_as_elsewhere(folder: Path, other_run: Path, refused: Any, tmp_path: Path) -> None:
    whole = folder / "whole.index"
    refused("serve", whole, "--dim", 6, words="trained for, 4, 8, or the whole, 16, got 6; ")
    refused("serve", whole, "--dim", 17, words="dim: expected at most 16, of the whole embedding, got 17")
    refused("serve", folder / "short.index", "--dim", 16, words="dim: expected at most 8")
    refused("serve", whole, "--dim", 8, "--write-token", "pen", words="expected without a token for changes")
    assert ServedIndex(whole, Limits(), dim=6, force_dim=True).index.dim == 6
    assert ServedIndex(whole, Limits(), dim=16).index.kind == "sq8"
    assert ServedIndex(folder / "short.index", Limits(), dim=4).index.dim == 4
    with pytest.raises(InvalidInput, match="without a token for changes"):
        build_service(whole, access=Access(write_token="pen"), dim=8)
    bare = Index.build(np.eye(6), columns={"label": list("aabbcc")}).save(tmp_path / "bare.index")
    with pytest.raises(InvalidInput, match=r"prefixes were not trained .* --force-dim"):
        ServedIndex(tmp_path / "bare.index", Limits(), dim=3)
    with pytest.raises(InvalidInput, match="no zero vector"):
        ServedIndex(tmp_path / "bare.index", Limits(), dim=3, force_dim=True)
    bare.close()
    upgraded = Index.open(whole).save(tmp_path / "upgraded.index")
    upgrade_index(upgraded, other_run, resamples=0)
    with pytest.raises(InvalidInput, match=r"of one model, got .* --update --only-old"):
        ServedIndex(tmp_path / "upgraded.index", Limits(), dim=8)
