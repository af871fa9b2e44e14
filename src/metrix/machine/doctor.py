"""What this machine has, what it can do and how fast, and what is missing: `metrix doctor`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metrix.files import describe_failure
from metrix.machine.bfloat16 import VARIABLE, WITHOUT_AMX, runs_bfloat16
from metrix.machine.caches import summarise_cache
from metrix.machine.devices import choose_device, describe_devices, wait_for
from metrix.machine.environment import describe_environment, describe_memory, describe_processor, list_extras
from metrix.machine.hub import describe_weights, network_answers

LEAST_FREE = 2 * 10**9  # bytes; checkpoints and caches need some room


def describe_machine(*, quick: bool = False, told: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Everything about this machine that matters to metrix; plain values, ready for JSON.

    Args:
        quick: leave out what takes seconds: speed, bfloat16 and whether the model hub answers
        told: called with what is being looked at
    """
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


def try_bfloat16(features: list[str]) -> dict[str, Any]:
    """Whether training in bfloat16 runs, as it is or without AMX, beside what the processor announces."""
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
    import timm
    import torch
    from PIL import Image

    device = choose_device()
    matrix = torch.randn(1024, 1024, device=device)
    with torch.random.fork_rng(devices=[]):
        network = timm.create_model("resnet18", num_classes=128).to(device).eval()
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
        image = Image.open(photo)
        image.draft("RGB", (256, 256))
        image.convert("RGB").resize((341, 256))

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
    work()
    wait_for(device)
    done, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        work()
        wait_for(device)
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
