"""Every code block of README, CONTRIBUTING and docs runs: Python as it stands, commands on tiny data.

The blocks of a page run in order in one namespace and one folder, which has what the commands speak of: photos/ (a
folder of class folders), runs/a, runs/b and runs/2026-… (finished runs). `metrix train` and `distil` are run with
--print-config, and what takes long or serves until it is stopped (`metrix demo`, `reproduce`, `serve`, `explore`, `label`,
`doctor`) is only parsed; every other command is really run.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer

from metrix.cli.app import app
from tests.command_line import Metrix

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]


class Block(NamedTuple):
    """A fenced or indented block: the line it begins in, the language of its fence, its text."""

    line: int
    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    """The code blocks of a page in order."""
    text = (ROOT / page).read_text("utf-8")
    fenced = r"^```(?P<language>\w*)[^\n]*\n(?P<fenced>.*?)^```$"
    indented = r"(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n)+)"
    return [
        Block(text.count("\n", 0, m.start()) + 1, m["language"] or "sh", m["fenced"] or m["indented"])
        for m in re.finditer(f"{fenced}|{indented}", text, re.DOTALL | re.MULTILINE)
    ]


def commands_of(text: str) -> list[list[str]]:
    """The arguments of every `metrix` in a block of commands, a script or a YAML file that holds one."""
    given = re.findall(r'ARGS="([^"]*)"', text)  # a script that puts arguments together has them there
    found = []
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        line = line.strip().removeprefix("$ ")
        command = re.search(r"^metrix( .*|)$|-m metrix( .*)$", line)
        if command is None:
            continue
        rest = command[1] if command[1] is not None else command[2]
        for filled in [rest.replace("$ARGS", value) for value in given] if "$ARGS" in rest else [rest]:
            found.append(shlex.split(filled, comments=True))
    return found


def takes_long(arguments: list[str]) -> bool:
    """Whether a command trains for minutes, serves until it is stopped, or is about a run elsewhere."""
    if arguments[0] == "label":
        return not {"--list", "--json", "--manifest"} & set(arguments)
    return arguments[0] in ("demo", "reproduce", "tune", "serve", "explore", "doctor") or (
        "--resume" in arguments and not arguments[-1].startswith("runs/")
    )


PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks_of(page))]
COMMANDS = [
    arguments
    for page in PAGES
    for block in blocks_of(page)
    if block.language != "python"
    for arguments in commands_of(block.text)
]


@pytest.mark.parametrize("page", PYTHON)
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")  # of Lightning's own doing
def test_python(page: str, reader_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader_folder)
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language != "python":
            continue
        where = f"{page}:{block.line}"
        if ">>>" in block.text:
            said: list[str] = []
            test = doctest.DocTestParser().get_doctest(block.text, namespace, where, page, block.line)
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
            assert runner.run(test, out=said.append, clear_globs=False).failed == 0, "".join(said)
            namespace |= test.globs
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * block.line + block.text, str(ROOT / page), "exec"), namespace)


@pytest.mark.parametrize("arguments", [c for c in COMMANDS if not takes_long(c)], ids=" ".join)
def test_command(arguments: list[str], reader_folder: Path, metrix: Metrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader_folder)
    more = ("--print-config",) if arguments[0] in ("train", "distil") and "--resume" not in arguments else ()
    outcome = metrix(*arguments, *more)
    assert outcome.code == 0, outcome.err
    assert outcome.out or outcome.err


@pytest.mark.parametrize("arguments", [c for c in COMMANDS if takes_long(c)], ids=" ".join)
def test_command_is_parsed(arguments: list[str]) -> None:
    parse(arguments)


def parse(arguments: list[str]) -> None:
    """Raise an error if the command line does not take these arguments."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("metrix", list(arguments))
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, rest, parent=context)


def test_what_would_be_a_mistake_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["reproduce", "all", "--qick"])


def test_make_targets_exist() -> None:
    targets = set(
        re.findall(r"\w+", " ".join(re.findall(r"^([\w ]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)))
    )
    named = {
        target
        for page in PAGES
        for target in re.findall(r"`make (\w+)|^\s+make (\w+)", (ROOT / page).read_text("utf-8"), re.MULTILINE)
        for target in target
        if target
    }
    assert {"demo", "test"} <= named <= targets


def test_the_documentation_has_code() -> None:
    assert "README.md" in PYTHON
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_blocks_fit_beside_both_columns_of_a_page(page: str) -> None:
    """At 1280 pixels 86 characters fit; README.md is no page of the site."""
    for block in blocks_of(page):
        indent = 0 if (ROOT / page).read_text("utf-8").splitlines()[block.line - 1].startswith("```") else 4
        long = [line for line in block.text.splitlines() if len(line) - indent > 86]
        assert not long, f"{page}:{block.line}: {long}"
