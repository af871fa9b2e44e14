"""Long work: `make soak`, or `make soak ARGS="--requests 500 --steps 1000"`.

The service answers 10,000 bounded requests of a few clients on this machine, 1 % of which are garbage; meanwhile some
clients send their upload or their headers a byte at a time, some send too much, some ask for a file that hangs, and some
send filters that are expensive to read. No answer may be a failure of the server (500), every sound request must be
answered rightly (or given up with 429 or 504, which is counted), and neither memory nor open files may grow. Then a run
trains for 20,000 steps, without growing either.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from faults.hostile_clients import (
    GIVEN_UP,
    LARGEST,
    PATIENCE,
    Answers,
    ask_for_hanging_file,
    form,
    leave_headers_unfinished,
    read_status,
    send_hostile_filters,
    send_slowly,
    send_too_much,
)
from faults.material import SETTINGS, Material, build, draw_photo, encode

CLIENTS = 4
GARBAGE = 0.01
FLAT = 0.05  # growth of memory that is allowed, relative
FILES = 8  # open files that are allowed on top
WARM = 0.2  # share of the work after which memory is looked at first: allocators and caches settle


@dataclass
class Samples:
    """Memory and open files of a process, while it works."""

    process: int
    memory: list[int] = field(default_factory=list)  # bytes
    files: list[int] = field(default_factory=list)

    def take(self) -> None:
        """Look at the process now."""
        pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE"))
        self.files.append(len(os.listdir(f"/proc/{self.process}/fd")))

    def growth(self) -> tuple[float, int, int, int]:
        """Relative growth of memory; memory before and after; growth of the number of open files."""
        start, tenth = int(WARM * len(self.memory)), max(1, len(self.memory) // 10)
        before, after = (statistics.median(x) for x in (self.memory[start : start + tenth], self.memory[-tenth:]))
        files = int(self.files[-1] - statistics.median(self.files[start : start + tenth]))  # when all is done
        return after / before - 1, int(before), int(after), files

    def describe(self, allowed: float = FLAT) -> tuple[str, list[str]]:
        """A line on the growth, and what is wrong with it."""
        grown, before, after, files = self.growth()
        line = f"memory {before / 2**20:.1f} to {after / 2**20:.1f} MB ({100 * grown:+.2f} %), open files {files:+d}"
        wrong = [f"memory grew by {100 * grown:.1f} %"] if grown > allowed else []
        return line, wrong + ([f"{files} more open files"] if files > FILES else [])


class Client:
    """One client with a connection that it keeps."""

    def __init__(self, port: int, ids: list[str], dim: int, answers: Answers, seed: int) -> None:
        self.port, self.ids, self.dim, self.answers, self.rng = port, ids, dim, answers, random.Random(seed)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.photo = encode(draw_photo(seed), "JPEG")

    def ask(self) -> None:
        """Send one request, sound or not, and look at the answer."""
        if self.rng.random() < GARBAGE:
            return self._send_garbage()
        k = self.rng.randrange(1, len(self.ids))
        choice = self.rng.random()
        if choice < 0.5:
            one = self.rng.choice(self.ids).replace(" ", "%20")
            self._expect("by id", "GET", f"/search?id={one}&k={k}", neighbours=k)
        elif choice < 0.7:
            vector = np.random.default_rng(self.rng.randrange(2**32)).standard_normal(self.dim).tolist()
            body, headers = json.dumps({"vector": vector}).encode(), {"Content-Type": "application/json"}
            self._expect("by vector", "POST", f"/search?k={k}", body, headers, neighbours=k)
        elif choice < 0.95:
            body, headers = form(self.photo)
            self._expect("by image", "POST", f"/search?k={k}", body, headers, neighbours=k)
        else:
            one = self.rng.choice(self.ids).replace(" ", "%20")
            path = self.rng.choice((f"/items/{one}", f"/image/{one}?size=32", "/info", "/metrics", "/livez", "/readyz"))
            self._expect("other", "GET", path)

    def _request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        try:
            self.connection.request(method, path, body, headers)
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return 0, b""

    def _expect(
        self,
        kind: str,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        neighbours: int | None = None,
    ) -> None:
        began = time.perf_counter()
        status, content = self._request(method, path, body, headers or {})
        seconds, wrong = time.perf_counter() - began, ""
        if status != 200 and status not in GIVEN_UP:
            wrong = f"{kind}: {method} {path}: {status} {content[:200]!r}"
        elif status == 200 and neighbours is not None and len(json.loads(content)["neighbours"]) != neighbours:
            wrong = f"{kind}: {method} {path}: expected {neighbours} neighbours, got {content[:200]!r}"
        self.answers.note(kind, status, seconds, wrong)

    def _send_garbage(self) -> None:
        rng, as_json = self.rng, {"Content-Type": "application/json"}
        bodies: tuple[Callable[[], tuple[int, bytes]], ...] = (
            lambda: self._request("POST", "/search", rng.randbytes(200), as_json),
            lambda: self._request("POST", "/search", b'{"vector": [1e999, null]}', as_json),
            lambda: self._request("POST", "/search", json.dumps({"vector": [0.5] * 100_000}).encode(), as_json),
            lambda: self._request("POST", "/search", b'{"id": ' + b"[" * 50_000, as_json),
            lambda: self._request("POST", "/search", *form(rng.randbytes(500))),
            lambda: self._request("POST", "/search", *form(self.photo[: len(self.photo) // 2])),
            lambda: self._request("POST", "/search", rng.randbytes(500), {"Content-Type": "multipart/form-data"}),
            lambda: self._request("GET", f"/search?id=%00%ff&k={rng.choice((-1, 0, 10**30))}", None, {}),
            lambda: self._request("GET", "/items/../../etc/passwd?vector=maybe", None, {}),
            lambda: self._request("DELETE", "/search" + "x" * 5000, None, {}),
            self._send_bytes,
        )
        status, _ = rng.choice(bodies)()
        self.answers.note("garbage", status, wrong="garbage: 200" if status == 200 else "")

    def _send_bytes(self) -> tuple[int, bytes]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as raw:
            raw.sendall(self.rng.randbytes(self.rng.randrange(1, 2000)) + b"\r\n\r\n")
            raw.shutdown(socket.SHUT_WR)
            return read_status(raw)


def soak_service(made: Material, requests: int, seed: int = 0, flat: float = FLAT) -> list[str]:
    """Send requests to a service and print what it did; returns what is wrong."""
    from metrix.search import Index

    opened = Index.open(made.index)
    ids, dim = [f"kind-{c}/{n}.jpg" for c in range(4) for n in range(3)], opened.dim
    opened.close()
    hanging = made.photos / ids[-1]
    kept = hanging.read_bytes()
    hanging.unlink()
    os.mkfifo(hanging)
    command = [sys.executable, "-m", "metrix", "serve", str(made.index), "--port", "0"]
    command += ["--max-upload", str(LARGEST), "--timeout", str(PATIENCE)]
    service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert service.stderr is not None
    try:
        lines = [service.stderr.readline(), service.stderr.readline()]
        found = re.search(r"http://127\.0\.0\.1:(\d+)", lines[1])
        if found is None:
            return [f"the service did not start: {''.join(lines)}{service.stderr.read()}"]
        port, answers, samples = int(found[1]), Answers(), Samples(service.pid)
        said: list[str] = []
        listener = threading.Thread(target=lambda: said.extend(service.stderr or ()), daemon=True)
        listener.start()
        began = time.monotonic()
        _send_all(port, ids, dim, answers, samples, requests, seed)
        seconds = time.monotonic() - began
        service.send_signal(signal.SIGINT)
        code = service.wait(60)
        listener.join(10)
    finally:
        service.kill()
        service.wait()
        service.stderr.close()
        hanging.unlink()
        hanging.write_bytes(kept)
    times = sorted(answers.seconds)
    line, wrong = samples.describe(flat)
    if code != 0:
        wrong.append(f"the service ended with {code}")
    if any("Traceback" in text for text in said):
        wrong.append("a traceback: " + "".join(said)[-1500:])
    print(
        f"service: {sum(answers.statuses.values()):,} requests in {seconds:.0f} s; sound ones: median "
        f"{1000 * statistics.median(times):.1f} ms, p99 {1000 * times[int(0.99 * len(times))]:.1f} ms; {line}"
    )
    print("  " + ", ".join(f"{name}: {count:,}" for name, count in sorted(answers.statuses.items())))
    return answers.wrong + wrong


def _send_all(
    port: int, ids: list[str], dim: int, answers: Answers, samples: Samples, requests: int, seed: int
) -> None:
    """Send the requests from several threads, with slow and oversized uploads among them, and watch the service."""
    left, lock = [requests], threading.Lock()

    def work(number: int) -> None:
        client = Client(port, ids[:-1], dim, answers, seed * CLIENTS + number)
        while True:
            with lock:
                if left[0] <= 0:
                    break
                left[0] -= 1
            client.ask()
        client.connection.close()

    others: list[threading.Thread] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    due, every = requests, max(1, requests // 100)
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.01)
        if left[0] <= due:
            samples.take()
            number = (requests - due) // every
            due -= every
            if number % 5 == 0:
                others.append(threading.Thread(target=send_slowly, args=(port, answers)))
                others[-1].start()
            if number % 5 == 1:
                others.append(threading.Thread(target=leave_headers_unfinished, args=(port, answers)))
                others[-1].start()
            if number % 5 == 2:
                others.append(threading.Thread(target=ask_for_hanging_file, args=(port, answers, ids[-1])))
                others[-1].start()
            if number % 5 == 3:
                rng = random.Random(seed + number)
                others.append(threading.Thread(target=send_hostile_filters, args=(port, answers, rng, ids[0])))
                others[-1].start()
            if number % 2 == 0:
                others.append(threading.Thread(target=send_too_much, args=(port, answers, number % 4 == 0)))
                others[-1].start()
    for thread in (*threads, *others):
        thread.join()
    time.sleep(0.5)
    samples.take()


def soak_training(folder: Path, steps: int, flat: float = FLAT) -> list[str]:
    """Train for many steps in this process and print what it took; returns what is wrong."""
    from metrix.train import Config, train
    from metrix.train.checkpoint import Progress
    from metrix.train.watching import Watcher

    samples, every = Samples(os.getpid()), max(1, steps // 100)

    class Sampler(Watcher):
        """Looks at this process every so many steps."""

        def step(self, progress: Progress, losses: list[float], images: int) -> None:
            if progress.step % every == 0:
                samples.take()

    values = {"max_steps": steps, "epochs": steps, "validate_every": steps, "checkpoint_steps": 500}
    more = {"memory": 100, "ema": 0.99, "mixup": ["embed"], "clip": 1.0, "batch_size": 12}
    began = time.monotonic()
    run = train(Config().with_values(SETTINGS | values | more), folder / "soaked", watcher=Sampler())
    line, wrong = samples.describe(flat)
    assert run.results is not None
    if (run.results["steps"], run.results["skipped_steps"]) != (steps, 0):
        wrong.append(f"expected {steps} steps, got {run.results['steps']}")
    print(f"training: {steps:,} steps in {time.monotonic() - began:.0f} s; {line}")
    return wrong


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="to the service; 0 for none (10,000)")
    parser.add_argument("--steps", type=int, default=20_000, help="of training; 0 for none (20,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    options = parser.parse_args(arguments)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="soak") as place:
        os.environ["METRIX_CACHE"] = str(Path(place) / "cache")
        made = build(Path(place) / "material")
        if options.requests:
            wrong += soak_service(made, options.requests, options.seed)
            sys.stdout.flush()
        if options.steps:
            wrong += soak_training(Path(place), options.steps)
    for one, times in Counter(wrong).most_common(20):
        print(f"wrong ({times} times): {one}")
    print(f"{len(wrong)} findings")
    return int(bool(wrong))
