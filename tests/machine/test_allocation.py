"""Freed memory is kept where the C library is glibc, unless the environment has settings of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from metrix.machine.allocation import keep_freed_memory


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_are_respected(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_a_freed_tensor_is_reused_without_new_pages():
    code = """
import resource, torch
from metrix.machine.allocation import keep_freed_memory
kept = keep_freed_memory()
faults = []
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**22)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, faults[0], min(faults[10:]))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    if out[0] == "False":
        pytest.skip("the C library has no mallopt")
    assert int(out[2]) < 100 < int(out[1])  # pages of 2^22 floats
