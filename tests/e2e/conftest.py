"""The installed command in processes of its own, with a cache that all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

Command = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in another order are other sums: every process uses one thread, this one included."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def start() -> Iterator[Command]:
    """Start `metrix` with arguments; whatever still runs at the end of the test is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "metrix", *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
