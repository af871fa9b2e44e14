"""The page on labels in Chromium: keys, type-ahead, undo, reload, two pages at once, hostile labels, read-only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from metrix.retrieve.decisions import DecisionFile
from metrix.search import Index, Items
from metrix.serve.access import Access
from metrix.serve.api import build_labeller, build_service
from tests.explore.browser import launch
from tests.serve.serving import serve

HOSTILE = '<img src=x onerror="metrix.pwned=1">'
NAMES = ["a & b/0#1.png", f"{HOSTILE.replace('/', '')}.png", *(f"kind/{n} %.png" for n in range(16))]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch() as opened:
        yield opened


@pytest.fixture
def doubtful(tmp_path: Path) -> Path:
    """An index of pictures in two clouds; five of them have the label of the other cloud, one is hostile."""
    root = tmp_path / "photos"
    rng = np.random.default_rng(0)
    for n, name in enumerate(NAMES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (20 * (n % 12), 100 * (n % 2), 90)).save(root / name)
    vectors = np.repeat(np.eye(2, 6), 9, axis=0) + 0.05 * rng.normal(size=(18, 6))
    labels = ["cat"] * 9 + [HOSTILE] * 9
    for row in (0, 1, 2, 10, 11):
        labels[row] = HOSTILE if row < 9 else "cat"
    Index.create(tmp_path / "photos.index", [Items.read(vectors, NAMES, {"label": labels})], root=str(root))
    return tmp_path / "photos.index"


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """`visit(address)`: a page that must not log an error; a picture of it at the end if METRIX_PICTURES is set."""
    pages: list[Any] = []
    errors: list[str] = []

    def open_page(address: str, **options: Any) -> Any:
        page = browser.new_context(viewport={"width": 1280, "height": 800}, **options).new_page()
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/label")
        page.wait_for_selector("body[data-ready]", timeout=60_000)
        return page

    yield open_page
    for number, page in enumerate(pages):
        assert page.evaluate("metrix.pwned") is None
        assert page.locator("img[src=x]").count() == 0
        assert "undefined" not in page.inner_text("body")
        if folder := os.environ.get("METRIX_PICTURES"):
            page.screenshot(path=str(Path(folder) / f"{request.node.name}-{number}.png"))
        page.context.close()
    assert not errors


@pytest.fixture
def asked(doubtful: Path) -> Iterator[tuple[str, DecisionFile]]:
    """The address of the page on five suspects, and the table that it writes."""
    file = DecisionFile(doubtful.with_suffix(".labels.csv"))
    with serve(build_labeller(doubtful, file.path, reasons=("suspect",), who="anna")) as address:
        yield address, file


def counted(page: Any, text: str) -> None:
    page.wait_for_function("text => document.querySelector('#count').textContent === text", arg=text, timeout=20_000)


def press(page: Any, key: str, then: str) -> None:
    page.keyboard.press(key)
    counted(page, then)


def test_keys_decide_one_after_another_and_the_end_says_what_follows(visit: Any, asked: Any) -> None:
    address, file = asked
    page = visit(address)
    counted(page, "0 of 5")
    ids = page.evaluate("metrix.about.left.length") and page.evaluate(
        "fetch('/labelling/questions?count=5').then((r) => r.json()).then((all) => all.map((one) => one.id))"
    )
    assert page.locator("#item figcaption").inner_text() == ids[0]
    page.wait_for_function("() => document.querySelector('#item img')?.naturalWidth === 40")
    assert page.locator("#beside .card").count() == 10
    press(page, "k", "1 of 5")
    press(page, "a", "2 of 5")
    page.keyboard.press("r")
    page.fill("#name", "no such class")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=There is no class no such class; press n for a new one.")
    options = page.eval_on_selector_all("#classes option", "all => all.map((one) => one.value)")
    assert sorted(options) == sorted(["cat", HOSTILE])
    page.fill("#name", "CA")  # the first letters
    press(page, "Enter", "3 of 5")
    page.keyboard.press("n")
    page.fill("#name", "  brand new ")
    press(page, "Enter", "4 of 5")
    near = page.locator("#beside .card").nth(2)
    other = near.get_attribute("title")
    near.click()
    press(page, "m", "5 of 5")
    page.wait_for_selector("#end")
    assert "--relabel photos.labels.csv" in page.inner_text("#item")
    made = file.read()
    assert [made[one].decision for one in ids] == ["keep", "accept", "relabel", "class", "duplicate"]
    assert [made[ids[n]].new for n in (2, 3, 4)] == ["cat", "brand new", None]
    assert made[ids[0]].new == made[ids[0]].old
    assert made[ids[1]].new != made[ids[1]].old
    assert made[ids[4]].of == other
    assert {one.who for one in made.values()} == {"anna"}


def test_undo_skip_delete_and_reload(visit: Any, asked: Any) -> None:
    address, file = asked
    page = visit(address)
    first = page.locator("#item figcaption").inner_text()
    press(page, "d", "1 of 5")
    assert file.read()[first].new is None
    press(page, "u", "0 of 5")  # the last decision, although the next question is shown
    assert page.locator("#item figcaption").inner_text() == first
    assert file.read() == {}
    page.keyboard.press("s")
    page.wait_for_function("first => document.querySelector('#item figcaption').textContent !== first", arg=first)
    press(page, "a", "1 of 5")
    page.reload()
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    counted(page, "1 of 5")
    assert page.locator("#item figcaption").inner_text() == first  # it was skipped only
    for n in range(2, 5):
        press(page, "k", f"{n} of 5")
    page.keyboard.press("s")
    page.wait_for_selector("text=Ask the 1 skipped again")
    for at in ("4", "3"):
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f"body[data-at='{at}']")
    page.wait_for_selector(".decided")
    assert "by anna" in page.inner_text(".decided")
    press(page, "u", "3 of 5")  # of what is shown


def test_two_pages_at_once_lose_nothing(visit: Any, asked: Any) -> None:
    address, file = asked
    one, two = visit(address), visit(address)
    two.fill("#who", "ben")
    two.keyboard.press("Enter")
    press(one, "k", "1 of 5")
    press(two, "a", "1 of 5")
    two.wait_for_selector("text=It was decided before (kept, by anna")
    for page in (one, two):
        for n in range(2, 6):
            press(page, "k", f"{n} of 5")
    assert len(file.read()) == 5
    assert len(file.path.read_text("utf-8").splitlines()) == 11  # a header, and five decisions of each


def test_without_the_right_to_write_the_page_is_read_only(visit: Any, doubtful: Path) -> None:
    file = DecisionFile(doubtful.with_suffix(".labels.csv"))
    with serve(build_service(doubtful, access=Access(None, "pen"))) as address:
        page = visit(address)
        page.wait_for_selector("text=Read-only: expected the token for changes")
        assert page.locator("#do-keep").is_disabled()
        page.keyboard.press("k")
        page.keyboard.press("d")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("body[data-at='1']")
        assert file.read() == {}
        page.click("#unlock")
        page.fill("#token-text", "pen")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        page.wait_for_selector("body[data-ready]")
        assert not page.locator("#do-keep").is_disabled()
        page.keyboard.press("k")
        page.wait_for_selector("body[data-at='1']")
        assert len(file.read()) == 1
