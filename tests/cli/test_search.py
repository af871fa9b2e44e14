"""`metrix index`, `metrix search` and `metrix threshold`, as typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.photos import draw_photo, write_photos


@pytest.fixture(scope="module")
def run(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of these tests alone, without a threshold."""
    ignored = shutil.ignore_patterns("threshold.json")
    return Path(shutil.copytree(run, tmp_path_factory.mktemp("own") / "run", ignore=ignored))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_photos(tmp_path_factory.mktemp("cli") / "photos")
    (folder / "kind 1" / "broken.jpg").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def index(metrix: Any, run: Path, photos: Path) -> Path:
    target = photos.parent / "photos.index"
    outcome = metrix("index", run, photos, "-o", target)
    assert outcome.code == 0, outcome.err
    assert "18" in outcome.out
    assert "1 skipped: kind 1/broken.jpg" in outcome.err
    assert f"metrix search {target}" in outcome.err
    return target


def test_index_says_what_it_holds(metrix: Any, run: Path, photos: Path, tmp_path: Path) -> None:
    outcome = metrix("index", run, photos, "-o", tmp_path / "i", "--kind", "hnsw", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert found["count"] == found["embedded"] == 18
    assert found["skipped"] == 1
    assert [one["path"] for one in found["skipped_images"]] == ["kind 1/broken.jpg"]
    assert found["columns"] == {"label": "text"}
    assert 0 < found["recall"] <= 1
    assert "recall@10 against exact" in metrix("index", run, photos, "-o", tmp_path / "i", "--kind", "ivf").out


def test_search_by_image_id_and_vector_agree(metrix: Any, index: Path, photos: Path, tmp_path: Path) -> None:
    from metrix.search import Index

    by_id = metrix("search", index, "--id", "kind 2/3.jpg", "-k", 5, "--json")
    assert by_id.code == 0, by_id.err
    by_image = metrix("search", index, photos / "kind 2" / "3.jpg", "-k", 5, "--json").json
    np.save(tmp_path / "q.npy", Index.open(index).get(["kind 2/3.jpg"]).vectors[0])
    by_vector = metrix("search", index, "--vector", tmp_path / "q.npy", "-k", 6, "--json").json
    names = [[hit["id"] for hit in one["queries"][0]["neighbours"]] for one in (by_id.json, by_image, by_vector)]
    assert names[0] == names[1] == names[2][1:]
    assert names[2][0] == "kind 2/3.jpg"
    hit = by_id.json["queries"][0]["neighbours"][0]
    assert set(hit) == {"id", "similarity", "label"}


def test_batches_tables_and_filters(metrix: Any, index: Path, photos: Path, tmp_path: Path) -> None:
    draw_photo(1, 77).save(tmp_path / "new.png")
    (tmp_path / "list.txt").write_text("new.png\nmissing.png\n")
    outcome = metrix("search", index, photos / "kind 0", tmp_path / "list.txt", "--where", "label=kind 1", "-k", 3)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("similarity") == 7
    assert "1 skipped" in outcome.err
    found = metrix("search", index, photos / "kind 0", "--where", "label=kind 1", "-k", 30, "--json").json
    assert {hit["label"] for one in found["queries"] for hit in one["neighbours"]} == {"kind 1"}
    assert {len(one["neighbours"]) for one in found["queries"]} == {6}


def test_not_the_same_sequence(metrix: Any, refused: Any, run: Path, photos: Path, index: Path, tmp_path: Path) -> None:
    paths = sorted(file.relative_to(photos).as_posix() for file in photos.rglob("*.jpg") if file.stem != "broken")
    #   shoots cross the classes; every fifth photo is of none
    shoots = {path: "" if n % 5 == 0 else f'shoot "{n % 2}"' for n, path in enumerate(paths)}
    rows = [f'{path},{path.split("/")[0]},"{shoots[path].replace(chr(34), chr(34) * 2)}"' for path in paths]
    (photos / "list.csv").write_text("\n".join(["path,label,sequence", *rows]))
    target = tmp_path / "shoots.index"
    assert metrix("index", run, photos / "list.csv", "-o", target).code == 0
    (photos / "list.csv").unlink()
    asked = [path for path in paths if shoots[path]][:3] + [path for path in paths if not shoots[path]][:1]
    ids = [part for path in asked for part in ("--id", path)]
    plain = metrix("search", target, *ids, "-k", 17, "--json").json["queries"]
    found = metrix("search", target, *ids, "-k", 17, "--not-same-sequence", "--json").json["queries"]
    for path, before, after in zip(asked, plain, found, strict=True):
        kept = [hit for hit in before["neighbours"] if not shoots[path] or shoots[hit["id"]] != shoots[path]]
        assert [hit["id"] for hit in after["neighbours"]] == [hit["id"] for hit in kept]
    assert len(found[0]["neighbours"]) < len(found[3]["neighbours"]) == 17
    by_image = metrix("search", target, photos / asked[0], "-k", 17, "--not-same-sequence", "--json").json["queries"]
    assert [hit["id"] for hit in by_image[0]["neighbours"]] == [hit["id"] for hit in found[0]["neighbours"]]
    refused("search", index, "--id", asked[0], "--not-same-sequence", words="with a column 'sequence'")
    np.save(tmp_path / "q.npy", np.ones(4))
    unknown = ("search", target, "--vector", tmp_path / "q.npy", "--not-same-sequence")
    refused(*unknown, words="expected queries with a sequence")


def test_refinements_and_thresholds(metrix: Any, index: Path) -> None:
    plain = metrix("search", index, "--id", "kind 0/0.jpg", "-k", 17, "--json").json["queries"][0]["neighbours"]
    outcome = metrix("search", index, "--id", "kind 0/0.jpg", "-k", 17, "--rerank", "--expand", 3, "--json")
    assert outcome.code == 0, outcome.err
    refined = outcome.json["queries"][0]["neighbours"]
    assert {hit["id"] for hit in refined} == {hit["id"] for hit in plain}
    middle = plain[8]["similarity"]
    found = metrix("search", index, "--id", "kind 0/0.jpg", "-k", 17, "--threshold", middle, "--json").json
    assert found["queries"][0]["neighbours"] == plain[:9]
    nothing = metrix("search", index, "--id", "kind 0/0.jpg", "--threshold", 1)
    assert "nothing was found" in nothing.out
    assert "similarity" not in nothing.out.replace("at similarity", "")  # no table without rows


def test_duplicates_and_suspects(metrix: Any, run: Path, tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", classes=3, per_class=8)
    for name in ("kind 0/copy.jpg", "kind 2/a.jpg", "kind 2/b.jpg"):
        (folder / name).write_bytes((folder / "kind 2" / "1.jpg").read_bytes())
    target = tmp_path / "p.index"
    assert metrix("index", run, folder, "-o", target).code == 0
    found = metrix("search", target, "--duplicates", "--threshold", 0.999999, "--json").json
    assert ["kind 0/copy.jpg", "kind 2/1.jpg", "kind 2/a.jpg", "kind 2/b.jpg"] in [
        group["ids"] for group in found["duplicates"]
    ]
    outcome = metrix("search", target, "--duplicates", "--html", tmp_path / "d.html")
    assert outcome.code == 0, outcome.err
    assert "near-identical" in outcome.out
    suspects = metrix("search", target, "--suspects", "-k", 3, "--json").json["suspects"]
    assert {"kind 0/copy.jpg": "kind 2"}.items() <= {one["id"]: one["suggested"] for one in suspects}.items()
    outcome = metrix("search", target, "--suspects", "-k", 3, "--html", tmp_path / "s.html")
    assert "neighbours say" in outcome.out
    assert "kind 2" in (tmp_path / "s.html").read_text()


def test_mirrored_copies(metrix: Any, refused: Any, run: Path, index: Path, tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for n in range(12):
        coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        coarse.resize((48, 48), Image.Resampling.BICUBIC).save(tmp_path / "photos" / "a" / f"{n}.png")
    with Image.open(tmp_path / "photos" / "a" / "3.png") as image:
        ImageOps.mirror(image).save(tmp_path / "photos" / "a" / "mirror.png")
    target = tmp_path / "p.index"
    assert metrix("index", run, tmp_path / "photos", "-o", target).code == 0
    exact = ("search", target, "--duplicates", "--threshold", 0.9999, "--json")
    assert metrix(*exact).json["duplicates"] == []
    outcome = metrix(*exact, "--flips")
    assert [group["ids"] for group in outcome.json["duplicates"]] == [["a/3.png", "a/mirror.png"]], outcome.err
    (tmp_path / "photos" / "a" / "5.png").write_bytes(b"no image")
    assert "1 image could not be read and mirrored" in metrix("search", target, "--duplicates", "--flips").err
    refused("search", index, "--suspects", "--flips", words="--flips: expected with other searches")


def test_the_page_shows_the_images(metrix: Any, index: Path, photos: Path, tmp_path: Path) -> None:
    draw_photo(1, 78).save(tmp_path / "new.png")
    outcome = metrix("search", index, tmp_path / "new.png", "--html", tmp_path / "page.html", "-k", 4)
    assert outcome.code == 0, outcome.err
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/jpeg") == 5
    assert "✓" not in page  # the class of the query is not known
    metrix("search", index, "--id", "kind 0/0.jpg", "--html", tmp_path / "page.html", "-k", 4)
    page = (tmp_path / "page.html").read_text()
    assert "✓" in page or "✗" in page
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".html", ".md")] == ["page.html"]


def test_changes(metrix: Any, run: Path, photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "p.index"
    assert metrix("index", run, photos / "kind 0", "--root", photos, "-o", target).code == 0
    outcome = metrix("index", run, photos / "kind 1", "--add", "-o", target, "--json")
    assert outcome.code == 0, outcome.err
    assert (outcome.json["count"], outcome.json["embedded"], outcome.json["skipped"]) == (12, 6, 1)
    assert metrix("index", run, photos / "kind 1", "--update", "-o", target, "--json").json["count"] == 12
    assert (
        metrix("index", "-o", target, "--delete", "kind 0/0.jpg", "--delete", "kind 0/1.jpg", "--json").json["count"]
        == 10
    )
    other = tmp_path / "other.index"
    metrix("index", run, photos / "kind 2", "-o", other)
    outcome = metrix("index", run, "-o", target, "--merge", other, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["count"] == 16
    assert metrix("search", target, "--id", "kind 2/4.jpg", "--json").code == 0


def test_milvus_answers_the_same(metrix: Any, run: Path, photos: Path, index: Path, tmp_path: Path) -> None:
    pytest.importorskip("pymilvus", reason="Milvus is NOT TESTED: pip install 'metrix[milvus]'")
    target = tmp_path / "m.index"
    outcome = metrix("index", run, photos, "-o", target, "--store", f"milvus:{tmp_path / 'photos.db'}")
    assert outcome.code == 0, outcome.err
    for arguments in (("--id", "kind 1/2.jpg"), (photos / "kind 0" / "1.jpg", "--where", "label!=kind 0", "--rerank")):
        one, other = (metrix("search", place, *arguments, "--json").json["queries"] for place in (index, target))
        assert [hit["id"] for hit in one[0]["neighbours"]] == [hit["id"] for hit in other[0]["neighbours"]]
        scores = [[hit["similarity"] for hit in answer[0]["neighbours"]] for answer in (one, other)]
        np.testing.assert_allclose(*scores, atol=2e-6)


def test_glyphs_are_searched_by_id(metrix: Any, run: Path, tmp_path: Path) -> None:
    outcome = metrix("index", run, "glyphs-mini", "-o", tmp_path / "g.index")
    assert outcome.code == 0, outcome.err
    found = metrix("search", tmp_path / "g.index", "--id", "U+1E00/DejaVuSans", "--html", tmp_path / "g.html")
    assert found.code == 0, found.err
    assert "data:image/png" in (tmp_path / "g.html").read_text()


def test_threshold_is_told_kept_and_used(metrix: Any, run: Path, photos: Path, index: Path, tmp_path: Path) -> None:
    outcome = metrix("threshold", run, "--recall", 0.7, "--bootstrap", 20)
    assert outcome.code == 0, outcome.err
    assert "Same thing from similarity" in outcome.out
    assert "held-out classes of glyphs-mini" in outcome.out
    try:
        found = metrix("threshold", run, "--recall", 0.7, "--bootstrap", 20, "--json", "-o", tmp_path).json
        assert found["recall"] >= 0.7
        assert found["low"] <= found["similarity"] <= found["high"]
        assert json.loads((run / "threshold.json").read_text()) == found
        assert {path.name for path in tmp_path.iterdir()} == {"threshold.png", "threshold.svg"}
        answer = metrix("search", index, photos / "kind 0" / "0.jpg", "--same", "--json")
        assert answer.json["threshold"] == found["similarity"]  # the run's: the index was built before
        target = tmp_path / "p.index"
        assert (
            metrix("index", run, photos, "-o", target, "--json").json["threshold"]["similarity"] == found["similarity"]
        )
        assert metrix("search", target, "--duplicates", "--same", "--json").json["threshold"] == found["similarity"]
    finally:
        (run / "threshold.json").unlink()


def test_evaluate_measures_what_refinements_do(metrix: Any, run: Path) -> None:
    common = ("--json", "--bootstrap", 50, "--no-clustering")
    plain = metrix("evaluate", run, *common).json
    outcome = metrix("evaluate", run, *common, "--rerank", "--expand", 2)
    assert outcome.code == 0, outcome.err
    effect = outcome.json["refinement"]["differences"]["recall@1"]
    assert effect["a"] == plain["retrieval"]["measures"]["recall@1"]
    assert effect["b"] == outcome.json["retrieval"]["measures"]["recall@1"]
    assert effect["difference"] == pytest.approx(effect["b"] - effect["a"])
    assert outcome.json["rerank"] > 0
    table = metrix("evaluate", run, "--bootstrap", 50, "--no-clustering", "--expand", 2).out
    assert "Effect of query expansion by 2" in table


def test_an_engine_is_told_and_stored(metrix: Any, refused: Any, run: Path, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    target = tmp_path / "e.index"
    outcome = metrix("index", run, photos, "-o", target, "--engine", "onnx")
    assert outcome.code == 0, outcome.err
    assert "embedded by" in outcome.out
    assert "engine: onnx, " in outcome.err
    assert "differ by at most" in outcome.err
    assert metrix("index", run, photos, "-o", target, "--update", "--json").json["model"]["engine"]["name"] == "onnx"
    assert metrix("search", target, photos / "kind 0" / "0.jpg", "--json").code == 0
    refused(
        "index", run, photos, "-o", target, "--update", "--engine", "torch", words=("--engine: expected onnx", "anew")
    )
    refused(
        "index", run, photos, "-o", target, "--engine", "onx", words=("unknown engine 'onx'", "did you mean 'onnx'")
    )
    refused("index", "-o", target, "--delete", "x", "--engine", "onnx", words=("--engine: expected with data",))


def test_mistakes(
    refused: Any, metrix: Any, run: Path, other_run: Path, index: Path, photos: Path, tmp_path: Path
) -> None:
    refused("search", tmp_path / "none", "--id", "x", words=("expected an index", "nothing there"))
    refused("search", index, words=("expected one of QUERY",))
    refused("search", index, "q.jpg", "--id", "x", words=("QUERY and --id",))
    refused("search", index, "none.jpg", words=("none.jpg does not exist",))
    refused("search", index, "--id", "kind 0/99.jpg", words=("expected one of 18",))
    refused("search", index, "--id", "kind 0/0.jpg", "--where", "lable=a", words=("did you mean 'label'",))
    refused("search", index, "--id", "kind 0/0.jpg", "--same", words=("metrix threshold",))
    refused("search", index, "--id", "kind 0/0.jpg", "--same", "--threshold", 0.5, words=("got both",))
    refused("search", index, "--suspects", "--rerank", words=("--rerank",))
    refused("search", index, "--id", "kind 0/0.jpg", "--html", tmp_path / "x.pdf", words=(".html",))
    refused("search", index, photos / "kind 0" / "0.jpg", "--run", other_run, words=("model: expected",))
    np.save(tmp_path / "nan.npy", np.full(3, np.nan))
    refused("search", index, "--vector", tmp_path / "nan.npy", words=("NaN",))
    np.save(tmp_path / "short.npy", np.ones(3))
    refused("search", index, "--vector", tmp_path / "short.npy", words=("expected dimension",))
    refused("index", run, words=("expected -o INDEX",))
    refused("index", run, "-o", tmp_path / "i", words=("metrix index RUN PATH",))
    refused("index", run, photos, "-o", tmp_path / "i", "--kind", "hnws", words=("did you mean 'hnsw'",))
    refused("index", run, photos, "-o", tmp_path / "i", "--store", "redis", words=("store: expected faiss",))
    refused("index", run, photos, "--add", "--update", "-o", index, words=("--add and --update",))
    refused("index", other_run, photos, "--add", "-o", index, words=("model: expected",))
    refused("index", run, photos, "--add", "-o", tmp_path / "none", words=("expected an index",))
    refused("index", run, tmp_path / "x.png", "-o", tmp_path / "i", words=("does not exist",))
    refused("index", "-o", index, "--delete", "nobody", words=("got nobody",))
    refused("index", run, photos, "-o", index, "--delete", "kind 0/0.jpg", words=("expected no data",))
    (tmp_path / "file").write_text("")
    refused("index", run, photos, "-o", tmp_path / "file", words=("cannot be written",))
    refused("threshold", run, words=("expected one of --precision",))
    refused("threshold", run, "--precision", 1.5, words=("fraction between 0 and 1",))
    refused("threshold", run, "--precision", 0.9, "--far", 0.1, words=("--precision and --far",))
    refused("evaluate", run, "--rerank", "--approximate", "--no-clustering", words=("--approximate",))


def test_a_list_of_queries_relative_to_a_root(metrix: Any, index: Path, photos: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("kind 0/1.jpg\nkind 1/2.jpg\n", encoding="utf-8")
    outcome = metrix("search", index, queries, "--root", photos, "-k", 2, "--json")
    assert outcome.code == 0, outcome.err
    assert [one["query"] for one in outcome.json["queries"]] == [
        str(photos / "kind 0/1.jpg"),
        str(photos / "kind 1/2.jpg"),
    ]
    outcome = metrix("search", index, "--id", "kind 0/1.jpg", "--root", photos)  # where the images are now
    assert outcome.code == 0


def test_a_threshold_that_accepts_almost_nothing_says_so() -> None:
    from types import SimpleNamespace

    from metrix.cli.terminal.search_tables import warn_of_small_recall

    tiny, useful = (SimpleNamespace(threshold=SimpleNamespace(recall=recall)) for recall in (0.003, 0.4))
    assert "only 0.3 % of the pairs" in warn_of_small_recall(tiny)[0]  # type: ignore[arg-type]
    assert warn_of_small_recall(useful) == []  # type: ignore[arg-type]


def test_a_search_with_a_threshold_says_it(metrix: Any, index: Path) -> None:
    nothing = metrix("search", index, "--id", "kind 0/0.jpg", "--threshold", 1).out
    assert "nothing was found" in nothing
    assert "1.0000" in nothing


def test_suspects_and_duplicates_as_tables(metrix: Any, refused: Any, index: Path, tmp_path: Path) -> None:
    metrix("search", index, "--suspects", "-k", 3, "--csv", tmp_path / "s.csv", "--html", tmp_path / "s.html")
    assert (tmp_path / "s.csv").read_text().startswith("id,label,suggested,share,own_share,surprise")
    metrix("search", index, "--duplicates", "--csv", tmp_path / "d.csv")
    assert (tmp_path / "d.csv").read_text().startswith("group,id,least_similarity")
    refused("search", index, "--id", "kind 0/0.jpg", "--csv", tmp_path / "x.csv", words=("--csv",))


@pytest.mark.filterwarnings("default::metrix.MetrixWarning")
def test_search_says_how_many_images_are_missing(metrix: Any, run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    metrix("index", run, photos, "-o", tmp_path / "i")
    asked = ("search", tmp_path / "i", "--id", "kind 0/0.jpg")
    assert "are not in" not in metrix(*asked).err
    for n in range(4):
        (photos / "kind 2" / f"{n}.jpg").unlink()
    found = metrix(*asked, "--json")
    assert "4 of 18 images of the index that were looked for are not in" in found.err
    assert found.json
    photos.rename(tmp_path / "elsewhere")
    assert "18 of 18 images" in metrix(*asked).err
    assert "4 of 18 images" in metrix(*asked, "--root", tmp_path / "elsewhere").err
