"""A run whose process was killed resumes to the same weights, bit for bit."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from metrix.train.run_folder import RunFolder

BASE = {
    "data": "glyphs-mini",
    "backbone": "glyphs-cnn",
    "dim": 16,
    "batch_size": 24,
    "per_class": 4,
    "epochs": 3,  # of 28 steps
    "checkpoint_steps": 10,
    "lr": 1e-3,
    "mixup": ["embed"],
}
KINDS = {
    "plain": {},
    "memory": {"memory": 100, "memory_after": 12},
    "proxies": {"loss": "proxy-anchor", "clip": 1.0, "warmup_epochs": 1},
    "average": {"ema": 0.9, "schedule": "cosine", "mixup": ["embed", "feature"], "sampler": "random"},
    "divided": {"loss": "margin", "mixup": [], "scheme": "divide-and-conquer", "clusters": 4, "recluster_every": 1},
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """The run of a kind, from start to end in a process of its own; once for all tests."""

    @cache
    def run(kind: str) -> RunFolder:
        whole = RunFolder(tmp_path_factory.mktemp("whole") / kind)
        command = [sys.executable, "-m", "metrix", *arguments(kind), "--output", str(whole.path), "--quiet"]
        subprocess.run(command, check=True, timeout=120)
        return whole

    return run


def arguments(kind: str) -> list[str]:
    values = {key: value for key, value in (BASE | KINDS[kind]).items() if key != "data"}
    flags = [
        ("--" + k.replace("_", "-"), ",".join(v) or "none" if isinstance(v, list) else str(v))
        for k, v in values.items()
    ]
    return ["train", str(BASE["data"]), *(part for flag in flags for part in flag)]


def wait_for_checkpoint(process: subprocess.Popen[str], run: RunFolder, seen: int = 0) -> None:
    """Until there is a checkpoint newer than `seen`."""
    deadline = time.monotonic() + 60
    while not run.last.exists() or run.last.stat().st_mtime_ns <= seen:
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode} before a checkpoint: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        time.sleep(0.005)


def same(resumed: RunFolder, whole: RunFolder) -> None:
    """Assert the same model and checkpoints, bit for bit, and the same history."""
    for name in ("model/model.safetensors", "checkpoints/last.safetensors", "checkpoints/best.safetensors"):
        found, expected = load_file(resumed.path / name), load_file(whole.path / name)
        assert found.keys() == expected.keys()
        for key in expected:
            assert torch.equal(found[key], expected[key]), f"{name}: {key} differs"
    assert resumed.metrics() == whole.metrics()
    assert resumed.results is not None
    assert whole.results is not None
    assert resumed.results["test"] == whole.results["test"]


@pytest.mark.parametrize(
    ("kind", "kills"), [("plain", 2), ("memory", 1), ("proxies", 1), ("average", 1), ("divided", 1)]
)
def test_killed_at_a_random_point(
    kind: str,
    kills: int,
    tmp_path: Path,
    start: Callable[..., subprocess.Popen[str]],
    uninterrupted: Callable[[str], RunFolder],
) -> None:
    run = RunFolder(tmp_path / "run")
    process = start(*arguments(kind), "--output", run.path, "--quiet")
    seen = 0
    for _ in range(kills):
        wait_for_checkpoint(process, run, seen)
        time.sleep(random.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
        assert run.results is None
        seen = run.last.stat().st_mtime_ns
        process = start("train", "--resume", run.path, "--quiet")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    same(run, uninterrupted(kind))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_end(
    signum: int,
    code: int,
    tmp_path: Path,
    start: Callable[..., subprocess.Popen[str]],
    uninterrupted: Callable[[str], RunFolder],
) -> None:
    run = RunFolder(tmp_path / "run")
    process = start(*arguments("plain"), "--output", run.path)
    wait_for_checkpoint(process, run)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert f"--resume {run.path}" in re.sub(r"\s*\n\s*", " ", errors)
    assert "Traceback" not in errors
    assert run.results is None
    process = start("train", "--resume", run.path, "--json")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert '"recall"' in output
    same(run, uninterrupted("plain"))
