"""The precision of a run: bfloat16 where a GPU has it; on a CPU one line, and only where it pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from metrix.machine.bfloat16 import VARIABLE
from metrix.train import Config, precision, train
from metrix.train.precision import choose_precision
from metrix.train.watching import Watcher

CUDA = torch.device("cuda", 0)


def test_a_gpu_that_has_bfloat16_trains_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: device.type == "cuda")
    config, said = choose_precision(Config(), CUDA)
    assert config.train.precision == "bf16-mixed"
    assert "--precision 32-true" in said
    assert choose_precision(Config(), torch.device("cpu"))[0].train.precision == "32-true"
    asked = Config().with_values({"precision": "32-true"})
    assert choose_precision(asked, CUDA) == (asked, "")


@pytest.mark.parametrize(
    ("times", "worth", "words"),
    [
        ((2.0, 0.25), 0.0, ["--precision bf16 would train about 8.0 times as fast", "8 images: 2.0 s in float32"]),
        ((2.0, 1.9), 0.0, []),  # it does not pay
        ((2.0, 0.25), 1e9, []),  # the run is too short to be measured
        (None, 0.0, []),  # the processor dies of it
    ],
)
def test_bfloat16_on_a_cpu_is_suggested_where_it_pays(
    times: Any, worth: float, words: list[str], small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    class Listener(Watcher):
        def note(self, text: str) -> None:
            notes.append(text)

    monkeypatch.setattr(precision, "describe_processor", lambda: {"features": ["avx512_bf16"]})
    monkeypatch.setattr(precision, "WORTH", worth)
    monkeypatch.setattr(precision, "_time_in_child", lambda *_: times)
    run = train(small.with_values({"max_steps": 1}), tmp_path / "run", watcher=Listener())
    assert run.config.train.precision == "32-true"  # said, and not done
    said = [note for note in notes if "bf16" in note]
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)
    notes.clear()
    train(small.with_values({"max_steps": 1, "precision": "32-true"}), tmp_path / "chosen", watcher=Listener())
    assert not any("bf16" in note for note in notes)  # who has chosen is not told


def test_the_measurement_itself(small: Config) -> None:
    found = precision._time_in_child(small, (1, 28, 28), {VARIABLE: "AVX512_CORE_FP16"})
    assert found is None or min(found) > 0
