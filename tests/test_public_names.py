"""The names that the outside relies on."""

from __future__ import annotations

import inspect
import subprocess
import sys

import metrix
from metrix import Metrix, losses


def parameters(function) -> dict[str, object]:
    return {n: p.default for n, p in inspect.signature(function).parameters.items() if n != "self"}


def test_losses_and_their_defaults():
    empty = inspect.Parameter.empty
    assert parameters(losses.Contrastive)["margin"] == 0.5
    assert parameters(losses.LiftedStructure)["margin"] == 1.0
    assert {"beta", "gamma", "margin"} <= set(parameters(losses.BinomialDeviance))
    assert parameters(losses.MultiSimilarity) == {"beta": 18.0, "gamma": 75.0, "margin": 0.77}
    assert list(parameters(losses.ProxyAnchor).items())[:5] == [
        ("num_classes", empty),
        ("dim", empty),
        ("beta", 32.0),
        ("gamma", 32.0),
        ("margin", 0.1),
    ]
    assert list(parameters(losses.ProxyNCA))[:2] == ["num_classes", "dim"]
    assert parameters(losses.ProxyNCAPlusPlus)["temperature"] == 1 / 9
    assert list(parameters(losses.GenericLoss))[:5] == ["tau", "sigma_pos", "sigma_neg", "rho_pos", "rho_neg"]


def test_metrix_and_its_defaults():
    assert list(parameters(Metrix).items())[1:9] == [
        ("mixup", "feature"),
        ("pairs", ("pos-neg", "anc-neg")),
        ("strength", 0.4),
        ("alpha", 2.0),
        ("hard_negatives", None),
        ("lam_per", "pair"),
        ("renormalise", True),
        ("generator", None),
    ]
    assert list(parameters(Metrix.mixed)) == ["embeddings", "labels", "lam", "pairs"]
    assert list(parameters(Metrix.mixed_features)) == ["model", "features", "labels", "lam", "pairs"]
    assert list(parameters(Metrix.step)) == ["model", "inputs", "labels"]


def test_proxies_are_parameters_of_classes_by_dimension():
    for loss in (losses.ProxyAnchor(7, 3), losses.ProxyNCA(7, 3), losses.ProxyNCAPlusPlus(7, 3)):
        assert dict(loss.named_parameters())["proxies"].shape == (7, 3)
        assert "loss.proxies" in Metrix(loss).state_dict()


def test_all_public_names_exist():
    for name in metrix.__all__:
        assert getattr(metrix, name) is not None


def test_importing_the_library_imports_torch_and_little_else():
    code = "import metrix, sys; print([m for m in ('timm','torchvision','faiss','matplotlib','sklearn','numba') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
