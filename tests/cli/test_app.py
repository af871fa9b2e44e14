from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
import warnings
from typing import Any

import pytest
import typer
from rich.cells import cell_len

from metrix import MetrixError, MetrixWarning, __version__
from metrix.cli.app import app
from metrix.train import names, sections
from tests.command_line import Metrix


def test_help_is_instant_and_without_torch() -> None:
    program = (
        "import sys\nsys.argv = ['metrix', *sys.argv[1:]]\nfrom metrix.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'torchvision', 'timm', 'numba', 'scipy', 'sklearn', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "import resource\nused = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print('heavy', sorted(heavy), 'seconds', used.ru_utime + used.ru_stime)"
    )
    for verb in ([], ["demo"], ["data", "check"], ["evaluate"], ["train"], ["tune"], ["reproduce"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *verb, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        last = done.stdout.strip().splitlines()[-1]
        assert last.startswith("heavy [] "), last
        assert float(last.split()[-1]) < 1.0, last  # processor time: the machine may be busy
        assert "Usage: metrix" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (["-c", "import metrix"], 0.1),
        (["-m", "metrix", "--help"], 0.3),
        (["-m", "metrix", "train", "--help"], 0.5),
    ],
    ids=["import", "help", "help of train"],
)
def test_start_is_fast(arguments: list[str], seconds: float) -> None:
    """The best of several, in processor time: another process on the same core makes both longer, by up to a half."""
    used = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used) < 1.5 * seconds, used


@pytest.mark.parametrize("key", sections.TABLES)
def test_help_names_every_choice(key: str, metrix: Metrix) -> None:
    shown = " ".join(metrix("train", "--help").out.replace("│", " ").split())
    assert ", ".join(getattr(names, sections.TABLES[key])) in shown, "see metrix/train/choices.py"


def test_version(metrix: Metrix) -> None:
    assert metrix("--version") == (0, f"metrix {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("trian",), "Did you mean 'train'?"),
        (("train", "--epocs", "3"), "--epochs"),
        (("data", "chek"), "Did you mean 'check'?"),
        (("train", "--epochs", "many"), "valid integer"),
        (("demo", "--seeds", "1"), "--seeds"),
    ],
)
def test_mistyped(arguments: tuple[str, ...], hint: str, metrix: Metrix) -> None:
    ended = metrix(*arguments)
    assert ended.code == 2
    assert hint in ended.err
    assert "Traceback" not in ended.err


def test_verbs_are_listed(metrix: Metrix) -> None:
    ended = metrix("--help")
    assert ended.code == 0
    for verb in ("demo", "train", "data"):
        assert f" {verb} " in ended.out


def test_ctrl_c_outside_training(metrix: Metrix, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("metrix.data.check", interrupted)
    ended = metrix("data", "check", "glyphs-mini")
    assert ended.code == 130
    assert "Traceback" not in ended.err


def test_warnings_are_lines_for_a_person(metrix: Metrix, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(*_: object, **__: object) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("something was left out", MetrixWarning, stacklevel=1)
        raise MetrixError("the end")

    monkeypatch.setattr("metrix.data.check", warns)
    ended = metrix("data", "check", "glyphs-mini")
    assert ended.code == 2
    assert [line for line in ended.err.splitlines() if line] == ["metrix: something was left out", "metrix: the end"]


def leaf_commands() -> list[tuple[str, ...]]:
    """Every verb, with its group if it has one."""
    found: list[tuple[str, ...]] = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*path, name))
        if not getattr(command, "commands", {}):
            found.append(path)

    walk(typer.main.get_command(app), ())
    return found


@pytest.mark.parametrize("words", leaf_commands(), ids=" ".join)
def test_help_fits_80_columns(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    with pytest.raises(SystemExit):
        app([*words, "--help"], prog_name="metrix")
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert not re.search(r"\w…", shown)  # nothing is cut off
    assert not re.search(r"<(bool|int|float|str|path|list)", shown)
    assert "[default: ]" not in shown
    assert "{" not in lines[1]  # the usage
    texts = [line.rstrip(" │") for line in lines if line.startswith("│")]
    widest = max((len(re.split(r"\s{2,}", text)[-1]) for text in texts), default=0)
    assert widest >= 25  # the explanations have room


@pytest.mark.parametrize("words", leaf_commands(), ids=" ".join)
def test_examples_of_help_can_be_typed(words: tuple[str, ...]) -> None:
    root = typer.main.get_command(app)
    command: Any = root
    for word in words:
        command = command.commands[word]
    _, _, examples = (command.help or "").partition("Examples:\n")
    if words not in {("demo",), ("doctor",), ("methods",), ("cache", "show")}:  # they need no explanation
        assert examples
    for line in examples.splitlines():
        name, *typed = shlex.split(line)
        assert (name, *typed[: len(words)]) == ("metrix", *words)
        with command.make_context(line, typed[len(words) :]) as context:
            assert not context.args


def test_groups_have_narrow_help(metrix: Metrix) -> None:
    for words in ((), ("data",), ("cache",), ("analyze",)):
        assert "<bool>" not in metrix(*words, "--help").out


def test_usage_of_a_mistake_is_that_of_the_help(metrix: Metrix) -> None:
    assert "Usage: metrix search [OPTIONS] INDEX [QUERY]..." in metrix("search", "photos.index", "-k", "none").err


def test_the_shell_completes_verbs_flags_and_values() -> None:
    def complete(*words: str) -> list[str]:
        environment = {
            **os.environ,
            "_METRIX_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("metrix", *words)),
            "COMP_CWORD": str(len(words)),
        }
        command = [sys.executable, "-m", "metrix"]
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout.split()

    assert complete("eval") == ["evaluate"]
    assert complete("train", "--sched") == ["--schedule"]
    assert complete("train", "--schedule", "c") == ["cosine", "constant"]


def test_what_may_follow_is_quoted_for_the_shell(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from metrix.cli.terminal.next_steps import command, print_next

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    print_next((command("metrix", "evaluate", "runs/my cats [1]"), "measure"))
    assert capsys.readouterr().err == "next: metrix evaluate 'runs/my cats [1]'  # measure\n"
    print_next((command("metrix", "report", "x" * 70), "a page"))
    assert capsys.readouterr().err.splitlines() == ["next: # a page", f"      metrix report {'x' * 70}"]
