"""Settings of all tests."""

from __future__ import annotations

import os

# Some virtual machines announce AMX and then forbid it: bfloat16 products would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
