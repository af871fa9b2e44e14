"""Communication of two processes in a step, in bytes and in time: `python -m benchmarks distributed`.

Bytes are counted in calls of torch.distributed and compared with the cost model of docs/scale.md: when tensors of b
bytes are gathered, each process receives (W-1)·b bytes, and as many again in the backward pass.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measuring import at_most

N, DIM, CLASSES = 256, 512, 64  # examples of each process
MIXED = {
    "clean": {},
    "embed": {"mixup": "embed"},
    "feature, local": {"mixup": "feature"},
    "feature, global": {"mixup": "feature"},
}
CHANNELS, SIDE = 128, 4


def run() -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_process, args=(rank, Path(folder), sender)) for rank in range(2)]
        for process in processes:
            process.start()
        found = receiver.recv()
        for process in processes:
            process.join()
    embeddings, features = N * DIM * 4, N * CHANNELS * SIDE * SIDE * 4
    model = {"clean": embeddings, "embed": embeddings, "feature, local": embeddings}
    model["feature, global"] = embeddings + features
    rows = []
    for name, (received, seconds, whole) in found.items():
        expected = 2 * model[name]  # forward and backward, of the one other process
        note = f"{received / 1e6:.2f} MB received by each process, {expected / 1e6:.2f} MB by the cost model"
        rows.append(at_most(f"bytes of a step, {name}: counted / cost model", received / expected, 1.02, note=note))
        note = f"{1000 * seconds:.0f} ms for each half, {1000 * whole:.0f} ms for the whole batch, on a shared machine"
        rows.append(at_most(f"time of loss and gradient, {name}: half / whole", seconds / whole, 1.5, note=note))
    return rows


def _process(rank: int, folder: Path, sender: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=2)
    counted = _count_bytes(dist)
    found = {}
    for name in MIXED:
        together, alone = _step(name, rank, dist), _step(name, None, dist)
        together()
        counted[0] = 0
        together()
        received = counted[0]
        times: dict[str, list[float]] = {"together": [], "alone": []}
        for _ in range(5):
            for what, step in (("together", together), ("alone", alone)):
                dist.barrier()
                begin = time.perf_counter()
                step()
                times[what].append(time.perf_counter() - begin)
        found[name] = received, min(times["together"]), min(times["alone"])
    if rank == 0:
        sender.send(found)
    dist.barrier()


def _count_bytes(dist: Any) -> list[int]:
    """Count the bytes received from other processes from now on."""
    total = [0]
    gather, scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor

    def all_gather_into_tensor(out: Any, own: Any, **more: Any) -> Any:
        total[0] += (out.numel() - own.numel()) * out.element_size()
        return gather(out, own, **more)

    def reduce_scatter_tensor(out: Any, whole: Any, **more: Any) -> Any:
        total[0] += (whole.numel() - out.numel()) * out.element_size()
        return scatter(out, whole, **more)

    dist.all_gather_into_tensor, dist.reduce_scatter_tensor = all_gather_into_tensor, reduce_scatter_tensor
    return total


def _step(name: str, rank: int | None, dist: Any) -> Any:
    """Prepare a step: loss and gradient of this rank's half of the batch, or of the whole batch if `rank` is None."""
    import torch

    from metrix import Metrix, PoolLinear, losses
    from metrix.core.objective import Clean

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = PoolLinear(CHANNELS, DIM, "avg+max")

        def features(self, x: Any) -> Any:
            return x

    torch.manual_seed(0)
    model, loss = Model(), losses.MultiSimilarity()
    maps, labels = torch.randn(2 * N, CHANNELS, SIDE, SIDE), torch.arange(2 * N) * CLASSES // (2 * N)
    more = {"hard_negatives": 3, "generator": torch.Generator().manual_seed(0)}
    objective = Metrix(loss, **MIXED[name], **more) if MIXED[name] else Clean(loss)
    if rank is not None:
        objective.across_ranks(mix="global" if "global" in name else "local")
        own = slice(rank * N, (rank + 1) * N)
        maps, labels = maps[own], labels[own]
    maps.requires_grad_()

    def step() -> None:
        model.zero_grad()
        maps.grad = None
        objective.step(model, maps, labels).loss.backward()

    return step
