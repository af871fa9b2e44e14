"""The page in Chromium: queries, comparison, map, lasso, uploads, links, keys, empty states and errors."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from metrix.search import Index
from metrix.serve.access import Access
from tests.explore.browser import launch
from tests.serve.serving import serve

WIDE = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch() as opened:
        yield opened


@pytest.fixture(scope="module")
def runs(browser: Any, run: Path, other_run: Path) -> Iterator[str]:
    """The address of the page on two runs."""
    from metrix.serve.api import build_explorer

    with serve(build_explorer([run, other_run])) as address:
        yield address


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """`visit(address)`: a page that must not log an error, with a picture of it at the end if METRIX_PICTURES is set."""
    pages: list[Any] = []
    errors: list[str] = []

    def open_page(address: str, viewport: dict[str, int] = WIDE, may_fail: bool = False, **options: Any) -> Any:
        page = browser.new_context(viewport=viewport, **options).new_page()
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        if not may_fail:
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(address)
        return page

    yield open_page
    folder = os.environ.get("METRIX_PICTURES")
    for number, page in enumerate(pages):
        if not page.is_closed():
            assert "null" not in page.inner_text("body")
            assert "undefined" not in page.inner_text("body")
        if folder:
            page.wait_for_timeout(500)
            page.screenshot(path=str(Path(folder) / f"{request.node.name}-{number}.png"))
        page.context.close()
    assert not errors


def ready(page: Any, state: str = "tsne") -> Any:
    page.wait_for_selector(f"body[data-map={state}]", timeout=60_000)
    page.wait_for_function("() => !metrix.map.plot.get('isDestroyed')")
    return page


def place(page: Any, row: int) -> tuple[float, float]:
    """Where a point of the map is on the screen."""
    page.wait_for_timeout(1000)  # the points have moved to where they belong
    x, y = page.evaluate(f"metrix.map.plot.getScreenPosition({row})")
    box = page.locator("#map").bounding_box()
    return box["x"] + x, box["y"] + y


def test_a_query_shows_its_neighbours_with_frames_and_scores(visit: Any, runs: str) -> None:
    page = visit(f"{runs}/#row=5&second=none")
    page.wait_for_selector(".neighbours .card")
    cards = page.locator(".neighbours .card")
    assert cards.count() == 12
    right, wrong = page.locator(".card.right").count(), page.locator(".card.wrong").count()
    assert right + wrong == 12
    assert page.locator(".side h3").inner_text().endswith(f"{right} of 12 right")
    scores = [float(text.split()[1]) for text in page.locator(".neighbours small").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    own = page.locator("#asked b").inner_text()
    first = cards.nth(0)
    assert ("right" in first.get_attribute("class")) == (first.locator("span").inner_text() == own)
    first.click()  # a neighbour becomes the query
    page.wait_for_function("() => !location.hash.includes('row=5')")
    page.go_back()
    page.wait_for_function("() => location.hash.includes('row=5')")


def test_pick_at_random_by_class_and_by_mistake(visit: Any, runs: str) -> None:
    page = visit(f"{runs}/#row=none&second=none")
    page.wait_for_selector("body[data-ready]")
    page.wait_for_selector("text=Pick a query")
    page.click("#random")
    page.wait_for_selector(".neighbours .card")
    page.select_option("#class", label="U+1E00")
    page.wait_for_function("() => document.querySelector('#asked b')?.textContent === 'U+1E00'")
    page.click("#worst")
    page.wait_for_function("() => document.querySelector('.neighbours .card')?.classList.contains('wrong')")
    page.click("#view-mistakes")
    page.wait_for_selector("body[data-view=mistakes] .view .card.current, body[data-view=mistakes] .view .card")
    assert re.match(r"[\d,]+ mistakes? of [\d,]+ queries, worst first", page.locator("#view h2").inner_text())
    assert "in a gallery of 732 images of 60 classes" in page.locator("#view").inner_text()
    shown = page.locator("#view .card").nth(1)
    shown.click()
    page.wait_for_selector(".neighbours .card.wrong")


def test_it_opens_with_a_query_and_with_both_runs(visit: Any, runs: str) -> None:
    page = visit(f"{runs}/")
    page.wait_for_selector(".sides.two .neighbours .card")
    assert page.locator("#second").input_value() == "1"
    assert page.locator(".neighbours .card").count() == 24
    assert "in a gallery of 732 images of 60 classes" in page.locator("#answer").inner_text()
    page.select_option("#second", "")
    page.wait_for_selector(".sides:not(.two)")
    assert "second=none" in page.url
    page.reload()
    page.wait_for_selector(".sides:not(.two) .neighbours .card")


def test_many_classes_are_not_told_apart_by_colour(visit: Any, runs: str) -> None:
    page = ready(visit(f"{runs}/"))
    options = page.locator("#colouring option").all_inner_texts()
    assert options == ["colour: right or wrong", "colour: class of the query"]
    assert page.locator("#legend .entry").count() == 40
    assert page.locator("#legend .entry i").count() == 0
    assert page.locator("#legend").inner_text().endswith("and 20 more classes")
    page.select_option("#colouring", "query")
    page.wait_for_selector("text=blue: the class of the query")


def test_few_classes_have_their_colours(visit: Any, indexed: Path) -> None:
    from metrix.serve.api import build_service

    with serve(build_service(indexed / "photos.index")) as address:
        page = ready(visit(address))
        assert page.locator("#colouring").input_value() == "class"
        assert page.locator("#legend .entry i").count() == 3


def test_measures_are_a_table_of_metrics_by_k(visit: Any, runs: str) -> None:
    page = visit(f"{runs}/#view=measures&second=none")
    page.wait_for_selector("#measures")
    head = page.locator("#measures th").all_inner_texts()
    assert head == ["", "K = 1", "K = 2", "K = 4", "K = 8"]
    rows = [row.split("\t") for row in page.locator("#measures tbody tr").all_inner_texts()]
    table = {row[0]: row[1:] for row in rows}
    assert list(table) == ["Recall@K", "Precision@K", "mAP@K", "NDCG@K"]
    assert all(table["Recall@K"])
    assert [table[name][0] for name in ("Precision@K", "mAP@K", "NDCG@K")] == ["", "", ""]  # the same as Recall@1
    assert page.locator("#other-measures td:first-child").all_inner_texts() == ["MAP@R", "R-precision", "mAP"]
    assert "in a gallery of 732 images of 60 classes" in page.locator("#view").inner_text()
    assert "intervals over classes" in page.locator("#view").inner_text()


def test_two_runs_side_by_side(visit: Any, runs: str) -> None:
    page = visit(f"{runs}/#row=5&second=none")
    page.wait_for_selector(".neighbours .card")
    page.select_option("#second", "1")
    page.wait_for_selector(".sides.two")
    assert page.locator(".side").count() == 2
    assert page.locator(".card.fresh").count() > 0
    page.click("#view-changes")
    page.wait_for_selector("body[data-view=changes] #view h3")
    texts = page.locator("#view h3").all_inner_texts()
    assert [text.split(":")[0] for text in texts] == ["Only other is right", "Only run is right"]
    page.locator("#view .card").nth(0).click()
    page.wait_for_function("() => document.querySelectorAll('.side h3').length === 2")
    page.click("#view-measures")
    page.wait_for_selector("#measures")
    assert page.locator("#measures th").all_inner_texts() == ["", "run", "K = 1", "K = 2", "K = 4", "K = 8"]
    assert page.locator(".curves svg").count() >= 1


def test_a_click_on_the_map_is_a_query_and_hovering_shows_the_image(visit: Any, runs: str) -> None:
    page = ready(visit(f"{runs}/"))
    x, y = place(page, 7)
    page.mouse.move(x, y)
    page.wait_for_selector("#tip:not([hidden]) img")
    page.mouse.click(x, y)
    page.wait_for_function("() => location.hash.includes('row=')")
    row = int(re.search(r"row=(\d+)", page.url)[1])  # type: ignore[index]
    near = [page.evaluate(f"metrix.map.plot.getScreenPosition({one})") for one in (7, row)]
    assert np.hypot(*np.subtract(*near)) < 8  # the point itself, or one that lies on it
    page.select_option("#colouring", "right")
    page.wait_for_timeout(300)


def test_a_lasso_selects_and_the_selection_can_be_saved(visit: Any, runs: str) -> None:
    page = ready(visit(f"{runs}/"))
    page.wait_for_timeout(1000)
    box = page.locator("#map").bounding_box()
    page.click("#lasso")
    assert page.locator("#lasso").get_attribute("aria-pressed") == "true"
    corners = [(0.02, 0.02), (0.5, 0.02), (0.98, 0.02), (0.98, 0.5), (0.5, 0.55), (0.02, 0.5), (0.02, 0.03)]
    spots = [(box["x"] + a * box["width"], box["y"] + b * box["height"]) for a, b in corners]
    page.mouse.move(*spots[0])
    page.mouse.down()
    for spot in spots[1:]:
        page.mouse.move(*spot, steps=6)
    page.mouse.up()
    page.wait_for_selector("#selected .card")
    selected = page.evaluate("metrix.map.selected")
    assert 10 < len(selected) < 732
    inside = [page.evaluate(f"metrix.map.plot.getScreenPosition({row})")[1] for row in selected[:20]]
    assert all(y < 0.6 * box["height"] for y in inside)
    counts = [int(text) for text in page.locator("#legend b").all_inner_texts()]
    classes = page.evaluate("new Set(metrix.map.selected.map((row) => metrix.map.points.codes[row])).size")
    if classes <= 40:
        assert sum(counts) == len(selected)
    assert page.locator("#selected .card").count() == min(60, len(selected))
    with page.expect_download() as saved:
        page.click("#csv")
    lines = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    assert [int(line["row"]) for line in lines] == selected
    assert set(lines[0]) == {"row", "id", "class", "x", "y", "right"}
    assert lines[0]["id"].startswith(lines[0]["class"])
    page.keyboard.press("Escape")
    page.wait_for_function("() => metrix.map.selected.length === 0")
    page.locator("#legend .entry").nth(0).click()
    page.wait_for_selector("#selected .card")


def test_upload_of_an_image_and_of_something_else(visit: Any, runs: str, tmp_path: Path) -> None:
    page = visit(f"{runs}/#second=1", may_fail=True)
    page.wait_for_selector("body[data-ready]")
    version = page.evaluate("metrix.first.version")
    picture = page.request.get(f"{runs}/explore/{version}/image/5").body()
    page.set_input_files("#file", files=[{"name": "glyph.png", "mimeType": "image/png", "buffer": picture}])
    page.wait_for_selector(".sides.two .neighbours .card")
    assert page.locator(".neighbours small").nth(0).inner_text() == "1.000"
    assert page.locator("#asked span").inner_text() == "glyph.png"
    page.set_input_files("#file", files=[{"name": "x.png", "mimeType": "image/png", "buffer": b"no image"}])
    page.wait_for_selector("#message:not([hidden])")
    assert "not an image in a known format" in page.locator("#message").inner_text()
    page.click("#random")  # and the message goes
    page.wait_for_selector(".neighbours .card")
    assert page.locator("#message").is_hidden()
    content = {"name": "dropped.png", "data": list(picture)}
    page.evaluate(
        """({ name, data }) => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(data)], name, { type: 'image/png' }));
            dispatchEvent(new DragEvent('drop', { dataTransfer: carried, cancelable: true }));
        }""",
        content,
    )
    page.wait_for_function("() => document.querySelector('#asked span')?.textContent === 'dropped.png'")


def test_keys_links_and_themes(visit: Any, runs: str) -> None:
    page = visit(f"{runs}/#view=confusion&k=4&row=3&second=none", viewport=PHONE, color_scheme="dark")
    page.wait_for_selector("#confusion tbody tr")
    page.wait_for_selector(".neighbours .card")
    assert page.locator(".neighbours .card").count() == 4
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(30, 34, 39)"
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(245, 246, 248)"
    before = page.url
    page.keyboard.press("n")
    page.wait_for_function("(before) => location.href !== before", arg=before)
    page.keyboard.press("5")
    page.wait_for_selector("#measures")
    page.keyboard.press("3")
    page.wait_for_selector("#confusion tbody tr")
    page.locator("#confusion tbody tr").nth(0).click()
    page.wait_for_function("() => location.hash.includes('view=mistakes') && location.hash.includes('of=')")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()


def test_links_to_what_is_not_there(visit: Any, runs: str) -> None:
    page = visit(f"{runs}/#row=99999&first=7&view=nonsense&k=-1&second=x")
    page.wait_for_selector("#message:not([hidden])")
    assert "There is no image 99999; the last one is 731." in page.locator("#message").inner_text()
    ready(page)


def test_an_index_without_classes_images_or_model(visit: Any, tmp_path: Path) -> None:
    from metrix.serve.api import build_service

    vectors = np.random.default_rng(0).normal(size=(40, 4))
    Index.build(vectors, ids=[f"item {n}" for n in range(40)]).save(tmp_path / "i")
    with serve(build_service(tmp_path / "i")) as address:
        page = ready(visit(f"{address}/#row=3", may_fail=True))  # there are no images to load
        page.wait_for_selector(".neighbours .card")
        assert page.locator(".card.right, .card.wrong").count() == 0
        assert page.locator("#class").is_hidden()
        assert page.locator("#worst").is_hidden()
        assert page.locator("#upload").is_hidden()
        page.wait_for_selector(".neighbours .no-image")
        page.click("#view-mistakes")
        page.wait_for_selector("text=nothing is right or wrong")
        page.click("#view-confusion")
        page.wait_for_selector("text=No confusions")
        page.click("#view-measures")
        page.wait_for_selector("text=An index has no measures")
        assert page.locator("#view-changes").count() == 0


def test_the_page_of_an_index_asks_for_its_token(visit: Any, indexed: Path) -> None:
    from metrix.serve.api import build_service

    with serve(build_service(indexed / "photos.index", access=Access("se same"))) as address:
        page = visit(address, may_fail=True)
        page.wait_for_selector("#token[open]")
        page.fill("#token-text", "se same")
        page.keyboard.press("Enter")
        ready(page)
        page.set_input_files("#file", str(indexed / "photos" / "kind 1" / "2.jpg"))
        page.wait_for_selector(".neighbours .card")
        assert page.locator(".neighbours span").nth(0).inner_text() == "kind 1"
        page.wait_for_function("() => document.querySelector('.neighbours img').naturalWidth > 0")
        page.locator(".neighbours .card").nth(1).click()
        page.wait_for_selector(".card.right")


def test_the_description_of_the_api(visit: Any, indexed: Path) -> None:
    from metrix.serve.api import build_service

    with serve(build_service(indexed / "photos.index")) as address:
        page = visit(f"{address}/docs")
        page.wait_for_selector("section")
        titles = page.locator("h2").all_inner_texts()
        assert {"GET /search", "POST /search", "GET /items/{id}", "GET /metrics"} <= set(titles)
        examples = dict(zip(titles, page.locator("pre").all_inner_texts(), strict=True))
        assert examples["DELETE /items/{id}"] == f"curl -X DELETE '{address}/items/ID'"
        assert examples["PUT /items/{id}"] == f"curl -X PUT -F image=@query.jpg '{address}/items/ID'"
        assert '-d \'{"ids":["ID"]}\'' in examples["POST /items/delete"]


def test_a_server_that_has_gone_is_said(visit: Any, indexed: Path) -> None:
    from metrix.serve.api import build_service

    with serve(build_service(indexed / "photos.index")) as address:
        page = ready(visit(address, may_fail=True))
    page.click("#random")
    page.wait_for_selector("#message:not([hidden])")
    assert "does not answer" in page.locator("#message").inner_text()


def test_nothing_comes_from_elsewhere() -> None:
    from metrix.explore.page_data import STATIC

    for file in STATIC.glob("*.*"):
        for address in re.findall(r"https?://[\w./-]+", file.read_text()):
            assert address == "http://www.w3.org/2000/svg", f"{file.name} refers to {address}"


def test_images_of_rows(runs: str) -> None:
    import httpx

    version = httpx.get(f"{runs}/explore").json()["collections"][0]["version"]
    answer = httpx.get(f"{runs}/explore/{version}/image/0", params={"size": 16})
    assert min(Image.open(io.BytesIO(answer.content)).size) == 16
    assert httpx.get(f"{runs}/explore/{version}/image/732").status_code == 404
    assert httpx.get(f"{runs}/explore/other/query", params={"row": 0}).status_code == 410
    columns = np.frombuffer(httpx.get(f"{runs}/explore/{version}/points").content, "<f4").reshape(3, 732)
    assert np.abs(columns[:2]).max() <= 1
    assert columns[2].max() == 59
