"""The LightningModule of the documentation: two processes take the steps of one with the whole batch."""

from __future__ import annotations

import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from . import lightning_worker

WORKER = Path(lightning_worker.__file__)


def train_together(world: int, output: Path) -> dict[str, Tensor]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    commands = [[sys.executable, WORKER, str(rank), str(world), port, output] for rank in range(world)]
    processes = [subprocess.Popen(c, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for c in commands]
    said = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * world, "\n".join(f"{out}{err}" for out, err in said)
    return load_file(output)


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning advises more workers, and has some of its own
        lightning_worker.train(0, 1, tmp_path / "1.safetensors")
    alone, together = load_file(tmp_path / "1.safetensors"), train_together(2, tmp_path / "2.safetensors")
    assert alone.keys() == together.keys()
    assert any("proxies" in name for name in alone)
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-9, atol=1e-12, msg=name)
