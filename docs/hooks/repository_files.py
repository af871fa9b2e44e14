"""Pages of the site that are files elsewhere in the repository: changelog, contributing, and the source code.

A link of a page to `../src/metrix/….py` becomes a link to a page with the text of that file, at the line where the name
that the link shows is defined.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
SOURCE_LINK = re.compile(
    r"\[(?P<shown>[^\]]+)\]\((?:\.\./)+(?P<path>(?:src|examples|tests|benchmarks)/[\w/.-]+\.\w+)\)"
)


REST = re.compile(r"<!-- the rest of (?P<package>[\w.]+) -->")


def on_files(files: Files, config: Any) -> Files:
    """Add changelog, contributing and a page for each source file that a page links to."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=_outside(ROOT / name)))
    linked = {
        match["path"] for file in files.documentation_pages() for match in SOURCE_LINK.finditer(file.content_string)
    }
    for path in sorted(linked):
        files.append(File.generated(config, _page_of(path), content=_source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to source files to their pages."""
    up = "../" * page.file.src_uri.count("/")

    def replace(match: re.Match[str]) -> str:
        line = _line_of(match["path"], match["shown"].strip("`"))
        attribute = f"{{ data-line={line} }}" if line else ""
        return f"[{match['shown']}]({up}{_page_of(match['path'])}){attribute}"

    return SOURCE_LINK.sub(replace, REST.sub(lambda match: _rest_of(match["package"], markdown), markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Add the line to links to source pages; mkdocs knows no anchors inside code and would call them broken before."""
    return re.sub(r'data-line="(\d+)" href="([^"#]+)"', r'href="\2#__codelineno-0-\1"', html)


def _rest_of(package: str, page: str) -> str:
    """The reference of the public names of a package that the page does not have yet."""
    tree = ast.parse((ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text("utf-8"))
    homes = {
        name.asname or name.name: f"{node.module}.{name.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    shown = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    left = [home for name, home in homes.items() if home not in shown and not name.isupper() and name != "annotations"]
    return "\n\n".join(["## More", *(f"::: {home}" for home in left)]) if left else ""


def _outside(path: Path) -> str:
    """The text of a Markdown file at the root of the repository, with links as from docs/."""
    text = path.read_text("utf-8").replace("](docs/", "](")
    return re.sub(r"\]\((src|examples|tests)/", r"](../\1/", text)


def _page_of(path: str) -> str:
    return f"source/{Path(path).with_suffix('').as_posix().removeprefix('src/')}.md"


def _source_page(path: str) -> str:
    file = ROOT / path
    if not file.is_file():
        raise PluginError(f"a page links to {path}, which does not exist")
    language = {".py": "python", ".yaml": "yaml"}.get(file.suffix, "text")
    text = file.read_text("utf-8")
    title = path.removeprefix("src/")
    return f'---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {title}\n\n```{language} linenums="1"\n{text}\n```\n'


def _line_of(path: str, name: str) -> int | None:
    """The line where a class or function of this name begins."""
    file = ROOT / path
    if file.suffix != ".py" or not file.is_file():
        return None
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node.lineno
    return None
