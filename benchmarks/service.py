"""The service under load, and the first paint of the page: `make bench ARGS=service`.

The service is another process, and so is each browser; the clients here speak HTTP over bare sockets, so that they take
little of the processor that the service runs on.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import at_least, at_most

ITEMS, DIM = 100_000, 512
CLIENTS = 32
SECONDS = 8.0


def throughput() -> list[dict[str, Any]]:
    """Image queries on 100,000 x 512: one client that waits for each answer, and 32 of them, in turns."""
    with tempfile.TemporaryDirectory() as folder, served(write_index(Path(folder))) as address:
        request = image_request(address)
        asyncio.run(load(address, request, CLIENTS, 2.0))  # warm
        alone, many = [], []
        for _ in range(2):
            alone.append(asyncio.run(load(address, request, 1, SECONDS / 2)))
            many.append(asyncio.run(load(address, request, CLIENTS, SECONDS / 2)))
        metrics = urllib.request.urlopen(f"{address}/metrics").read().decode()
    rate_alone, rate = (max(len(times) / (SECONDS / 2) for times in found) for found in (alone, many))
    latencies = np.concatenate(many)
    middle, worst = (1000 * float(np.quantile(latencies, q)) for q in (0.5, 0.99))
    one = 1000 * float(np.median(np.concatenate(alone)))
    batches = re.search(r"metrix_batch_size_sum (\S+)", metrics), re.search(r"metrix_batch_size_count (\S+)", metrics)
    mean = float(batches[0][1]) / float(batches[1][1]) if batches[0] and batches[1] else float("nan")
    note = f"{rate:.0f}/s against {rate_alone:.0f}/s; {mean:.1f} queries in a batch"
    return [
        at_least(f"service, {CLIENTS} clients / one at a time", rate / rate_alone, 5.0, note=note),
        {
            "name": f"service, p99 with {CLIENTS} clients",
            "value": worst,
            "unit": "ms",
            "target": None,
            "reached": None,
            "note": f"median {middle:.0f} ms; alone {one:.0f} ms",
        },
    ]


def latency() -> list[dict[str, Any]]:
    """One client that keeps its connection: a probe, and a search by id in 100,000 x 512."""
    from metrix.search import Index

    with tempfile.TemporaryDirectory() as folder:
        place = write_index(Path(folder))
        with served(place) as address:
            probe, search = (ask_alone(address, path) for path in ("/livez", "/search?id=000005&k=10"))
        opened = Index.open(place)
        query = opened.store.read_vectors(np.array([5]))
        bare = [_time(lambda: opened.search(query, 10)) for _ in range(30)]
        opened.close()
    slowest = f"p99 {np.quantile(probe, 0.99):.1f} ms"
    note = f"p99 {np.quantile(search, 0.99):.1f} ms; the same search without HTTP {np.median(bare):.1f} ms"
    return [
        at_most("service, /livez on a kept connection, p50", float(np.median(probe)), 1.0, "ms", note=slowest),
        at_most("service, /search?id= on a kept connection, p50", float(np.median(search)), 5.0, "ms", note=note),
    ]


def ask_alone(address: str, path: str) -> np.ndarray[Any, Any]:
    """The milliseconds of answers that one client gets."""
    request = f"GET {path} HTTP/1.1\r\nHost: {address.removeprefix('http://')}\r\n\r\n".encode()
    asyncio.run(load(address, request, 1, 1.0))  # warm
    return 1000 * np.array(asyncio.run(load(address, request, 1, SECONDS / 2)))


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def first_paint() -> list[dict[str, Any]]:
    """From the click on a link to 100,000 points on the screen, in Chromium without a graphics card."""
    from metrix.search import Index, Items
    from tests.explore.browser import launch

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 200, ITEMS)
    vectors = rng.standard_normal((200, 64))[labels] + 0.5 * rng.standard_normal((ITEMS, 64))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "points.index"
        items = Items.read(vectors, [f"{n:06d}" for n in range(ITEMS)], {"label": [f"class {n}" for n in labels]})
        Index.create(place, iter([items])).close()
        times, frames = [], []
        with served(place) as address, launch() as browser:
            for _ in range(3):
                page = browser.new_page(viewport={"width": 1280, "height": 860})
                page.goto(address)
                page.wait_for_selector("body[data-drawn]", timeout=60_000)
                times.append(page.evaluate("performance.getEntriesByName('points drawn')[0].startTime") / 1000)
                frames.append(page.evaluate(_FRAMES))
                page.close()
    speed = 1 / max(frames[-1], 1e-9)
    note = f"first visit after the start {times[0]:.2f} s; drawn by the processor, {speed:.0f} frames/s while zooming"
    return [at_most(f"page, first paint of {ITEMS:,} points", min(times[1:]), 2.0, "s", note=note)]


# The mean time of a frame while the map is zoomed in and out.
_FRAMES = """async () => {
  const canvas = document.querySelector('#map');
  const frame = () => new Promise(requestAnimationFrame);
  const start = performance.now();
  for (let n = 0; n < 20; n += 1) {
    const box = canvas.getBoundingClientRect();
    const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true };
    canvas.dispatchEvent(new WheelEvent('wheel', { deltaY: n % 10 < 5 ? -40 : 40, ...at }));
    await frame();
  }
  return (performance.now() - start) / 20 / 1000;
}"""


def write_index(folder: Path) -> Path:
    """An index of 100,000 vectors that says that a small run made them."""
    from metrix.retrieve.encoder import fingerprint
    from metrix.runs.trained_model import open_run
    from metrix.search import Index, Items
    from metrix.train import train
    from metrix.train.presets import preset

    settings = {"data": "glyphs-mini", "max_steps": 2, "dim": DIM}
    model = open_run(train(preset("glyphs").with_values(settings), folder / "run").path)
    vectors = np.random.default_rng(0).standard_normal((ITEMS, DIM), dtype=np.float32)
    items = Items.read(vectors, [f"{n:06d}" for n in range(ITEMS)])
    Index.create(folder / "i.index", iter([items]), model=fingerprint(model, "glyphs-mini"), data="glyphs-mini").close()
    return folder / "i.index"


@contextlib.contextmanager
def served(index: Path) -> Iterator[str]:
    """The address of a process that serves an index."""
    command = [sys.executable, "-m", "metrix", "serve", str(index), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = None
        while address is None:
            line = process.stderr.readline()
            assert line, "the service ended"
            address = re.search(r"http://[\d.]+:\d+", line)
        threading.Thread(target=process.stderr.read, daemon=True).start()  # its log
        wait_until_ready(address[0])
        yield address[0]
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(address: str) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/readyz"):
            return
        time.sleep(0.1)
    raise RuntimeError("the service does not answer")


def image_request(address: str) -> bytes:
    """The bytes of a request with a glyph as PNG."""
    from PIL import Image

    from metrix.data.glyphs import load

    pixels: Any = load("glyphs-mini").pixels
    file = io.BytesIO()
    Image.fromarray(pixels[5]).save(file, "PNG")
    part = b'Content-Disposition: form-data; name="image"; filename="q.png"\r\nContent-Type: image/png\r\n\r\n'
    body = b"--x\r\n" + part + file.getvalue() + b"\r\n--x--\r\n"
    host = address.removeprefix("http://")
    head = (
        f"POST /search?k=10 HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(address: str, request: bytes, clients: int, seconds: float) -> list[float]:
    """The times of answers that clients get who each ask again as soon as they have one."""
    host, port = address.removeprefix("http://").split(":")
    end = time.perf_counter() + seconds
    times: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while (start := time.perf_counter()) < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            assert head.startswith(b"HTTP/1.1 200"), head
            assert length is not None
            await reader.readexactly(int(length[1]))
            times.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return times


PARTS = (latency, throughput, first_paint)
