from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from metrix import MetrixError, MetrixWarning, __version__
from metrix.train import config
from tests.command_line import Metrix


def test_help_is_instant_and_without_torch() -> None:
    program = (
        "import sys\nsys.argv = ['metrix', *sys.argv[1:]]\nfrom metrix.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'torchvision', 'timm', 'numba', 'scipy', 'sklearn', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "import resource\nused = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print('heavy', sorted(heavy), 'seconds', used.ru_utime + used.ru_stime)"
    )
    for verb in ([], ["demo"], ["data", "check"], ["evaluate"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *verb, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        last = done.stdout.strip().splitlines()[-1]
        assert last.startswith("heavy [] "), last
        assert float(last.split()[-1]) < 1.0, last  # processor time: the machine may be busy
        assert "Usage: metrix" in done.stdout


@pytest.mark.parametrize("key", config.TABLES)
def test_help_names_every_choice(key: str, metrix: Metrix) -> None:
    shown = " ".join(metrix("train", "--help").out.replace("│", " ").split())
    assert ", ".join(config.choices(key)) in shown


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
