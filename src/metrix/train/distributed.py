"""Training with several processes: starting them, exchanging numbers, and sharding weights (FSDP).

Under torchrun there are as many processes as torchrun started; otherwise `devices` of them are started on each of
`nodes` machines. Only rank 0 writes the run's folder and talks to the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metrix.core.distributed.ranks import ALONE, Division, Ranks
from metrix.errors import InvalidInput, MetrixError, unknown_choice
from metrix.files import cache_folder, lock
from metrix.machine.devices import choose_device
from metrix.train.sections import Training

# Time after which a process that waits for the others gives up. A process that dies is noticed at once, because its
# connections close.
WAIT = timedelta(minutes=15)
# parts of the messages of failed exchanges
_LOST = ("closed by peer", "reset by peer", "broken pipe", "timed out", "connection refused", "remote process")


StrategyName = Literal["auto", "ddp", "fsdp"]


class LostProcess(MetrixError):  # noqa: N818 - named after what happened
    """Another process of the run was killed or failed, so this one had to stop."""

    exit_code = 3

    def __init__(self, run: Path | None, rank: int) -> None:
        begun = run is not None and (run / "checkpoints" / "last.safetensors").exists()
        hint = f"resume with --resume {run}" if begun else "start again"
        super().__init__(f"rank {rank} lost another process of this run, which was killed or failed; {hint}")


@dataclass(frozen=True)
class Launch:
    """How many processes train, and how they share the work; None takes torchrun's number, or 1 without torchrun."""

    devices: int | None = None  # processes on each machine
    nodes: int | None = None
    strategy: StrategyName = "auto"

    def sizes(self) -> tuple[int, int]:
        """Processes on each machine, and machines; torchrun's numbers if it started this process."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return self.devices or 1, self.nodes or 1
        world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
        started = local, max(1, world // local)
        for name, asked, found in zip(("devices", "nodes"), (self.devices, self.nodes), started, strict=True):
            if asked is not None and asked != found:
                raise InvalidInput(f"{name}: expected {found}, as torchrun started, got {asked}; leave out --{name}")
        return started


def parse_strategy(name: str) -> StrategyName:
    """The strategy with this name; an unknown name raises `ChoiceError`."""
    for known in get_args(StrategyName):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise unknown_choice("strategy", name, get_args(StrategyName))


def is_first() -> bool:
    """Whether this is rank 0, by the environment: valid before a process group exists and after it is gone."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


class Team:
    """The processes that train together, seen from one of them; with a single process every exchange is a no-op.

    rank, size  the number of this process, and how many there are
    sharded     whether each process holds only a shard of the weights and of the optimizer's state (FSDP)
    """

    def __init__(self, fabric: Any, sharded: bool = False) -> None:
        self.fabric, self.sharded = fabric, sharded
        self.rank, self.size = int(fabric.global_rank), int(fabric.world_size)
        self.ranks: Ranks = Ranks.join() if self.size > 1 else ALONE

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the process that writes the run's folder and talks to the terminal."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        device: torch.device = self.fabric.device
        return device

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor of the host on the device of this process; a GPU copies it while the host goes on."""
        on_gpu = self.device.type == "cuda"
        if on_gpu and torch.cuda.is_available():
            tensor = tensor.pin_memory()  # itself, if a loader has pinned it
        return tensor.to(self.device, non_blocking=on_gpu)

    def max(self, number: int) -> int:
        """The largest of the processes' numbers."""
        return number if self.size == 1 else int(self.fabric.all_reduce(number, reduce_op="max"))

    def max_tensor(self, tensor: Tensor) -> Tensor:
        """The largest of the processes' tensors, element by element, on their device; the host does not wait."""
        if self.size > 1:  # not by Fabric, which waits for all processes first
            torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
        return tensor

    def sum(self, numbers: list[int]) -> list[int]:
        """Numbers summed over the processes, position by position."""
        values: Tensor = self.fabric.all_reduce(torch.tensor(numbers, device=self.device), reduce_op="sum")
        return [int(value) for value in values.tolist()]

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """A tensor summed over the processes, on its own device."""
        if self.size == 1:
            return tensor
        total: Tensor = self.fabric.all_reduce(tensor.to(self.device), reduce_op="sum")
        return total.to(tensor.device)

    def broadcast(self, text: str) -> str:
        """The text of rank 0."""
        return str(self.fabric.broadcast(text))

    def gather_rows(self, own: Tensor, counts: list[int]) -> Tensor:
        """Rows of all processes in the order of ranks, on the CPU; `counts` says how many each process has."""
        if self.size == 1:
            return own
        return Division(tuple(counts), self.ranks).gather(own.to(self.device)).cpu()

    def wait(self) -> None:
        """Return once every process has called this."""
        self.fabric.barrier()

    @contextmanager
    def one_at_a_time(self, what: str) -> Iterator[None]:
        """Let one process of a machine fill the cache folder while the others wait, then find the files there."""
        if self.size == 1:
            yield
            return
        with ExitStack() as stack:
            with suppress(OSError):  # a cache folder that cannot be written has nothing to wait for
                stack.enter_context(lock(cache_folder() / f"{what}.lock"))
            yield

    @contextmanager
    def evaluating(self, module: nn.Module) -> Iterator[None]:
        """Put a module into evaluation mode, without gradients, its sharded weights gathered for as long."""
        module.eval()
        with torch.no_grad(), self.fabric.autocast(), gather_weights(module, self.sharded):
            yield


def launch(settings: Training, how: Launch) -> Team:
    """Start the processes of a run and join them; every one of them runs the code that follows.

    Args:
        settings: device and precision
        how: the number of processes and the strategy

    Raises:
        InvalidInput: the device, precision or number of processes is not available on this machine
    """
    from lightning_fabric import Fabric

    device = choose_device(settings.device)
    if settings.precision == "16-mixed" and device.type == "cpu":
        raise InvalidInput("precision: expected '32-true' or 'bf16-mixed' on a CPU, got '16-mixed', which needs a GPU")
    devices, nodes = how.sizes()
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise InvalidInput(
            f"devices: expected at most {torch.cuda.device_count()}, the GPUs of this machine, got {devices}"
        )
    alone, sharded = devices * nodes == 1, how.strategy == "fsdp"
    if device.index is not None and not alone:
        raise InvalidInput(f"device: expected 'cuda' with several processes, one for each GPU, got '{device}'")
    if alone and sharded:
        raise InvalidInput(
            "strategy='fsdp': expected several processes to shard over, got 1; give --devices, or use torchrun"
        )
    fabric = Fabric(
        accelerator=device.type,
        devices=devices if device.index is None else [device.index],
        num_nodes=nodes,
        precision="32-true" if settings.precision == "auto" else settings.precision,
        strategy="auto" if alone else _strategy(how, settings),
    )
    with _silence_lightning():
        fabric.launch()
    return Team(fabric, sharded)


def _strategy(how: Launch, settings: Training) -> Any:
    from lightning_fabric.strategies.ddp import DDPStrategy

    if how.strategy == "fsdp":
        return sharded_strategy(WAIT)
    # in the first epochs the backbone may have no gradients
    return DDPStrategy(timeout=WAIT, find_unused_parameters=settings.warmup_epochs > 0)


@contextmanager
def _silence_lightning() -> Iterator[None]:
    """Suppress the lines that Fabric logs about ranks."""
    import logging

    loggers = [logging.getLogger(name) for name in ("lightning_fabric", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def report_lost_process(run: Path | None, team: Team) -> Iterator[None]:
    """Raise `LostProcess` in place of the error of an exchange that failed because another process ended."""
    try:
        yield
    except RuntimeError as error:
        if team.size > 1 and any(sign in str(error).lower() for sign in _LOST):
            raise LostProcess(run, team.rank) from error
        raise


# FSDP: each process holds one shard of weights, gradients and optimizer state. The whole network is one FSDP unit:
# its weights are gathered at the start of a step and freed at its end, so that no exchange happens within a step.
# Mixed examples are embedded in chunks whose number differs between processes: an exchange there would deadlock.


def sharded_strategy(timeout: timedelta) -> Any:
    """Fabric's strategy with FSDP over all processes."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    class Sharded(ModelParallelStrategy):
        def setup_environment(self) -> None:
            self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
            super().setup_environment()

    def shard(module: nn.Module, mesh: Any) -> nn.Module:
        for parameter in module.parameters():
            parameter.data = parameter.data.contiguous()  # not channels last
        fully_shard(module, mesh=mesh["data_parallel"])
        return module

    return Sharded(shard, timeout=timeout)


def unshard(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, gathered from their shards where they are sharded; every process must call this."""
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for name, tensor in tensors.items()
    }


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's shard of a whole tensor if `like` is sharded, else the tensor; the reverse of `unshard`."""
    if not hasattr(like, "placements") or hasattr(tensor, "placements") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    return distribute_tensor(tensor.to(like.device), sharded.device_mesh, sharded.placements)


def load_whole(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load whole tensors into a module whose own may be sharded."""
    own = module.state_dict()
    module.load_state_dict({name: shard_like(tensor, own.get(name, tensor)) for name, tensor in tensors.items()})


@contextmanager
def gather_weights(module: nn.Module, sharded: bool) -> Iterator[None]:
    """Hold the whole weights of a sharded module in each process, to read them."""
    if not sharded:
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    units = [unit for unit in module.modules() if isinstance(unit, FSDPModule)]
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
