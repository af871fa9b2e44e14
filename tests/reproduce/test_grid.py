"""Tables from results that are put there by hand: what stands in which cell."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path

import pytest

from metrix.experiments.cells import CellStore
from metrix.report.page import Table, Value
from metrix.reproduce import paper, tables
from metrix.reproduce.datasets import ReproductionData
from metrix.reproduce.differences import THE_PAPERS, describe_differences
from metrix.reproduce.grid import Experiment, Grid, Spread, build_grid
from metrix.reproduce.items import ITEMS, choose_items
from metrix.reproduce.page import Reproduced, _summarise
from metrix.reproduce.tables import build_recall_table, experiments_of, paper_gain
from tests.photos import write_photos
from tests.reproduce.conftest import MINI, TINY

CLEAN, MIXED = {"loss": "contrastive"}, {"loss": "contrastive", "mixup": ["feature"]}


def put(
    grid: Grid,
    experiment: Experiment,
    recalls: list[dict[str, float] | None],
    untrained: dict[str, float] | None = None,
) -> None:
    """Results of each seed; None is a run that is not finished."""
    before = {} if untrained is None else {"untrained_test": {"recall": untrained}}
    for one, recall in zip(grid.cells(experiment), recalls, strict=True):
        grid.store.write_record(one, tries=1, error=None)
        if recall is not None:
            path = grid.store.run(one.key).path
            path.mkdir(parents=True)
            (path / "results.json").write_text(
                json.dumps({"test": {"recall": recall}, "seconds": 1.0, "steps": 2, **before})
            )


@pytest.fixture
def cars(tmp_path: Path) -> Grid:
    data = ReproductionData("cars", "anywhere")
    data.__dict__["fingerprint"] = "fingerprint"  # no images are needed to read results
    return Grid((data,), (0, 1, 2), {}, CellStore(tmp_path))


def test_spread_is_over_seeds_and_gains_are_of_the_same_seed(cars: Grid) -> None:
    clean, mixed = Experiment(CLEAN, cars.datasets[0]), Experiment(MIXED, cars.datasets[0])
    put(cars, clean, [{"1": 0.5}, {"1": 0.7}, {"1": 0.9}])
    put(cars, mixed, [{"1": 0.6}, None, {"1": 0.95}])
    assert cars.recall(clean)[1].values == pytest.approx((50, 70, 90))
    assert cars.recall(clean)[1].text() == "70.0 ± 20.0"
    assert cars.gain(mixed, clean).values == pytest.approx((10, 5))
    assert cars.missing(clean) is None
    assert cars.missing(mixed) == "1 of 3 runs are not finished."
    failed = cars.cells(mixed)[1]
    cars.store.write_record(failed, error="out of memory")
    assert cars.missing(mixed) == "1 of 3 runs failed: out of memory"
    assert len(cars.runs(mixed)) == 2
    assert (Spread().mean, Spread().text(), Spread((3.0,)).text()) == (None, "", "3.0")


def test_the_papers_datasets_stand_beside_its_numbers(cars: Grid) -> None:
    data = cars.datasets[0]
    put(cars, Experiment(CLEAN, data), [{"1": 0.8, "2": 0.88, "4": 0.92, "8": 0.95}] * 3)
    block = build_recall_table(cars, paper.load_table("ablation"), data).to_block()
    groups = [(column.group, column.name) for column in block.columns]
    assert groups[3:7] == [("R@1", "here"), ("R@1", "paper"), ("R@2", "here"), ("R@2", "paper")]
    pixels, baseline = block.rows[:2]
    assert list(pixels[:4]) == ["pixels [1]", "", "", ""]
    assert any(note.startswith("[1] Not measured: ") for note in block.footnotes)  # the images are not here
    assert isinstance(baseline[3], Value)
    assert (baseline[3].text, baseline[4]) == ("80.0 ± 0.0", "81.6")
    assert block.rows[2] == "hard negatives"
    assert list(block.rows[3][:5]) == ["input [2]", "1", "pos-neg / anc-neg", "", "82.0"]
    assert block.footnotes[1].startswith(
        "Differences from the paper's set-up: the contrastive loss averages its non-zero terms, as the reference code"
    )
    assert block.footnotes[1].count(";") == 1  # of the advice: nothing else differs


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("ablation", {"reduction": "sum"}, None),
        ("geometry", {"reduction": "sum", "workers": 8}, None),
        ("ablation", {"reduction": "sum", "backbone": "resnet50"}, "weights of timm's resnet50 (reference code"),
        ("ablation", {"reduction": "sum", "weights": "w.pth"}, "weights of file w.pth (reference code: torchvision's"),
        ("ablation", {"reduction": "sum", "frozen_affine": False}, "frozen affine False"),
        ("ablation", {"reduction": "sum", "lam_per": "pair"}, "lam per pair"),
        ("ablation", {"reduction": "sum", "clip_by": "norm"}, "clip by norm"),
        ("ablation", {"reduction": "sum", "epochs": 60}, "training 60 epochs (paper: 100 epochs)"),
        ("ablation", {"reduction": "sum", "cache": "ram"}, "random crops of images shrunk to 256 pixels"),
        ("main", {}, "runs with and without mixup share decay, warm-up and batch norm"),
        ("main", {}, "proxy anchor as its authors define it"),
    ],
)
def test_the_set_up_is_the_papers_only_if_nothing_differs(
    name: str, changes: dict[str, object], words: str | None, cars: Grid
) -> None:
    grid, table = dataclasses.replace(cars, changes=changes, _known={}), paper.load_table(name)
    said = describe_differences(grid, table.setup, grid.datasets[0], experiments_of(table, grid.datasets[0]))
    if words is None:
        assert said == THE_PAPERS
    else:
        assert said.startswith("Differences from the paper's set-up: ")
        assert words in said


def test_every_changed_setting_is_said(cars: Grid) -> None:
    changes = {"image_size": 64, "lr": 0.003, "cache": "ram"}
    grid = dataclasses.replace(cars, changes={**cars.changes, **changes}, _known={})
    table = paper.load_table("ablation")
    said = describe_differences(grid, table.setup, grid.datasets[0], experiments_of(table, grid.datasets[0]))
    assert said.startswith("Differences from the paper's set-up: image size 64; lr 0.003; ")
    assert "random crops of images shrunk to 256 pixels" in said  # of the cache


def test_what_differs_is_said(tmp_path: Path) -> None:
    grid = Grid((MINI,), (0,), {**TINY, "batch_size": 50}, CellStore(tmp_path))
    (differs,) = (
        note for note in build_recall_table(grid, paper.load_table("ablation"), MINI).notes if "Differences" in note
    )
    for words in (
        "glyphs-mini, which stands in",
        "network glyphs-cnn (paper: resnet50, pretrained)",
        "dimensions 64 (paper: 512)",
        "batch 50 (paper: 100)",
        "2 steps (paper: 100 epochs)",
        "k = 20 and 40 times 0.5",
    ):
        assert words in differs


def test_nothing_is_marked_from_two_seeds(cars: Grid) -> None:
    grid = dataclasses.replace(cars, seeds=(0, 1), _known={})
    data, table = grid.datasets[0], paper.load_table("compete")
    low, high, *_ = [one for one in table.rows if one.recipe is not None]
    put(grid, Experiment(low.recipe or {}, data), [{"1": 0.500}, {"1": 0.501}])
    put(grid, Experiment(high.recipe or {}, data), [{"1": 0.900}, {"1": 0.901}])
    block = build_recall_table(grid, table, data).to_block()
    assert block.best == set()
    assert not any("Marked in a column" in note for note in block.footnotes)


def rows_with(block: Table, column: str) -> dict[int, float]:
    number = [one.group or one.name for one in block.columns].index(column)
    cells = {n: row[number] for n, row in enumerate(block.rows) if not isinstance(row, str)}
    return {n: cell.value for n, cell in cells.items() if isinstance(cell, Value)}


def test_no_row_is_marked_below_one_that_is_not(cars: Grid) -> None:
    """The best, a close second that is worse with every seed, and a third as far away as its noise."""
    data, table = cars.datasets[0], paper.load_table("compete")
    best, second, noisy, low, *_ = [one for one in table.rows if one.recipe is not None]
    put(cars, Experiment(best.recipe or {}, data), [{"1": 0.660}, {"1": 0.661}, {"1": 0.662}])
    put(cars, Experiment(second.recipe or {}, data), [{"1": 0.658}, {"1": 0.659}, {"1": 0.660}])
    put(cars, Experiment(noisy.recipe or {}, data), [{"1": 0.58}, {"1": 0.70}, {"1": 0.637}])
    put(cars, Experiment(low.recipe or {}, data), [{"1": 0.300}, {"1": 0.301}, {"1": 0.302}])
    block = build_recall_table(cars, table, data).to_block()
    shown = rows_with(block, "R@1")
    marked = {shown[row] for row, _ in block.best}
    assert sorted(marked) == pytest.approx([63.9, 65.9, 66.1])
    assert min(marked) > max(value for value in shown.values() if value not in marked)


@pytest.mark.parametrize(("untrained", "marks"), [(0.2, 1), (0.95, 0)])
def test_floors_are_shown_and_nothing_below_them_is_marked(
    untrained: float, marks: int, cars: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "measure_pixels_once", lambda *_: {1: Spread((31.0,))})
    data, table = cars.datasets[0], paper.load_table("compete")
    low, high, *_ = [one for one in table.rows if one.recipe is not None]
    put(cars, Experiment(low.recipe or {}, data), [{"1": 0.50}, {"1": 0.501}, {"1": 0.502}], {"1": untrained})
    put(cars, Experiment(high.recipe or {}, data), [{"1": 0.90}, {"1": 0.901}, {"1": 0.902}])
    block = build_recall_table(cars, table, data).to_block()
    assert [row[0] for row in block.rows[:2]] == ["pixels [1]", "untrained network"]
    shown = rows_with(block, "R@1")
    assert (shown[0], shown[1]) == pytest.approx((31.0, 100 * untrained))
    assert len(block.best) == marks


@pytest.mark.parametrize("name", ["main", "ablation", "types"])
@pytest.mark.parametrize("dataset", ["cars", "photos"])
def test_nothing_is_cut_off_in_80_columns(name: str, dataset: str, tmp_path: Path) -> None:
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.tables import build_page_tables

    data = ReproductionData(dataset, "anywhere")
    data.__dict__["fingerprint"] = "fingerprint"
    grid, table = Grid((data,), (0, 1, 2), {}, CellStore(tmp_path)), paper.load_table(name)
    for one in experiments_of(table, data):
        put(grid, one, [{"1": 0.8, "2": 0.88, "4": 0.92, "8": 0.95}] * 3, {"1": 0.1, "2": 0.2})
    block = build_recall_table(grid, table, data).to_block()
    console = Console(width=80, record=True, file=io.StringIO())
    for part in build_page_tables(block, 80):
        console.print(part)
    printed = console.export_text()
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    shown = [cell.text for row in block.rows if not isinstance(row, str) for cell in row if isinstance(cell, Value)]
    assert all(printed.count(text) >= shown.count(text) for text in set(shown))


def test_only_what_the_seeds_can_tell_apart_is_marked_as_best(cars: Grid) -> None:
    data, table = cars.datasets[0], paper.load_table("compete")
    low, high, *_ = [one for one in table.rows if one.recipe is not None]
    put(cars, Experiment(low.recipe or {}, data), [{"1": 0.50}, {"1": 0.60}, {"1": 0.70}])
    put(cars, Experiment(high.recipe or {}, data), [{"1": 0.52}, {"1": 0.58}, {"1": 0.75}])  # +2, -2, +5: noise
    block = build_recall_table(cars, table, data).to_block()
    assert block.best == set()
    put(cars, Experiment(table.rows[-1].recipe or {}, data), [{"1": 0.30}, {"1": 0.39}, {"1": 0.50}])
    block = build_recall_table(cars, table, data).to_block()
    column = [one.group for one in block.columns].index("R@1")
    rows = [n for n, row in enumerate(block.rows) if not isinstance(row, str) and isinstance(row[column], Value)]
    assert len(rows) == 3
    assert block.best == {(rows[0], column), (rows[1], column)}  # both are better than the third, and alike
    assert any("cannot tell from it" in note for note in block.footnotes)


def test_the_summary_says_what_one_seed_cannot_tell_and_how_long_it_took(tmp_path: Path) -> None:
    main = choose_items(["main"])[0]
    for seeds, words in (((0,), "One seed cannot tell"), ((0, 1), "2 seeds cannot tell it from zero")):
        data = ReproductionData("cub", "anywhere")
        data.__dict__["fingerprint"] = "fingerprint"
        grid = Grid((data,), seeds, {}, CellStore(tmp_path / str(len(seeds))))
        put(grid, Experiment(CLEAN, data), [{"1": 0.50}, {"1": 0.55}][: len(seeds)])
        put(grid, Experiment(MIXED, data), [{"1": 0.52}, {"1": 0.56}][: len(seeds)])
        tiles = _summarise([Reproduced(main, "cub", (), ())], grid).tiles
        assert tiles[0].detail == f"{2 * len(seeds)}.0 s of training in all"
        assert words in tiles[1].detail


def test_cells_that_tables_share_are_one(tmp_path: Path) -> None:
    grid = Grid((MINI,), (0, 1), TINY, CellStore(tmp_path))
    experiments = {item.name: list(item.experiments(grid, MINI)) for item in ITEMS}
    alone = {name: {one.key for one in grid.distinct_cells(found)} for name, found in experiments.items()}
    together = [one.key for one in grid.distinct_cells(one for found in experiments.values() for one in found)]
    assert len(together) == len(set(together)) == len(set().union(*alone.values()))
    assert len(alone["main"]) == 2 * 15  # seven baselines, four losses with and without Metrix
    assert len(alone["types"]) == 2 * 23
    assert len(alone["ablation"]) == 2 * 23
    assert alone["main"] < alone["types"]
    assert alone["tsne"] == alone["retrieval"] == alone["main"] & alone["ablation"]
    assert not alone["ablation"] & alone["ablation-cub"]  # another dimension
    assert all(grid.why_not(one) is None for found in experiments.values() for one in found)  # every method is there


def test_gains_of_the_paper_are_as_printed_or_differences() -> None:
    main, compete = paper.load_table("main"), paper.load_table("compete")
    assert paper_gain(main, main.rows[8], "sop") == 2.6
    assert paper_gain(main, main.row("PA"), "cub") is None
    assert paper_gain(compete, compete.rows[3], "cars") == pytest.approx(-5.3)


def test_items_by_name() -> None:
    assert choose_items(["all"]) == list(ITEMS)
    assert [item.name for item in choose_items(["tsne", "main", "tsne"])] == ["tsne", "main"]


def test_the_grid_reads_a_manifest_as_training_does(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "disk" / "photos", classes=4, per_class=2)
    rows = [f"{path.relative_to(photos)},{path.parent.name}" for path in sorted(photos.rglob("*.jpg"))]
    manifest = tmp_path / "lists" / "own.csv"
    manifest.parent.mkdir()
    manifest.write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    grid = build_grid([f"own={manifest}"], 1, {"root": str(photos), "max_bad": 2.0}, tmp_path / "grid")
    (cell,) = grid.cells(Experiment(CLEAN, grid.datasets[0]))
    assert (cell.config.data.root, cell.config.data.max_bad) == (str(photos), 2.0)
    catalogue = grid.datasets[0].catalogue
    assert [len(catalogue.where(part)) for part in ("train", "test")] == [4, 4]

    moved = shutil.move(photos, tmp_path / "moved")
    again = build_grid([f"own={manifest}"], 1, {"root": str(moved), "max_bad": 2.0}, tmp_path / "grid")
    assert again.cells(Experiment(CLEAN, again.datasets[0]))[0].key == cell.key  # the same images elsewhere


def test_the_grid_follows_links_if_asked(tmp_path: Path) -> None:
    write_photos(tmp_path / "elsewhere", classes=4, per_class=2)
    (tmp_path / "photos").mkdir()
    for folder in (tmp_path / "elsewhere").iterdir():
        (tmp_path / "photos" / folder.name).symlink_to(folder)
    for follow in (True, False):
        grid = build_grid([f"own={tmp_path / 'photos'}"], 1, {"follow_links": follow}, tmp_path / "grid")
        assert grid.datasets[0].catalogue.follow_links is follow
        assert grid.cells(Experiment(CLEAN, grid.datasets[0]))[0].config.data.follow_links is follow
