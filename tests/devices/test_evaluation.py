"""Evaluation of embeddings that are on the device."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from metrix.evaluate.bootstrap import numpy_generator


def test_a_generator_of_the_device_seeds_the_bootstrap(monkeypatch):
    generator = SimpleNamespace(device=torch.device("cuda", 0))  # a real one needs a real device
    asked = []
    monkeypatch.setattr(torch, "randint", lambda *_, device="cpu", **__: asked.append(device) or torch.tensor(5))
    numpy_generator(generator)
    assert asked == [generator.device]
