"""Whether the processor can compute in bfloat16."""

from __future__ import annotations

import functools
import subprocess
import sys

_TRIAL = """
import torch
with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
    images = torch.nn.Conv2d(3, 32, 3)(torch.ones(2, 3, 16, 16))
    assert torch.nn.Linear(32, 32)(images.mean((2, 3))).isfinite().all()
"""


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Whether bfloat16 products run on this processor, tried in another process.

    Some virtual machines announce the instructions and then forbid them, which ends the process that uses them.
    """
    try:
        return subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
