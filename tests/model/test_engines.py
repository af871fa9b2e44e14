"""Engines: close to the exact one, and the fastest is chosen where it is worth it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from metrix.errors import ChoiceError, ModelError
from metrix.model import Embedder, engines
from metrix.model.engines import (
    Engine,
    build_engine,
    choose_engine,
    cpu_has_bfloat16,
    measure_engines,
    open_engine_file,
)
from metrix.model.export import build_onnx, write_onnx


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.manual_seed(0)
    return Embedder("glyphs-cnn", 8).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(16, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def slow_clock(seconds: float) -> Callable[[], float]:
    now = [0.0]

    def clock() -> float:
        now[0] += seconds
        return now[0]

    return clock


def test_torch_is_the_embedder_bit_for_bit(embedder: Embedder, images: torch.Tensor) -> None:
    with torch.inference_mode():
        assert torch.equal(build_engine("torch", embedder).run(images), embedder(images))


def test_other_engines_are_close(embedder: Embedder, images: torch.Tensor) -> None:
    names = ["torch", "onnx", *(["bf16"] if cpu_has_bfloat16() else [])]
    found = measure_engines([build_engine(name, embedder) for name in names], images, slow_clock(1.0))
    assert [one.engine for one in found] == names
    assert found[0].largest_difference == 0
    assert found[1].largest_difference < 1e-5
    assert all(one.smallest_cosine > 0.999 and one.images == 16 for one in found)
    assert all(one.images_per_second == 16 for one in found)


def test_a_short_job_is_exact(embedder: Embedder, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "build_onnx", None)  # an error if it is called
    engine, measured = choose_engine(embedder, images, 100, clock=slow_clock(1.0))
    assert (engine.name, measured) == ("torch", [])


def test_a_long_job_takes_the_fastest(
    embedder: Embedder, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "cpu_has_bfloat16", lambda: False)
    real = engines.measure_engines

    def measure(given: list[Engine], images: torch.Tensor, *clock: Any, **rounds: Any) -> list[engines.EngineMeasure]:
        speeds = {"torch": 1.0, "onnx": 3.0}
        return [
            engines.EngineMeasure(one.engine, speeds[one.engine], one.largest_difference, one.smallest_cosine, 16)
            for one in real(given, images, *clock, **rounds)
        ]

    monkeypatch.setattr(engines, "measure_engines", measure)
    engine, measured = choose_engine(embedder, images, 1000)
    assert engine.name == "onnx"
    assert [one.engine for one in measured] == ["torch", "onnx"]


def test_without_packages_and_instructions_torch_remains(
    embedder: Embedder, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ModelError("not installed")

    monkeypatch.setattr(engines, "require_onnx", missing)
    monkeypatch.setattr(engines, "cpu_has_bfloat16", lambda: False)
    engine, measured = choose_engine(embedder, images, 1000, clock=slow_clock(1.0))
    assert engine.name == "torch"
    assert [one.engine for one in measured] == ["torch"]
    with pytest.raises(ModelError, match="computes in bfloat16; choose torch or onnx"):
        build_engine("bf16", embedder)


def test_an_unknown_engine_is_an_error(embedder: Embedder) -> None:
    with pytest.raises(ChoiceError, match="unknown engine 'onx'; did you mean 'onnx'"):
        build_engine("onx", embedder)


def test_a_file_must_be_of_the_same_weights(embedder: Embedder, images: torch.Tensor, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    write_onnx(build_onnx(embedder), file, {"model": "a" * 64})
    engine = open_engine_file(file, "a" * 64, 28)
    with torch.inference_mode():
        torch.testing.assert_close(engine.run(images), embedder(images), atol=1e-5, rtol=0)
    with pytest.raises(ModelError, match="was exported from another model"):
        open_engine_file(file, "b" * 64, 28)


HUGE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # whatever the system would promise
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
import numpy as np
from metrix.errors import ModelError
from metrix.model.export import OnnxSession

shape = helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([200_000, 200_000])))
fill = helper.make_node("ConstantOfShape", ["shape"], ["huge"])
total = helper.make_node("ReduceSum", ["huge"], ["sum"], keepdims=0)
add = helper.make_node("Add", ["x", "sum"], ["y"])
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, 8, 8]) for name in "xy")
model = helper.make_model(helper.make_graph([shape, fill, total, add], "g", [x], [y]), ir_version=9,
                          opset_imports=[helper.make_opsetid("", 17)])
try:
    OnnxSession(model)(torch.zeros(1, 3, 8, 8))
except ModelError as error:
    print("refused:", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is that of Linux")
def test_a_file_with_a_constant_of_160_gigabytes_is_refused() -> None:
    ended = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, timeout=120)
    assert ended.stdout.startswith("refused: onnxruntime cannot run the model: "), ended.stderr[-2000:]
