"""`metrix doctor`: what it says of this machine, and which problems it finds."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from metrix.machine import doctor, environment


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return doctor.describe_machine(quick=True)


def test_quick(found: dict[str, Any]) -> None:
    assert found["versions"]["torch"]
    assert found["processor"]["usable_cores"] >= 1
    assert found["devices"][-1]["kind"] == "cpu"
    assert set(found["cache"]["kinds"]) >= {"images", "activations"}
    assert "speed" not in found


def test_every_extra_of_the_package_has_a_reason() -> None:
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(extras) - set(environment.FOR_DEVELOPERS) == set(environment.EXTRAS)


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["torch>=2", 'no-such-package>=1; extra == "heic"', "torch; extra == 'onnx'", 'ruff; extra == "dev"']
    monkeypatch.setattr(environment.metadata, "requires", lambda name: lines)
    extras = environment.list_extras()
    assert extras["heic"] == {"for": environment.EXTRAS["heic"], "missing": ["no-such-package"]}
    assert extras["onnx"]["missing"] == []
    assert "dev" not in extras


def test_speed() -> None:
    found = doctor.measure_speed(seconds=0.01)
    for name in ("gflops", "embedded_per_second", "trained_per_second", "decoded_per_second"):
        assert (found[name] or 0) > 0


def test_problems(found: dict[str, Any]) -> None:
    def problems(**changes: dict[str, Any]) -> str:
        changed = copy.deepcopy(found)
        for section, values in changes.items():
            changed.setdefault(section, {}).update(values)
        return "\n".join(doctor.list_problems(changed))

    assert "METRIX_CACHE" in problems(cache={"writable": False})
    assert "metrix cache prune" in problems(cache={"free_bytes": 10**6})
    assert "OMP_NUM_THREADS=2" in problems(processor={"threads": 64, "core_limit": 2.0})
    announced = {"announced": ["amx_bf16"], "runs": False}
    assert "leaves AMX out" in problems(bfloat16={**announced, "runs_without_amx": True})
    assert "--precision 32-true" in problems(bfloat16={**announced, "runs_without_amx": False})
    assert "bfloat16" not in problems(bfloat16={"announced": ["amx_bf16"], "runs": True, "runs_without_amx": True})


def test_a_bfloat16_that_is_announced_but_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrix.machine.doctor.runs_bfloat16", lambda variables: bool(variables))
    assert doctor.try_bfloat16(["avx2", "amx_bf16"]) == {
        "announced": ["amx_bf16"],
        "runs": False,
        "runs_without_amx": True,
    }


def test_the_command(metrix: Any, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {
        **copy.deepcopy(found),
        "bfloat16": {"announced": ["amx_bf16"], "runs": False, "runs_without_amx": True},
        "speed": {
            "load": 99.0, "gflops": 10.0, "embedded_per_second": 20.0, "trained_per_second": 5.0,
            "decoded_per_second": 100.0,
        },
        "extras": {"heic": {"for": "photos of phones (.heic)", "missing": ["pillow-heif"]}},
        "problems": ["something is wrong; do this"],
    }  # fmt: skip
    whole["weights"]["hub_answers"] = False
    monkeypatch.setattr(doctor, "describe_machine", lambda **_: whole)
    ended = metrix("doctor")
    assert ended.code == 1
    words = ("only without AMX", "embeds 20 and trains 5 images/s", "load 99.0", "does not answer", "metrix[heic]")
    for word in (*words, "problem something is wrong; do this"):
        assert word in ended.out
    assert metrix("doctor", "--json").json["problems"] == whole["problems"]
    whole["problems"] = []
    assert metrix("doctor").code == 0
