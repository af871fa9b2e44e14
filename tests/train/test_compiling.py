"""`--compile`: what is compiled is said, and trains the weights of an eager run; without a compiler, nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metrix.train import Config, train
from metrix.train.watching import Watcher


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("values", "compiled", "words"),
    [
        ({"mixup": ("embed",)}, ["step"], "network and objective are compiled"),
        ({"mixup": ()}, ["step"], "network and objective are compiled"),
        ({"mixup": ("feature",)}, ["features_from"], "the network is compiled, the objective is not (feature mixup)"),
        ({"mixup": (), "micro_batch": 6}, ["features_from"], "the objective is not (micro-batches)"),
    ],
)
def test_what_is_compiled_is_said_and_used(
    values: dict[str, Any], compiled: list[str], words: str, small: Config, tmp_path: Path, monkeypatch
) -> None:
    calls: dict[str, int] = {}

    def count(function: Any, **_: Any) -> Any:
        def counted(*args: Any) -> Any:
            calls[function.__name__] = calls.get(function.__name__, 0) + 1
            return function(*args)

        return counted

    config = small.with_values({"max_steps": 2, "pool": "avg", "frozen_bn": True, **values})
    expected = load_file(train(config, tmp_path / "eager").model / "model.safetensors")
    monkeypatch.setattr(torch, "compile", count)  # the compiler itself takes minutes on a busy machine
    notes = Notes()
    run = train(config.with_values({"compile": True}), tmp_path / "compiled", watcher=notes)
    assert [note for note in notes.notes if words in note]
    assert set(calls) - {"_twice"} == set(compiled)
    assert calls[compiled[0]] >= 2
    assert all(
        torch.equal(tensor, expected[name]) for name, tensor in load_file(run.model / "model.safetensors").items()
    )


def test_without_a_compiler_nothing_is_compiled(small: Config, tmp_path: Path, monkeypatch) -> None:
    def refuse(function: Any, **_: Any) -> Any:
        def run(*args: Any) -> Any:
            raise RuntimeError("InvalidCxxCompiler: no working C++ compiler\nmore lines")

        return run

    monkeypatch.setattr(torch, "compile", refuse)
    notes = Notes()
    train(small.with_values({"max_steps": 1, "compile": True}), tmp_path / "run", watcher=notes)
    assert (
        "nothing is compiled: there is no compiler for cpu here (InvalidCxxCompiler: no working C++ compiler)"
        in notes.notes
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own, which it hides elsewhere
def test_the_compiler_trains_much_the_same_weights(small: Config, tmp_path: Path) -> None:
    config = small.with_values({"max_steps": 2, "mixup": ("embed",)})
    expected = load_file(train(config, tmp_path / "eager").model / "model.safetensors")
    run = train(config.with_values({"compile": True}), tmp_path / "compiled")
    for name, tensor in load_file(run.model / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-2, atol=1e-3, msg=name)
