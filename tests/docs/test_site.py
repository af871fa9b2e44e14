"""The site builds strictly, leads nowhere that does not exist, and loads nothing from elsewhere."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

from tests.explore.browser import launch

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="the site is built with Python 3.11 or newer")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class PageParser(HTMLParser):
    """What a page loads, what it links to, and the places that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])


def parse_pages(site: Path) -> dict[str, PageParser]:
    return {
        page.relative_to(site).as_posix(): PageParser(page.read_text("utf-8"))
        for page in site.rglob("*.html")
        if page.name != "404.html"  # its addresses are absolute, for a server
    }


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = [(page, address) for page, parsed in parse_pages(site).items() for address in parsed.loaded]
    assert [(page, address) for page, address in loaded if urlsplit(address).netloc] == []
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)|@import[^;]*//", styles) == []
    assert len(loaded) > 100


def test_links_and_anchors_lead_somewhere(site: Path) -> None:
    """Also those into source code and the reference, which mkdocs does not check."""
    pages = parse_pages(site)
    broken, followed = [], 0
    for page, parsed in pages.items():
        for link in {*parsed.links, *parsed.loaded}:
            if urlsplit(link).scheme or link.startswith("/"):
                continue
            address, place = urldefrag(urljoin(page, link))
            followed += 1
            target = unquote(address)
            if not (site / target).exists() or (
                place and target in pages and unquote(place) not in pages[target].places
            ):
                broken.append((page, link))
    assert broken == []
    assert followed > 1000


def test_equations_lead_to_the_line_of_a_definition(site: Path) -> None:
    text = (site / "equations.html").read_text("utf-8")
    found = re.search(r'href="(source/metrix/core/table1.html)#__codelineno-0-(\d+)"><code>MultiSimilarity<', text)
    assert found is not None
    source = (ROOT / "src/metrix/core/table1.py").read_text("utf-8").splitlines()
    assert source[int(found[2]) - 1].startswith("class MultiSimilarity")


def test_reference_has_every_public_name(site: Path) -> None:
    import metrix
    from metrix import data, evaluate, losses, search

    places = {place for page, parsed in parse_pages(site).items() if "reference/" in page for place in parsed.places}
    documented = {place.rsplit(".", 1)[-1] for place in places if place.startswith("metrix.")}
    names = {*metrix.__all__, *losses.__all__, *data.__all__, *evaluate.__all__, *search.__all__}
    names -= {name for name in names if name.isupper() and name in {*data.__all__, *search.__all__}}  # constants
    renamed = {"open"}  # open_dataset in its module
    left = names - documented - renamed - {"data", "evaluate", "losses"}
    assert left == set(), "add them to a page of docs/reference"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on a local server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_pages_in_a_browser(address: str, site: Path) -> None:
    """Formulas are typeset, no script fails, and no page is wider than a phone."""
    problems: list[str] = []
    requests: set[str] = set()
    with launch() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("response", lambda answer: problems.append(answer.url) if answer.status >= 400 else None)
        page.on("request", lambda request: requests.add(urlsplit(request.url).netloc))
        for path in sorted(site.glob("*.html")):
            page.goto(f"{address}/{path.name}", wait_until="load")
            marked = page.locator(".arithmatex").count()
            assert page.locator(".arithmatex .katex-html").count() == marked, path.name
            assert path.name != "equations.html" or marked > 10
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{path.name} is {width} pixels wide"
    assert problems == []
    assert requests == {urlsplit(address).netloc}
