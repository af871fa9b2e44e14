"""Time and memory of the measures at the size of SOP's test set: 60,502 embeddings of 512 dimensions.

    python -m benchmarks.evaluation                 # everything, about a quarter of an hour on two cores
    python -m benchmarks.evaluation --scale 0.1     # a tenth of the examples

Each figure is a ratio or a peak within one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

DIM = 512
TEST, TEST_CLASSES = 60_502, 11_316
TRAIN, TRAIN_CLASSES = 60_000, 11_318
EPOCHS = 10  # of mixed embeddings: 600,000
KS = (1, 10, 100, 1000)
GIGABYTE = 1e9


def run(scale: float = 1.0) -> list[dict[str, Any]]:
    """Measure all figures; `scale` multiplies the number of examples."""
    warm_up()
    return [
        *search_speed(scale),
        growth(scale),
        utilization_speed(scale),
        *(memory(measure, scale) for measure in ("recall_at_k", "retrieval", "utilization")),
    ]


def examples(count: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw unit embeddings around class centres, about as difficult as SOP: Recall@1 near 80 %."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % classes)
    centres = rng.standard_normal((classes, DIM), dtype=np.float32)
    x = np.empty((count, DIM), dtype=np.float32)
    for start in range(0, count, 4096):  # in parts, so that drawing them does not determine the peak memory
        part = slice(start, start + 4096)
        chosen = labels[part]
        noise = rng.standard_normal((len(chosen), DIM), dtype=np.float32)
        x[part] = centres[chosen] + 2.0 * noise
        x[part] /= np.linalg.norm(x[part], axis=1, keepdims=True)
    return x, labels


def test_set(scale: float) -> tuple[np.ndarray, np.ndarray]:
    return examples(round(TEST * scale), max(2, round(TEST_CLASSES * scale)), seed=0)


def train_set(scale: float) -> tuple[np.ndarray, np.ndarray]:
    return examples(round(TRAIN * scale), max(2, round(TRAIN_CLASSES * scale)), seed=1)


def warm_up() -> None:
    """Compile and import everything before time is measured."""
    from metrix import evaluate

    x, labels = examples(300, 60, seed=2)
    evaluate.recall_at_k(x, labels)
    evaluate.retrieval(x, labels)
    evaluate.utilization(x, x, evaluate.mixed_embeddings(x, labels, epochs=1))


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def row(name: str, value: float, unit: str, target: str, reached: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "reached": reached}


def search_speed(scale: float) -> list[dict[str, Any]]:
    """Compare Recall@K with a bare faiss search, and P@1 + MAP@R with pytorch-metric-learning."""
    import faiss
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    from metrix import evaluate

    x, labels = test_set(scale)
    index = faiss.IndexFlatIP(DIM)
    index.add(x)
    bare, (_, found) = seconds(lambda: index.search(x, min(max(KS), len(x))))
    ours, recall = seconds(lambda: evaluate.recall_at_k(x, labels, KS))
    del found

    calculator = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
    )
    theirs, accuracy = seconds(lambda: calculator.get_accuracy(torch.from_numpy(x), torch.from_numpy(labels)))
    same, result = seconds(lambda: evaluate.retrieval(x, labels, ks=(1,), resamples=0))
    for mine, other in (
        (recall[1], accuracy["precision_at_1"]),
        (result.map_at_r, accuracy["mean_average_precision_at_r"]),
    ):
        assert abs(mine - other) < 1e-3, f"the measures disagree: {mine} and {other}"
    size = f"{len(x):,} x {DIM}"
    return [
        row(
            f"Recall@{KS} on {size} / bare faiss search",
            ours / bare,
            "x time",
            "<= 1.15",
            ours <= 1.15 * bare,
        ),
        row(
            f"P@1 + MAP@R on {size}: pytorch-metric-learning / metrix",
            theirs / same,
            "x time",
            ">= 1",
            theirs >= same,
        ),
    ]


def growth(scale: float) -> dict[str, Any]:
    """Compare the time of exact search for six times the items; the matrix products grow 36-fold."""
    from metrix import evaluate

    small, large = (examples(round(n * scale), round(n * scale / 5), seed=3) for n in (10_000, 60_000))
    short = min(seconds(lambda: evaluate.recall_at_k(*small, KS))[0] for _ in range(3))
    long, _ = seconds(lambda: evaluate.recall_at_k(*large, KS))
    name = f"Recall@{KS}: {len(large[0]):,} / {len(small[0]):,} items"
    return row(name, long / short, "x time", "<= 40", long <= 40 * short)


def utilization_speed(scale: float) -> dict[str, Any]:
    """Compare utilization, drawing mixed embeddings included, with its matrix products alone.

    The products of a block are timed right after the block, so that other load on the machine affects both.
    """
    from metrix import evaluate

    # Drawing and normalising an example is paid once for all queries: fewer examples keep that share, fewer
    # queries would not.
    (queries, _), (train, labels) = examples(60_000, TEST_CLASSES, seed=0), train_set(scale)
    S = np.empty((4096, 4096), dtype=np.float32)
    bare = 0.0

    def products(block: np.ndarray) -> float:
        start = time.perf_counter()
        for j in range(0, len(block), 4096):
            some = block[j : j + 4096]
            for i in range(0, len(queries), 4096):
                chosen = queries[i : i + 4096]
                out = S.reshape(-1)[: len(chosen) * len(some)].reshape(len(chosen), len(some))
                np.matmul(chosen, some.T, out=out)
        return time.perf_counter() - start

    def stream() -> Iterator[np.ndarray]:
        nonlocal bare
        for block in evaluate.mixed_embeddings(train, labels, EPOCHS, pairs="anc-neg"):
            yield block
            bare += products(block)

    bare += products(train)
    before = bare
    total, _ = seconds(lambda: evaluate.utilization(queries, train, stream()))
    ours = total - (bare - before)
    name = f"utilization of {len(queries):,} by {len(train):,} + {EPOCHS * len(train):,} mixed / products"
    return row(name, ours / bare, "x time", "<= 1.3", ours <= 1.3 * bare)


def memory(measure: str, scale: float) -> dict[str, Any]:
    """Measure the peak memory of a new process, less what it holds with the embeddings alone."""
    command = [sys.executable, "-m", "benchmarks.evaluation", "--peak", measure, "--scale", str(scale)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    extra = json.loads(output)["extra_bytes"] / GIGABYTE
    return row(f"{measure}: memory over the embeddings", extra, "GB", "<= 1", extra <= 1)


def peak(measure: str, scale: float) -> int:
    """Measure the bytes that this process needs for a measure in addition to its input."""
    from metrix import evaluate

    warm_up()
    x, labels = test_set(scale)
    train, train_labels = train_set(scale)
    held = status("VmRSS")
    if measure == "recall_at_k":
        evaluate.recall_at_k(x, labels, KS)
    elif measure == "retrieval":
        evaluate.retrieval(x, labels, KS)
    else:
        # One epoch of mixed embeddings is a stream of the same blocks as ten.
        evaluate.utilization(x, train, evaluate.mixed_embeddings(train, train_labels, epochs=1))
    return status("VmHWM") - held


def status(field: str) -> int:
    """Read VmRSS, the resident memory, or VmHWM, its peak, in bytes (Linux)."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def main() -> None:
    """Print the figures as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of examples")
    parser.add_argument("--peak", choices=("recall_at_k", "retrieval", "utilization"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print(json.dumps({"extra_bytes": peak(arguments.peak, arguments.scale)}))
        return
    rows = run(arguments.scale)
    width = max(len(one["name"]) for one in rows)
    for one in rows:
        mark = "reached" if one["reached"] else "MISSED"
        print(f"{one['name']:<{width}}  {one['value']:8.3f} {one['unit']:<7} {one['target']:>8}  {mark}")


if __name__ == "__main__":
    main()
