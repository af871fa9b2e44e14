"""A page read as a browser and a screen reader would: what is there, and whether it is well formed."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input", "col", "wbr"}
SELF_CLOSED = {"path", "use", "rect", "image", "circle", "line", "polygon", "polyline"}


class Markup(HTMLParser):
    """Elements in order, each as (tag, attributes); text by the element around it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.words: list[tuple[str, str]] = []
        assert text.startswith("<!DOCTYPE html>")
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in {tag}: {names}"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return "\n".join(words for tag, words in self.words if tag != "style")


def checked(text: str) -> Markup:
    """A page that is well formed, needs nothing from elsewhere and says in words what its pictures show."""
    page = Markup(text)
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
            address = attributes.get(name, "#")
            assert address.startswith(("#", "data:")), f"{tag} {name}={address[:80]}"
        assert not any(name.startswith("on") for name in attributes), f"{tag} runs a script"
    assert not {"script", "iframe", "link", "object", "embed"} & {tag for tag, _ in page.elements}
    for tag, words in page.words:
        assert tag != "style" or ("@import" not in words and "url(" not in words.replace("url(#", ""))
    for image in page.all("img"):
        assert image.get("alt", "").strip(), "an image without words"
    for drawing in page.all("svg"):
        assert drawing.get("role") == "img"
        assert drawing.get("aria-label", "").strip(), "a drawing without words"
    for header in page.all("th"):
        assert header.get("scope") in ("col", "row", "colgroup", "rowgroup")
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert all(count == 1 for count in ids.values()), [name for name, count in ids.items() if count > 1]
    for _, attributes in page.elements:
        for name in ("href", "xlink:href"):
            target = attributes.get(name, "")
            assert not target.startswith("#") or target[1:] in ids, f"{target} leads nowhere"
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert len(page.all("title")) >= 1
    return page
