"""Facts about this machine that need no measurement: versions, processor, memory and extras."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

# what the extras of the package are for; one that is not named here is listed without a reason
EXTRAS = {
    "search": "metrix index, search and serve; fast evaluation of large data",
    "report": "figures of metrix report, analyze and reproduce",
    "tensorboard": "events of training for TensorBoard",
    "lite": "pretrained networks without a model hub, small enough for a CPU",
    "heic": "photos of phones (.heic)",
    "onnx": "metrix export --onnx, and the fast engine of metrix embed",
    "serve": "metrix serve and metrix explore",
    "milvus": "indexes in Milvus",
    "text": "MetrixLoss in the trainer of sentence-transformers",
    "hf": "data of Hugging Face (--data hf:owner/name)",
    "tune": "metrix tune",
    "wandb": "metrix train --log wandb",
    "mlflow": "metrix train --log mlflow",
}
FOR_DEVELOPERS = ("dev", "docs")
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # as Linux names them


def describe_environment() -> dict[str, Any]:
    """Versions of Python and packages, and the platform."""
    packages = ("metrix", "torch", "torchvision", "timm", "numpy", "lightning-fabric", "faiss-cpu", "numba")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": sys.version.split()[0], "platform": platform.platform(), "versions": versions}


def describe_processor() -> dict[str, Any]:
    """The processor, its cores, how many of them this process may use, and the features that it announces."""
    import torch

    about = _read("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.*)$", about, re.MULTILINE)
    flags = set((re.search(r"^(?:flags|Features)\s*: (.*)$", about, re.MULTILINE) or ["", ""])[1].split())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "name": name[1].strip() if name else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "core_limit": _limit_of_cores(_read("/sys/fs/cgroup/cpu.max")),
        "threads": torch.get_num_threads(),
        "features": [feature for feature in FEATURES if feature in flags],
    }


def _limit_of_cores(text: str) -> float | None:
    """The cores that a container may use, from the file of its control group; None for no limit.

    >>> _limit_of_cores("150000 100000"), _limit_of_cores("max 100000")
    (1.5, None)
    """
    found = re.fullmatch(r"(\d+) (\d+)\s*", text)
    return int(found[1]) / int(found[2]) if found else None


def describe_memory() -> dict[str, int | None]:
    """Bytes of memory in all and free for programs; None where the system does not say."""
    about = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE))
    sizes = {"total": about.get("MemTotal"), "available": about.get("MemAvailable")}
    return {name: None if size is None else 1024 * int(size) for name, size in sizes.items()}


def list_extras() -> dict[str, dict[str, Any]]:
    """The extras of the package, what each is for, and the packages of it that are not installed."""
    try:
        required = metadata.requires("metrix") or []
    except metadata.PackageNotFoundError:  # run from the source without an installation
        return {}
    missing: dict[str, list[str]] = {}
    for line in required:
        extra = re.search(r"""extra == ["']([\w-]+)["']""", line)
        package = re.match(r"[\w.-]+", line)
        if extra is None or package is None or extra[1] in FOR_DEVELOPERS:
            continue
        absent = missing.setdefault(extra[1], [])
        if package[0] != "metrix" and not _is_installed(package[0]):
            absent.append(package[0])
    return {name: {"for": EXTRAS.get(name, ""), "missing": absent} for name, absent in missing.items()}


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except OSError:
        return ""
