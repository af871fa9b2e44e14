"""Pages, and how a page and its figures become files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metrix.errors import InvalidInput
from metrix.files import describe_failure
from metrix.report.page.blocks import Block, Figure, Gallery, Section, Table, iterate_blocks
from metrix.report.page.csv import to_csv
from metrix.report.page.drawing import make_standalone, render_png
from metrix.report.page.escaping import slugify
from metrix.report.page.html import render_html
from metrix.report.page.markdown import render_markdown
from metrix.report.page.pictures import draw_gallery
from metrix.runs.output import write_output


@dataclass(frozen=True)
class Page:
    """A title and sections, shown with a table of contents."""

    title: str
    sections: Sequence[Section]
    about: str = ""  # paragraphs under the title
    footer: str = ""

    def to_html(self) -> str:
        """The page as one HTML file that needs no other file and no network."""
        anchors = number_duplicates([slugify(section.heading) for section in self.sections])
        return render_html(self.title, self.about, self.sections, anchors, self.footer)

    def to_markdown(self, folder: str) -> str:
        """The page in Markdown, with links to the files of `to_files` in `folder`."""
        places = {key: f"{folder}/{name}" for key, name in self._names().items()}
        return render_markdown(self.title, self.about, self.sections, self.footer, places)

    def to_files(self) -> dict[str, bytes]:
        """Contents by file name: SVG, PNG and CSV of figures, PNG and CSV of galleries, CSV of tables."""
        found: dict[str, bytes] = {}
        names = self._names()
        for block in self._blocks():
            if not isinstance(block, Figure | Gallery | Table):
                continue
            name = names[id(block)]
            if isinstance(block, Figure):
                found[f"{name}.svg"] = make_standalone(block.svg).encode()
                found[f"{name}.png"] = render_png(block.drawing)
            elif isinstance(block, Gallery):
                found[f"{name}.png"] = render_png(draw_gallery(block))
            if block.data:
                found[f"{name}.csv"] = to_csv(block.data).encode()
        return found

    def write(self, path: Path, folder: Path | None = None) -> list[Path]:
        """Write the page as HTML, as Markdown beside it, and its figures and tables into a folder.

        Each file appears complete or not at all.

        Args:
            path: of the page; must end in .html.
            folder: of figures and tables; by default, NAME-files beside the page.

        Returns:
            The paths of the page, the Markdown and the folder.
        """
        self.check_path(path)
        folder = folder or path.with_name(f"{path.stem}-files")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"the folder {folder} cannot be created: {describe_failure(error)}; choose another path"
            ) from error
        contents = {folder / name: content for name, content in self.to_files().items()}
        contents[path.with_suffix(".md")] = self.to_markdown(_relative_path(path.parent, folder)).encode()
        contents[path] = self.to_html().encode()  # last: if the page exists, so do its files
        for place, content in contents.items():
            write_output(place, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
        return [path, path.with_suffix(".md"), folder]

    @staticmethod
    def check_path(path: Path) -> None:
        """Raise InvalidInput unless `path` ends in .html and can be written; call it before any work is done."""
        if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
            raise InvalidInput(f"page: expected a file name that ends in .html, got {path}")
        place = next(one for one in path.absolute().parents if one.exists())
        if not place.is_dir() or not os.access(place, os.W_OK):
            raise InvalidInput(f"page: {path} cannot be written, because of {place}; choose another path")

    def _blocks(self) -> list[Block]:
        return [block for section in self.sections for block in iterate_blocks(section.blocks)]

    def _names(self) -> dict[int, str]:
        """File names without suffix, by the id of the block."""
        blocks = {id(block): block for block in self._blocks() if isinstance(block, Figure | Gallery | Table)}
        return dict(zip(blocks, number_duplicates([slugify(block.name) for block in blocks.values()]), strict=True))


def write_figure(figure: Figure, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg into a folder; each file appears complete or not at all.

    Returns:
        The two paths.
    """
    contents = {
        folder / f"{figure.name}.png": render_png(figure.drawing),
        folder / f"{figure.name}.svg": make_standalone(figure.svg).encode(),
    }
    for path, content in contents.items():
        write_output(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
    return list(contents)


def number_duplicates(names: Sequence[str], numbered: str = "{}-{}") -> list[str]:
    """The names, with a number added to those that occurred before.

    >>> number_duplicates(["a", "b", "a"])
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


def _relative_path(here: Path, folder: Path) -> str:
    """The relative path to a folder with forward slashes; absolute if there is none."""
    import os

    try:
        return Path(os.path.relpath(folder, here)).as_posix()
    except ValueError:  # another drive on Windows
        return folder.resolve().as_posix()
