"""What this machine has, what it can do and how fast, and what is missing: `metrix doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from metrix.files import describe_failure
from metrix.train.cached_files import summarise_cache
from metrix.train.run_folder import describe_environment

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
}
FOR_DEVELOPERS = ("dev", "docs")
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # as Linux names them
LEAST_FREE = 2 * 10**9  # bytes; checkpoints and caches need some room


def describe_machine(*, quick: bool = False, told: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Everything about this machine that matters to metrix; plain values, ready for JSON.

    Args:
        quick: leave out what takes seconds: speed, bfloat16 and whether the model hub answers
        told: called with what is being looked at
    """
    from metrix.model.backbones import network_answers

    found: dict[str, Any] = describe_environment()
    told("devices")
    found["processor"] = describe_processor()
    found["memory"] = describe_memory()
    found["devices"] = describe_devices()
    told("extras")
    found["extras"] = list_extras()
    told("cache")
    found["cache"] = summarise_cache()
    found["weights"] = describe_weights()
    if not quick:
        told("bfloat16")
        found["bfloat16"] = try_bfloat16(found["processor"]["features"])
        told("speed")
        found["speed"] = measure_speed()
        told("model hub")
        found["weights"]["hub_answers"] = network_answers()
    found["problems"] = list_problems(found)
    return found


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


def describe_devices() -> list[dict[str, Any]]:
    """The devices that can train, the fastest kind first; the CPU is always there."""
    import torch

    found: list[dict[str, Any]] = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        found.append({"kind": "cuda", "name": about.name, "memory": about.total_memory})
    if torch.backends.mps.is_available():
        found.append({"kind": "mps", "name": "Apple GPU", "memory": None})
    return [*found, {"kind": "cpu", "name": None, "memory": None}]


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


def describe_weights() -> dict[str, Any]:
    """Pretrained weights that are on this machine."""
    from metrix.model.weights import LITE_BACKBONES

    packaged = [name for name in LITE_BACKBONES if importlib.util.find_spec(f"{name}_pytorch_model") is not None]
    hub = Path(os.environ.get("HF_HUB_CACHE", Path(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")))
    models = sorted(hub.expanduser().glob("models--timm--*"))
    return {"packaged": packaged, "downloaded": [path.name.removeprefix("models--timm--") for path in models]}


def try_bfloat16(features: list[str]) -> dict[str, Any]:
    """Whether training in bfloat16 runs, as it is or without AMX, beside what the processor announces."""
    from metrix.model.bfloat16 import VARIABLE, WITHOUT_AMX, runs_bfloat16

    announced = [feature for feature in features if "bf16" in feature]
    plain = runs_bfloat16({})
    without = plain or runs_bfloat16({VARIABLE: WITHOUT_AMX})
    return {"announced": announced, "runs": plain, "runs_without_amx": without}


def measure_speed(seconds: float = 1.0) -> dict[str, float | None]:
    """Speeds of this machine, each measured for about a second, on the device that training would use.

    `load` is how many programs wanted a core in the last minute, before this one: others make it slower.
    """
    import io

    import numpy as np
    import torch
    from PIL import Image

    from metrix.data.images import load_image
    from metrix.model import Embedder

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    matrix = torch.randn(1024, 1024, device=device)
    with torch.random.fork_rng(devices=[]):
        network = Embedder("resnet18", dim=128, image_size=224).to(device).eval()
    images = torch.randn(8, 3, 224, 224, device=device)
    noise = np.random.default_rng(0).integers(0, 255, (75, 100, 3), dtype=np.uint8)
    photo = io.BytesIO()
    Image.fromarray(noise).resize((500, 375)).save(photo, "JPEG")

    def embed() -> None:
        with torch.inference_mode():
            network(images)

    def step() -> None:
        network.zero_grad(set_to_none=True)
        network(images).sum().backward()

    def decode() -> None:
        photo.seek(0)
        load_image(photo, short_side=256)

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    products = _rate(lambda: matrix @ matrix, seconds, device)
    return {
        "load": load,
        "gflops": round(products * 2 * 1024**3 / 1e9, 1),
        "embedded_per_second": round(len(images) * _rate(embed, seconds, device), 1),
        "trained_per_second": round(len(images) * _rate(step, seconds, device), 1),
        "decoded_per_second": round(_rate(decode, seconds, device), 1),
    }


def _rate(work: Callable[[], object], seconds: float, device: Any) -> float:
    """How often work is done per second, after once to warm up."""
    import torch

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    wait()
    done, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        work()
        wait()
        done += 1
    return done / passed


def list_problems(found: dict[str, Any]) -> list[str]:
    """What keeps metrix from working well here, each with what to do; missing extras are no problem."""
    problems = []
    cache, processor = found["cache"], found["processor"]
    if not cache["writable"]:
        problems.append(f"the cache folder {cache['folder']} cannot be written; set METRIX_CACHE to another one")
    if cache["free_bytes"] < LEAST_FREE:
        problems.append(
            f"{cache['free_bytes'] / 1e9:.1f} GB are free in {cache['folder']}; metrix cache prune frees some"
        )
    try:
        free = shutil.disk_usage(Path.cwd()).free
        if free < LEAST_FREE:
            problems.append(f"{free / 1e9:.1f} GB are free in this folder, where runs are written; make room")
    except OSError as error:
        problems.append(f"this folder cannot be looked at: {describe_failure(error)}; go to another one")
    limit = processor["core_limit"] or processor["usable_cores"]
    if limit and processor["threads"] > max(1, round(limit)):
        problems.append(
            f"torch uses {processor['threads']} threads on {limit:g} cores, which slows it down; set "
            f"OMP_NUM_THREADS={max(1, int(limit))}"
        )
    bfloat16 = found.get("bfloat16")
    if bfloat16 is not None and not bfloat16["runs"] and bfloat16["announced"]:
        then = (
            "metrix train --precision bf16 leaves AMX out by itself; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 for others"
            if bfloat16["runs_without_amx"]
            else "train with --precision 32-true"
        )
        problems.append(
            f"the processor announces {' and '.join(bfloat16['announced'])}, but a step in bfloat16 ends the process; "
            f"{then}"
        )
    return problems


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except OSError:
        return ""
