"""Measure time and memory of alternatives in one run, because machines are noisy."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable
from typing import Any


def together(
    runs: dict[str, Callable[[], Any]],
    seconds: float = 3.0,
    least: int = 5,
    warm: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the shortest time of each in seconds; they take turns, and other load can only lengthen a time."""
    for run in runs.values():
        for _ in range(warm):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(next(iter(times.values()))) < least:
        for name, run in runs.items():
            begin = clock()
            run()
            times[name].append(clock() - begin)
    return {name: min(found) for name, found in times.items()}


def extra_memory(prepare: Callable[[], Callable[[], Any]]) -> int:
    """Measure in a new process the peak memory of `prepare()()` in bytes, less the memory after `prepare()`."""
    return measured_alone(prepare)[1]


def measured_alone(prepare: Callable[[], Callable[[], Any]]) -> tuple[float, int]:
    """Measure in a new process the processor time of `prepare()()` in seconds, and its extra peak memory."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_alone, args=(prepare, sender))
    process.start()
    sender.close()
    try:
        seconds, memory = receiver.recv()
        return float(seconds), int(memory)
    except EOFError as error:
        raise RuntimeError(f"the measured process ended with exit code {process.exitcode}") from error
    finally:
        process.join()


def _alone(prepare: Callable[[], Callable[[], Any]], sender: Any) -> None:
    run = prepare()
    times: list[float] = []

    def timed() -> None:
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)

    memory = _peak_of(timed)
    while sum(times) < 3.0 and len(times) < 10:
        timed()
    sender.send((min(times), memory))


def _peak_of(run: Callable[[], Any]) -> int:
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    before = memory_now("VmRSS")
    run()
    return memory_now("VmHWM") - before


def memory_now(field: str) -> int:
    """Return the bytes of this process that /proc/self/status has under a name, as VmHWM for the peak."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024


def at_most(name: str, value: float, limit: float, unit: str = "×", note: str = "") -> dict[str, Any]:
    return _row(name, value, f"≤ {limit:g}", value <= limit, unit, note)


def at_least(name: str, value: float, limit: float, unit: str = "×", note: str = "") -> dict[str, Any]:
    return _row(name, value, f"≥ {limit:g}", value >= limit, unit, note)


def without_target(name: str, value: float, unit: str, note: str = "") -> dict[str, Any]:
    return _row(name, value, None, None, unit, note)


def _row(name: str, value: float, target: str | None, reached: bool | None, unit: str, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "reached": reached, "note": note}
