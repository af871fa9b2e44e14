"""Lines of the README's comparison that can be checked here are true, of this library and of pytorch-metric-learning."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytorch_metric_learning
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners as pml_miners
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from metrix import losses
from metrix.core.mixup import MIXUP_TYPES
from metrix.core.pairs import PAIR_KINDS

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
ROWS = {cells[0]: cells[1:] for line in README.splitlines() if len(cells := line.strip("|").split(" | ")) == 5}


def row(name: str) -> list[str]:
    return next([cell.strip() for cell in cells] for key, cells in ROWS.items() if key.strip() == name)


def test_the_version_compared_with() -> None:
    assert f"pytorch-metric-learning) {'.'.join(version('pytorch-metric-learning').split('.')[:2])}" in README


def test_losses_and_miners() -> None:
    ours = set(losses.__all__) - {"GenericLoss", "from_pml", "functions"}
    assert len(ours) > 20
    theirs = [name for name in dir(pml_losses) if name.endswith("Loss")]
    assert len(theirs) > 30
    assert row("losses")[:2] == ["more than 20, and PML's", "more than 30"]
    found = [name for name in dir(pml_miners) if name[0].isupper() and name != "BaseMiner"]
    assert row("miners")[1] == str(len(found))


def test_mixup() -> None:
    ours, theirs = row("mixup for metric learning")[:2]
    assert all(name in ours for name in ("input", "feature", "embedding"))
    assert {"input", "feature", "embed"} <= set(MIXUP_TYPES)
    assert len(PAIR_KINDS) == 4
    assert "four kinds of pairs" in ours
    assert theirs == "–"
    sources = Path(pytorch_metric_learning.__file__).parent.rglob("*.py")
    assert not any("mixup" in path.read_text("utf-8").lower() for path in sources)


def test_measures_of_pml() -> None:
    named = {
        "precision@1": "precision_at_1",
        "MAP@R": "mean_average_precision_at_r",
        "R-precision": "r_precision",
        "mAP": "mean_average_precision",
        "MRR": "mean_reciprocal_rank",
        "NMI": "NMI",
        "AMI": "AMI",
    }
    assert set(row("measures")[1].split(", ")) == set(named)
    has = {name.removeprefix("calculate_") for name in dir(AccuracyCalculator) if name.startswith("calculate_")}
    assert has == set(named.values())


def test_one_screen_of_python_and_shell() -> None:
    python, shell = re.findall(r"^```(?:python)?\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert len([line for line in python.splitlines() if line]) <= 10
    assert len(shell.splitlines()) == 10
