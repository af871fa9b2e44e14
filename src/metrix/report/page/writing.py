"""A page and its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metrix.errors import InvalidInput
from metrix.report.page.blocks import Block, Figure, Gallery, Section, Table, each
from metrix.report.page.csv import to_csv
from metrix.report.page.drawing import png, standalone
from metrix.report.page.escaping import slug
from metrix.report.page.html import render_html
from metrix.report.page.markdown import render_markdown
from metrix.report.page.pictures import gallery_drawing
from metrix.runs.output import write_output


@dataclass(frozen=True)
class Page:
    """A title and sections, with a table of contents."""

    title: str
    sections: Sequence[Section]
    about: str = ""  # paragraphs under the title
    footer: str = ""

    def html(self) -> str:
        """The page as one file that needs no other and no network."""
        anchors = distinct([slug(section.heading) for section in self.sections])
        return render_html(self.title, self.about, self.sections, anchors, self.footer)

    def markdown(self, folder: str) -> str:
        """The same in Markdown; its figures and tables are the `files` in `folder`."""
        places = {key: f"{folder}/{name}" for key, name in self._names().items()}
        return render_markdown(self.title, self.about, self.sections, self.footer, places)

    def files(self) -> dict[str, bytes]:
        """Each figure as SVG, PNG and CSV, each gallery as PNG and CSV, each table as CSV."""
        found: dict[str, bytes] = {}
        names = self._names()
        for block in self._blocks():
            if not isinstance(block, Figure | Gallery | Table):
                continue
            name = names[id(block)]
            if isinstance(block, Figure):
                found[f"{name}.svg"] = standalone(block.svg).encode()
                found[f"{name}.png"] = png(block.drawing)
            elif isinstance(block, Gallery):
                found[f"{name}.png"] = png(gallery_drawing(block))
            if block.data:
                found[f"{name}.csv"] = to_csv(block.data).encode()
        return found

    def write(self, path: Path, folder: Path | None = None) -> list[Path]:
        """Write PATH (.html), the Markdown beside it and the files in `folder`; each whole or not at all.

        The folder is NAME-files beside the page by default.
        """
        self.check_path(path)
        folder = folder or path.with_name(f"{path.stem}-files")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"the folder {folder} cannot be made: {error.strerror}; choose another place") from error
        contents = {folder / name: content for name, content in self.files().items()}
        contents[path.with_suffix(".md")] = self.markdown(_seen_from(path.parent, folder)).encode()
        contents[path] = self.html().encode()  # last: where it is, the rest is too
        for place, content in contents.items():
            write_output(place, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
        return [path, path.with_suffix(".md"), folder]

    @staticmethod
    def check_path(path: Path) -> None:
        """Refuse a name that is not one of a page, before any work is done."""
        if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
            raise InvalidInput(f"{path}: accepted is the name of a file that ends in .html")

    def _blocks(self) -> list[Block]:
        return [block for section in self.sections for block in each(section.blocks)]

    def _names(self) -> dict[int, str]:
        """A file name for each block that has files."""
        blocks = {id(block): block for block in self._blocks() if isinstance(block, Figure | Gallery | Table)}
        return dict(zip(blocks, distinct([slug(block.name) for block in blocks.values()]), strict=True))


def write_figure(figure: Figure, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg into a folder; each appears complete or not at all.

    Returns:
        The two paths.
    """
    contents = {
        folder / f"{figure.name}.png": png(figure.drawing),
        folder / f"{figure.name}.svg": standalone(figure.svg).encode(),
    }
    for path, content in contents.items():
        write_output(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
    return list(contents)


def distinct(names: Sequence[str], numbered: str = "{}-{}") -> list[str]:
    """Names made different by numbers where they are not.

    >>> distinct(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    given: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in given:
            number += 1
            candidate = numbered.format(name, number)
        given.append(candidate)
    return given


def _seen_from(here: Path, folder: Path) -> str:
    """The way to a folder, with forward slashes; whole if there is no relative one."""
    import os

    try:
        return Path(os.path.relpath(folder, here)).as_posix()
    except ValueError:  # another drive on Windows
        return folder.resolve().as_posix()
