"""One process of several that train the LightningModule of docs/own-loop.md for a step.

python lightning_worker.py RANK WORLD PORT OUTPUT
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def recipe() -> Any:
    """The class MetrixModule, as the page has it."""
    text = (ROOT / "docs" / "own-loop.md").read_text("utf-8")
    (block,) = re.findall(r"^```python\n(import lightning\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {}
    exec(f"import torch\n{block}", namespace)
    return namespace["MetrixModule"]


def train(rank: int, world: int, output: Path) -> None:
    """Train on rows of a batch that is the same for any number of processes, and save the weights."""
    import lightning
    import torch
    from safetensors.torch import save_file
    from torch import nn

    import metrix
    from metrix import Metrix, losses

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8)).double()
    model = metrix.split(network, at="1")
    images, labels = torch.randn(16, 6, dtype=torch.float64), torch.arange(4).repeat_interleave(4)
    generator = torch.Generator().manual_seed(3)
    objective = Metrix(losses.ProxyAnchor(4, 8), mixup="embed", generator=generator).double()
    module = recipe()(model, objective)
    own = slice(rank * 16 // world, (rank + 1) * 16 // world)
    examples = torch.utils.data.TensorDataset(images[own], labels[own])
    loader = torch.utils.data.DataLoader(examples, batch_size=16 // world)
    trainer = lightning.Trainer(
        max_steps=3,
        max_epochs=3,
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    if rank == 0:
        save_file({name: one.contiguous() for name, one in module.state_dict().items()}, output)


if __name__ == "__main__":
    rank, world, port = sys.argv[1:4]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0"}
    os.environ |= {**environment, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "GLOO_SOCKET_IFNAME": "lo"}
    warnings.simplefilter("ignore")
    train(int(rank), int(world), Path(sys.argv[4]))
