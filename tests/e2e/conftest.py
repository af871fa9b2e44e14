"""The installed command in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

Command = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Command]:
    """Start `metrix` with arguments; whatever still runs at the end of the test is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "metrix", *map(str, arguments)],
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
