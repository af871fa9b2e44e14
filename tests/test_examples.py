"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_a_script_for_pytorch_metric_learning_runs_with_only_the_loss_line_changed():
    lines = run("pml_drop_in.py").splitlines()
    losses = [float(line.split()[-1]) for line in lines]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_offers_of_unseen_products_are_found_after_training_a_text_model():
    lines = run("sentences.py").splitlines()
    before, clean, mixed = (float(line.split()[-1]) for line in lines if line.startswith(("before", "clean", "with")))
    assert before < 50
    assert clean > before + 20
    assert mixed > before + 20


def test_a_pipeline_of_scikit_learn_with_and_without_the_embedding():
    lines = run("sklearn_pipeline.py").splitlines()
    plain, linear, clean, mixed = (float(line.split()[-1]) for line in lines[1:5])
    assert max(plain, linear) < 45
    assert min(clean, mixed) > 50


def test_digits_in_a_loop_of_ones_own():
    out = run("digits.py")
    clean, mixed = (float(line.split()[-3]) for line in out.splitlines()[1:3])
    assert 80 < clean < 100
    assert 80 < mixed < 100
