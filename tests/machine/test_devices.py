"""The device that computes: its name, its arithmetic, and random numbers that stay the caller's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from metrix.errors import InvalidInput
from metrix.machine import devices
from metrix.machine.devices import choose_device, report_refused_operations, set_arithmetic, use_device
from metrix.sklearn import MetrixEmbedding

CUDA = torch.device("cuda", 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(devices.VARIABLE, "")  # so that it is restored after the test


def test_the_names_of_devices(two_gpus: None) -> None:
    assert choose_device() == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(InvalidInput, match=r"CUDA: cuda:0 to cuda:1\), got 'cuda:2'"):
        choose_device("cuda:2")
    with pytest.raises(InvalidInput, match=r"expected auto, cpu, .* got 'gpu'"):
        choose_device("gpu")


def test_mps_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device().type == "mps"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="no MPS"):
        choose_device("mps")


def test_a_device_for_this_process_and_those_that_it_starts(two_gpus: None) -> None:
    use_device("cuda:1")
    assert choose_device() == torch.device("cuda", 1)
    assert os.environ[devices.VARIABLE] == "cuda:1"
    assert choose_device("cpu").type == "cpu"


def test_every_verb_takes_a_device_but_those_without_a_network() -> None:
    from metrix.cli.app import app

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        for name, verb in getattr(command, "commands", {}).items():
            yield from walk(verb, (*path, name))
        if path and command.callback is not None and not any("--device" in option.opts for option in command.params):
            yield " ".join(path)

    without = set(walk(typer.main.get_command(app), ()))
    assert {verb.split()[0] for verb in without} == {"cache", "data", "label"}


@pytest.mark.parametrize("verb", ["compare", "evaluate", "demo", "methods"])
def test_a_device_that_is_not_there_is_refused(verb: str, metrix: Any) -> None:
    given = {"demo": (), "methods": ()}.get(verb, ("nowhere",))
    ended = metrix(verb, *given, "--device", "cuda:7")
    assert ended.code == 2
    assert "device: expected one that is available here" in ended.err


def test_a_flag_decides_which_device_a_run_is_opened_on(
    metrix: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "check_device_name", lambda name: {"auto": "meta"}.get(name, name))
    assert metrix("embed", run, "-o", run / "x.npy", "--device", "cpu").code == 0  # auto would be no device at all


def test_arithmetic_is_stated_and_restored() -> None:
    before = (
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
    )
    with set_arithmetic(CUDA, deterministic=False) as said:
        assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == (True, True)
        assert not torch.backends.cuda.matmul.allow_tf32  # similarities of a loss
        assert "--deterministic" in said
    with set_arithmetic(CUDA, deterministic=True) as said:
        assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == (False, False)
        assert torch.are_deterministic_algorithms_enabled()
        assert said.startswith("deterministic")
    with set_arithmetic(torch.device("cpu"), deterministic=True) as said:
        assert said == ""
        assert not torch.are_deterministic_algorithms_enabled()
    after = (
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
    )
    assert after == before


def test_an_operation_without_a_deterministic_version_is_named() -> None:
    said = "adaptive_max_pool2d_backward_cuda does not have a deterministic implementation, but you set …"
    with (
        pytest.raises(InvalidInput, match=r"got adaptive_max_pool2d_backward_cuda.*leave out --deterministic"),
        report_refused_operations(),
    ):
        raise RuntimeError(said)
    with pytest.raises(RuntimeError, match="another"), report_refused_operations():
        raise RuntimeError("another")


def test_no_gpu_of_the_caller_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    before = torch.get_rng_state()
    vectors, labels = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) // 5
    MetrixEmbedding(n_components=2, max_iter=1, random_state=0).fit(vectors, labels)
    assert seeded == []
    assert torch.equal(torch.get_rng_state(), before)
