"""Whether the processor can compute in bfloat16, found out in a child process.

Some virtual machines announce AMX instructions that they do not have: the first convolution in bfloat16 then ends the
process with an illegal instruction. So a child process tries a small training step, at first as it is, then without
AMX, which oneDNN leaves out if `ONEDNN_MAX_CPU_ISA` is set before its first use.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from metrix.errors import InvalidInput

VARIABLE = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_BF16"
SECONDS = 120  # for importing torch and a step, on a busy machine
_TRIAL = """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, groups=32))
net, head = net.to(memory_format=torch.channels_last), torch.nn.Linear(32, 16)
with torch.autocast("cpu", torch.bfloat16):
    out = head(net(torch.randn(8, 16, 16, 16)).mean((2, 3)))
out.float().square().sum().backward()
"""


def prepare_bfloat16() -> str:
    """Make bfloat16 usable on the CPU of this process, and say in one line what that took.

    Raises:
        InvalidInput: a training step in bfloat16 ends the process, whatever the instruction set.
    """
    if runs_bfloat16({}):
        return "bfloat16 works on this processor"
    if VARIABLE not in os.environ and runs_bfloat16({VARIABLE: WITHOUT_AMX}):
        os.environ[VARIABLE] = WITHOUT_AMX
        return f"this processor announces AMX but cannot run it: bfloat16 without AMX ({VARIABLE}={WITHOUT_AMX})"
    raise InvalidInput(
        "precision: expected '32-true' on this processor, got bf16, in which a training step ends the process"
    )


def runs_bfloat16(variables: Mapping[str, str]) -> bool:
    """Whether a training step in bfloat16 succeeds in a child process with these environment variables."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRIAL], env={**os.environ, **variables}, capture_output=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0
