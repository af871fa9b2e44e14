"""One process of several: computes its share of every case, and saves what all have together.

python core_worker.py RANK WORLD RENDEZVOUS_FILE OUTPUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2]))
from metrix.core.distributed.batch_norm import normalise_globally
from tests.distributed.cases import batch, cases, gradients, made, parts_for


def main(rank: int, world: int, rendezvous: str, output: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    groups = {size: dist.new_group(list(range(size))) for size in range(2, world + 1) if size in (2, 4)}
    results: dict[str, torch.Tensor] = {}
    for size, group in groups.items():
        if rank >= size:
            continue
        for case in cases():
            for name, sizes in parts_for(size):
                if name == case.labels:
                    for key, value in in_parts(case, sizes, rank, group).items():
                        results[f"{case}|{sizes}|{key}"] = value
    if rank == 0:
        save_file(results, output)
    dist.barrier()
    dist.destroy_process_group()


def in_parts(case, sizes, rank, group):
    network, objective = made(case)
    objective.across_ranks(group, mix=case.mix)
    normalise_globally(network, objective.ranks)
    inputs, labels = batch(case)
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    out = objective.step(network, inputs[own], labels[own])
    found = gradients(network, objective, [out.loss, out.clean, out.mixed])
    found["left out"] = torch.tensor([out.left_out_clean, out.left_out_mixed])
    found |= {f"buffer {name}": b for name, b in network.named_buffers() if b.is_floating_point()}
    for key, value in found.items():
        if not key.startswith(("value", "left", "buffer")):  # as DistributedDataParallel does
            dist.all_reduce(value, group=group)
            value /= len(sizes)
    return {key: value.clone() for key, value in found.items()}


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*anchors is usable.*|.*mixed loss has no gradient.*")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
