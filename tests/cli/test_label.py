"""`metrix label`, as typed, without the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from metrix.retrieve.decisions import DecisionFile
from metrix.search import Index


def test_the_queue_for_scripts_and_what_follows(metrix: Any, own_index: Path, tmp_path: Path) -> None:
    index = Index.open(own_index)
    index.set_columns(["kind 0/1.jpg", "kind 2/1.jpg"], {"label": ["[red]kind 2", None]})
    found = metrix("label", own_index, "--json").json
    asked = {one["id"]: one for one in found["questions"]}
    assert asked["kind 2/1.jpg"]["reason"] == "unlabelled"
    shown = metrix("label", own_index, "--list")
    assert shown.code == 0
    assert f"{len(asked)} labels to look at, 0 decided" in shown.out
    only = metrix("label", own_index, "--json", "--only", "unlabelled").json["questions"]
    assert [one["id"] for one in only] == ["kind 2/1.jpg"]
    file = DecisionFile(own_index.with_suffix(".labels.csv"))
    file.add(index, "kind 2/1.jpg", "accept", "kind 2", who="anna")
    file.add(index, "kind 0/1.jpg", "relabel", "kind 0", who="anna")
    after = metrix("label", own_index, "--json").json
    assert {one["id"] for one in after["questions"]} == asked.keys() - {"kind 2/1.jpg", "kind 0/1.jpg"}
    assert [one["decision"] for one in after["decided"]] == ["accept", "relabel"]
    elsewhere = metrix("label", own_index, "--json", "-o", tmp_path / "other.csv").json
    assert elsewhere["questions"] == found["questions"]
    assert "--relabel" in metrix("label", own_index, "--list").err
    written = metrix("label", own_index, "--manifest", tmp_path / "all.csv")
    assert written.code == 0, written.err
    assert "18 labelled images, with 2 decisions" in written.out
    assert "--root" in written.err
    assert metrix("index", "-o", own_index, "--relabel", file.path).code == 0
    assert Index.open(own_index).get(["kind 2/1.jpg"]).columns["label"].to_pylist() == ["kind 2"]


def test_mistakes(metrix: Any, refused: Any, own_index: Path, tmp_path: Path) -> None:
    refused("label", tmp_path, words=("expected an index",))
    refused("label", own_index, "--only", "suspects", "--list", words=("did you mean 'suspect'?",))
    refused("label", own_index, "--only", "suspects", words=("did you mean 'suspect'?",))
    refused("label", own_index, "-o", tmp_path / "d.json", words=("ends in .csv",))
    refused("label", own_index, "--manifest", tmp_path / "d.json", words=("ends in .csv",))
    refused("label", own_index, "--host", "0.0.0.0", words=("without a token",))
    (tmp_path / "other.csv").write_text("path,label\na,b\n")
    refused("label", own_index, "-o", tmp_path / "other.csv", words=("expected a table of decisions", "other.csv"))
    Index.build(np.eye(3)).save(tmp_path / "plain.index")
    refused("label", tmp_path / "plain.index", words=("expected an index with labels",))


def test_the_page_is_served_until_it_is_stopped(own_index: Path) -> None:
    program = [sys.executable, "-m", "metrix", "label", str(own_index), "--port", "0"]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("open http://127.0.0.1:")
        assert "photos.labels.csv" in process.stderr.readline()
    finally:
        process.terminate()
        process.communicate(timeout=60)
