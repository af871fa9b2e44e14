"""`metrix report`: the numbers of other verbs on one page, and what is missing said instead of failing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.train.run_folder import RunFolder
from tests.report.markup import Markup, checked

SECTIONS = [
    "Overview",
    "Settings",
    "Training",
    "Metrics",
    "Classes",
    "Retrieved images",
    "Embedding map",
    "Geometry",
    "Positivity",
    "Cost",
]


@pytest.fixture(scope="package")
def reported(runs: Path, metrix: Any) -> Any:
    """A clean and a mixed run on one page: the outcome of the command and the page."""
    outcome = metrix("report", runs / "clean", runs / "mixed", "-o", runs / "out" / "report.html", "--json", "-q")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return outcome.json, checked((runs / "out" / "report.html").read_text("utf-8"))


def of_tag(page: Markup, tag: str) -> list[str]:
    return [words for where, words in page.words if where == tag]


def test_every_section_is_there_and_nothing_is_missing(reported: Any, runs: Path) -> None:
    found, page = reported
    assert of_tag(page, "h2") == SECTIONS
    assert of_tag(page, "h1") == ["clean and mixed"]
    assert "Not shown" not in page.text
    assert [run["missing"] for run in found["runs"]] == [None, None]
    assert len((runs / "out" / "report.html").read_bytes()) < 1_000_000
    assert len(page.all("svg")) == 3 + 2 + 1 + 2 + 1  # curves, maps, bars, utilization, positivity


def test_the_numbers_are_those_of_the_other_verbs(reported: Any, runs: Path, metrix: Any) -> None:
    found, page = reported
    compared = metrix("compare", runs / "clean", runs / "mixed", "--json").json
    for run, expected in zip(found["runs"], compared["runs"], strict=True):
        assert run["evaluation"]["retrieval"] == expected["evaluation"]["retrieval"]
    assert found["runs"][0]["against"] is None
    assert found["runs"][1]["against"]["run"] == "clean"
    expected = compared["runs"][1]["against_baseline"]["differences"]
    assert found["runs"][1]["against"]["differences"] == expected
    recall = expected["recall@1"]
    assert f"{100 * recall['difference']:+.2f}" in page.text
    assert f"{100 * recall['low']:+.2f} to {100 * recall['high']:+.2f}" in page.text
    geometry = metrix("analyze", "geometry", runs / "mixed", "--json").json["test"]
    assert found["runs"][1]["geometry"]["alignment"] == geometry["alignment"]
    assert found["runs"][1]["geometry"]["uniformity"] == geometry["uniformity"]
    used = metrix("analyze", "utilization", runs / "mixed", "--mixup", "embed", "--json").json
    assert found["runs"][1]["geometry"]["utilization"] == used
    positivity = metrix("analyze", "positivity", runs / "mixed", "--json").json
    assert found["runs"][1]["positivity"]["empirical"] == positivity["empirical"]
    assert found["runs"][1]["positivity"]["theoretical"] == positivity["theoretical"]


def test_settings_that_differ_come_first(reported: Any) -> None:
    _, page = reported
    captions = of_tag(page, "caption")
    assert captions[:3] == ["Runs", "Settings that differ", "Settings that are the same in all runs"]
    start = page.text.index("Settings that differ")
    told = page.text[start : page.text.index("Settings that are the same")]
    assert re.findall(r"^(mixup|loss|seed|max_steps|reduction)$", told, re.MULTILINE) == ["loss", "reduction", "mixup"]


def test_curves_are_those_of_the_log_with_clean_and_mixed_apart(reported: Any, runs: Path) -> None:
    import csv

    def rows(name: str) -> list[list[str]]:
        with (runs / "out" / "report-files" / f"{name}.csv").open(encoding="utf-8") as file:
            return list(csv.reader(file))[1:]

    logged = {name: RunFolder(runs / name).metrics() for name in ("clean", "mixed")}
    for key, shown in (("clean", ("clean", "mixed")), ("mixed", ("mixed",))):
        expected = [[n, float(line["step"]), line[key]] for n in shown for line in logged[n] if key in line]
        assert [[n, float(x), float(y)] for n, x, y, _ in rows(f"loss-{key}")] == expected
    recalls = [100 * line["val"]["recall"]["1"] for n in logged for line in logged[n] if "val" in line]
    assert [float(y) for _, _, y, _ in rows("validation")] == pytest.approx(recalls)


def test_the_gallery_shows_what_each_run_finds(reported: Any, runs: Path) -> None:
    import csv

    from metrix.runs.trained_model import open_run

    _, page = reported
    assert len([image for image in page.all("img") if "similarity" in image["alt"]]) >= 6 * 2 * 5
    with (runs / "out" / "report-files" / "gallery-random.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len({line["query class"] for line in lines}) == 6
    assert len(lines) == 6 * 2 * 5
    for name in ("clean", "mixed"):
        test = open_run(runs / name).embed("test")
        cosines = test.vectors @ test.vectors.T - 9 * np.eye(len(test))
        nearest = np.sort(cosines, axis=1)[:, ::-1][:, :5]
        first = [float(line["similarity"]) for line in lines if line["query"] == "1" and line["searcher"] == name]
        label = lines[0]["query class"]
        assert any(np.allclose(first, nearest[row], atol=1e-5) for row in np.flatnonzero(test.labels == label))
    with (runs / "out" / "report-files" / "gallery-differ.csv").open(encoding="utf-8") as file:
        ranked = [line for line in csv.DictReader(file) if line["rank"] == "1"]
    by_query = {
        line["query"]: {r["searcher"]: r["right"] for r in ranked if r["query"] == line["query"]} for line in ranked
    }
    assert by_query
    assert all(sorted(answers.values()) == ["no", "yes"] for answers in by_query.values())


def test_markdown_says_the_same_with_its_figures_beside_it(reported: Any, runs: Path) -> None:
    text = (runs / "out" / "report.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    addresses = re.findall(r"\]\((report-files/[^)]+)\)", text)
    assert all((runs / "out" / address).is_file() for address in addresses)
    assert sum(address.endswith(".png") for address in addresses) >= 11
    assert "| run | classes | queries | gallery | Recall@1 |" in text


def test_cost_is_of_the_log_and_the_model(reported: Any, runs: Path) -> None:
    from metrix.runs.trained_model import open_run

    found, _ = reported
    cost, results = found["runs"][1]["cost"], RunFolder(runs / "mixed").results
    assert cost["seconds"] == results["seconds"]
    assert cost["images_per_second"] == pytest.approx(4 * 48 / results["seconds"], abs=0.05)
    model = open_run(runs / "mixed").embedder
    assert cost["parameters"] == sum(p.numel() for p in model.parameters())


def test_one_clean_run_and_no_training_images(runs: Path, metrix: Any) -> None:
    out = runs / "one.html"
    given = ("--test-only", "--queries", 2, "--classes", 3, "--ks", "2,5", "--bootstrap", 0, "--json")
    outcome = metrix("report", runs / "clean", "-o", out, "--figures", runs / "fig", *given)
    assert outcome.code == 0, outcome.err
    page = checked(out.read_text("utf-8"))
    assert "no mixed loss" in page.text
    assert page.text.count("--test-only omits") == 2
    assert "Differences" not in page.text
    assert "Recall@5" in page.text
    assert "interval" not in page.text
    (run,) = outcome.json["runs"]
    assert run["geometry"]["utilization"] is None
    assert run["positivity"] is None
    assert (runs / "fig" / "gallery-random.png").is_file()
    assert "](fig/" in (runs / "one.md").read_text("utf-8")
    first = out.read_bytes()
    metrix("report", runs / "clean", "-o", out, *given)
    assert out.read_bytes() == first


def test_an_unfinished_run_is_shown_as_far_as_it_is_known(runs: Path, metrix: Any) -> None:
    out = runs / "unfinished.html"
    outcome = metrix("report", runs / "unfinished", runs / "clean", "-o", out, "--test-only", "--json")
    assert outcome.code == 0, outcome.err
    page = checked(out.read_text("utf-8"))
    assert "not finished, 4 steps logged" in page.text
    assert "metrix train --resume" in page.text
    unfinished, clean = outcome.json["runs"]
    assert unfinished["evaluation"] is None
    assert clean["evaluation"] is not None
    assert "metrix train --resume" in unfinished["missing"]
    alone = metrix("report", runs / "unfinished", "-o", out)
    assert alone.code == 0, alone.err
    assert of_tag(checked(out.read_text("utf-8")), "h2") == SECTIONS


def test_runs_on_different_images_are_shown_but_not_compared(runs: Path, metrix: Any) -> None:
    out = runs / "different.html"
    outcome = metrix("report", runs / "clean", runs / "elsewhere", runs / "mixed", "-o", out, "--test-only", "--json")
    assert outcome.code == 0, outcome.err
    page = checked(out.read_text("utf-8"))
    assert "different test data (clean, mixed; elsewhere)" in page.text
    assert [run["against"] and run["against"]["run"] for run in outcome.json["runs"]] == [None, None, "clean"]
    assert all(run["evaluation"] for run in outcome.json["runs"])


def test_images_that_are_gone_leave_what_the_run_measured_itself(runs: Path, metrix: Any) -> None:
    moved = runs / "moved"
    shutil.copytree(runs / "clean", moved)
    folder = RunFolder(moved)
    folder.write_text("config.yaml", folder.config.with_values({"data": str(runs / "gone")}).to_yaml())
    outcome = metrix("report", moved, "-o", runs / "moved.html", "--json")
    assert outcome.code == 0, outcome.err
    page = checked((runs / "moved.html").read_text("utf-8"))
    assert f"{100 * folder.results['test']['recall']['1']:.2f}" in page.text
    assert "as the run measured it at the end of training" in page.text
    assert "gone" in outcome.json["runs"][0]["missing"]


def test_mistakes_are_told_before_any_work(runs: Path, refused: Any, tmp_path: Path) -> None:
    refused("report", tmp_path, words=("is no run", "metrix train"))
    refused("report", runs / "clean", "-o", tmp_path / "report.pdf", words=("report.pdf", ".html"))
    refused("report", runs / "clean", "-o", tmp_path, words=("ends in .html",))
    (tmp_path / "file").touch()
    refused("report", runs / "clean", "-o", tmp_path / "file" / "report.html", words=("cannot be written", "choose"))
    (tmp_path / "file").unlink()
    refused("report", runs / "clean", "--names", "a,b", words=("2 names for 1 runs",))
    refused("report", runs / "clean", "--ks", "one", words=("--ks", "expected integers"))
    refused("report", runs / "clean", "--data", tmp_path / "none", words=("neither a built-in one",))
    assert list(tmp_path.iterdir()) == []


def test_names_and_progress(runs: Path, metrix: Any) -> None:
    out, twice = runs / "named.html", (runs / "unfinished", runs / "unfinished")
    outcome = metrix("report", *twice, "-o", out, "--names", "<b>, two | 2")
    assert outcome.code == 0, outcome.err
    assert outcome.out == ""
    for word in ("measuring", "written", "named.md", "named-files"):
        assert word in outcome.err
    assert of_tag(checked(out.read_text("utf-8")), "h1") == ["<b> and two | 2"]
    assert metrix("report", *twice, "-o", out, "-q").err == ""
    assert of_tag(checked(out.read_text("utf-8")), "h1") == ["unfinished and unfinished (2)"]


def test_classes_and_confused_pairs_are_those_of_the_evaluation(reported: Any, runs: Path, metrix: Any) -> None:
    import csv

    found, page = reported
    expected = metrix("evaluate", runs / "mixed", "--json", "--bootstrap", 0).json["per_class"]
    assert found["runs"][1]["evaluation"]["per_class"] == expected
    with (runs / "out" / "report-files" / "classes-mixed.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [row["label"] for row in (*expected["worst"][:6], *expected["best"][:6])]
    assert [float(row["MAP@R"]) for row in rows[:6]] == pytest.approx([100 * r["map@r"] for r in expected["worst"][:6]])
    assert "The 6 worst and the 6 best of 60 classes, %: mixed" in page.text
    pair = expected["confused"][0]
    with (runs / "out" / "report-files" / "confused-mixed.csv").open(encoding="utf-8") as file:
        first = next(csv.DictReader(file))
    assert list(first.values()) == [pair["label"], pair["other"], str(pair["queries"]), str(pair["reverse"])]


def test_few_classes_have_a_confusion_matrix(runs: Path, metrix: Any, tmp_path: Path) -> None:
    import csv

    from PIL import Image

    from metrix import data

    part = data.open("glyphs-mini").test
    for n in [row for row in range(len(part)) if part.labels[row] < 4]:
        folder = tmp_path / "images" / str(part.class_names[part.labels[n]])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(part.image(n)[0].numpy()).save(folder / f"{n}.png")
    out = tmp_path / "few.html"
    outcome = metrix("report", runs / "mixed", "-o", out, "--test-only", "--data", tmp_path / "images", "--json")
    assert outcome.code == 0, outcome.err
    summary = outcome.json["runs"][0]["evaluation"]["per_class"]
    assert "classes, worst first" in checked(out.read_text("utf-8")).text
    with (tmp_path / "few-files" / "confusion-mixed.csv").open(encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    wrong = sum(int(one["queries"]) for one in cells if one["class of the query"] != one["class found first"])
    assert wrong == summary["wrong_queries"]
    asked = sum(int(one["queries"]) for one in cells)
    assert asked == outcome.json["runs"][0]["evaluation"]["retrieval"]["queries"]
