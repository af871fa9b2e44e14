"""Everything that a run trains, built from its configuration: what a checkpoint saves and restores."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metrix.core.compute.micro_batches import MicroBatched
from metrix.core.distributed.batch_norm import normalise_globally
from metrix.core.objective import Objective
from metrix.core.relations import LabelSets
from metrix.data import Dataset, Part
from metrix.data.cache import SHORT_SIDE
from metrix.errors import InvalidInput
from metrix.machine.devices import get_random_state, set_random_state
from metrix.model import Embedder, ImageView
from metrix.train import checkpoint
from metrix.train.batches import ImageBatches, Report, build_batches, relate_classes
from metrix.train.build import build_embedder, build_loss, build_objective, build_optimizer
from metrix.train.checkpoint import Progress, add_prefix, select_prefix
from metrix.train.collapse import SeparationProbe
from metrix.train.compatible import Influence, build_influence
from metrix.train.config import Config
from metrix.train.distributed import Team, load_whole, unshard
from metrix.train.divide_and_conquer import Undivided, build_scheme
from metrix.train.ema import WeightAverage
from metrix.train.measuring import measure
from metrix.train.names import MIXUP_TYPES
from metrix.train.network import standardise_vectors, vector_length
from metrix.train.teacher import build_distillation
from metrix.train.whitening import whiten_head


class NetworkWithLoss(nn.Module):
    """Network and loss as one module, so that a step is one forward call and proxies train with the network."""

    def __init__(
        self, network: nn.Module, objective: Objective, probe: SeparationProbe, influence: Influence | None = None
    ) -> None:
        super().__init__()
        self.network, self.objective, self.probe, self.influence = network, objective, probe, influence

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Loss, clean loss and mixed loss of a batch: (3,), or (7,) with its separation; the first has a gradient.

        Everything that the host asks of a step is in this tensor, so that it asks once: see `StepGuard.read`.
        """
        out = self.objective.step(self.network, inputs, labels)
        loss = out.loss if self.influence is None else out.loss + self.influence(inputs, out.embeddings, labels)
        values = torch.stack([loss, out.clean.detach(), out.mixed.detach()])
        separation = self.probe(out.embeddings, labels)
        return values if separation is None else torch.cat([values, separation.to(values.dtype)])


@dataclass
class TrainingState:
    """The parts of a run that change while it trains, and where it stands.

    module      network and loss, as Fabric wraps them
    average     the moving average of weights, if the configuration asks for one
    generator   draws λ, pairs and mixup types
    scheme      decides which batch trains which part of the embedding
    influence   of an old model that the embeddings shall stay compatible with, if there is one
    """

    embedder: Embedder
    objective: Objective
    module: nn.Module
    optimizer: Any
    average: WeightAverage | None
    generator: torch.Generator
    batches: ImageBatches
    scheme: Undivided
    team: Team
    progress: Progress
    probe: SeparationProbe
    influence: Influence | None = None
    backbone_parameters: list[nn.Parameter] = field(init=False)  # those that are trained after the warm-up

    def __post_init__(self) -> None:
        self.backbone_parameters = [p for p in self.embedder.backbone.parameters() if p.requires_grad]

    def save(self, path: Path) -> None:
        """Write a checkpoint; every process must call this, because shards are gathered."""
        if self.team.first or self.team.sharded:
            tensors = self._tensors()
        if self.team.first:
            scaler = self._scaler
            self.progress.scaler = scaler.state_dict() if scaler is not None else None
            checkpoint.write(path, tensors, self.progress)

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint: the reverse of `save`."""
        tensors, self.progress = checkpoint.read(path)
        self.probe.steps = self.progress.step
        try:
            self._take_over(tensors)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidInput(
                f"{path} is damaged or of other settings: its tensors do not fit the run ({reason}); restore the file, "
                "or delete it and start the run from its beginning"
            ) from error

    def _take_over(self, tensors: dict[str, Tensor]) -> None:
        self.load_weights(tensors)
        load_whole(self.objective.loss, select_prefix("loss", tensors))
        if self.objective.memory is not None:
            self.objective.memory.load_state_dict(select_prefix("memory", tensors))
        checkpoint.load_optimizer(self.optimizer, select_prefix("optimizer", tensors))
        self.scheme.load(select_prefix("scheme", tensors))
        if self.influence is not None:
            self.influence.load(select_prefix("influence", tensors), self.team.device)
        restore_random(tensors, self.generator, self.team.device)
        if self._scaler is not None and self.progress.scaler:
            self._scaler.load_state_dict(self.progress.scaler)

    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Take over only the weights of a checkpoint, and their average."""
        load_whole(self.embedder, select_prefix("model", tensors))
        if self.average is not None:
            self.average.load(select_prefix("ema", tensors))

    def measure(self, part: str, *, averaged: bool = True, fit: bool = False) -> dict[str, Any]:
        """Measure the model on a part, with the averaged weights if there is an average and `averaged`."""
        weights = self.average.swap_in() if self.average is not None and averaged else nullcontext()
        with weights, self.team.evaluating(self.module):
            return measure(self.batches, part, self.team, fit)

    def measure_untrained(self, part: str) -> dict[str, Any]:
        """Measure a part before the first step; no random number of the training is drawn."""
        with torch.random.fork_rng(devices=[]):  # a loader with workers draws a seed
            return self.measure(part)

    def train_backbone(self, trained: bool) -> None:
        """Whether the parameters of the backbone have gradients: not while only the head and the proxies train."""
        for parameter in self.backbone_parameters:
            parameter.requires_grad_(trained)

    def embed_training_images(self) -> Tensor:
        """Embeddings of the training images under the test view, by the current weights."""
        with self.team.evaluating(self.module):
            return self.batches.embed(self.batches.part, self.team.device)

    @property
    def scales_gradients(self) -> bool:
        """Whether gradients are those of a multiple of the loss, which may overflow (16-mixed)."""
        return self._scaler is not None

    @property
    def _scaler(self) -> Any:
        return getattr(self.team.fabric.strategy.precision, "scaler", None)

    def _tensors(self) -> dict[str, Tensor]:
        """Every tensor that the rest of the run depends on."""
        memory, average = self.objective.memory, self.average
        return {
            **add_prefix("model", unshard(self.embedder.state_dict())),
            **add_prefix("loss", unshard(self.objective.loss.state_dict())),
            **add_prefix("memory", memory.state_dict() if memory is not None else {}),
            **add_prefix("ema", unshard(average.tensors if average is not None else {})),
            **add_prefix("optimizer", unshard(checkpoint.optimizer_tensors(self.optimizer))),
            **add_prefix("scheme", self.scheme.tensors()),
            **add_prefix("influence", {} if self.influence is None else self.influence.tensors()),
            **self.random_tensors(),
        }

    def random_tensors(self) -> dict[str, Tensor]:
        """The random states that a step draws from: of the CPU, of a GPU, and of λ, pairs and mixup types."""
        gpu = get_random_state(self.team.device)
        return {
            "random/torch": torch.get_rng_state(),
            "random/draws": self.generator.get_state(),
            **({} if gpu is None else {f"random/{self.team.device.type}": gpu}),
        }


def restore_random(tensors: dict[str, Tensor], generator: torch.Generator, device: torch.device) -> None:
    """Restore random states that `TrainingState.random_tensors` gave; a checkpoint of a CPU has none of a GPU."""
    torch.set_rng_state(tensors["random/torch"])
    generator.set_state(tensors["random/draws"])
    set_random_state(device, tensors.get(f"random/{device.type}"))


def prepare(
    config: Config,
    dataset: Dataset,
    part: Part,
    team: Team,
    report: Report,
    *,
    restored: bool = False,
    unlabelled: Part | None = None,
) -> TrainingState:
    """Build network, objective, batches and optimizer of a configuration, as they are before the first step.

    Args:
        config: the settings of the run
        dataset: the images, of which `part` is trained on
        part: the training images
        team: the processes that train together
        report: is called with the progress of caches that are filled
        restored: whether a checkpoint follows, so that the weights need no computed start
        unlabelled: images without label that join the batches

    Raises:
        InvalidInput: settings that do not go together, such as a mixup type that the network cannot do
    """
    settings = config.train
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    relation = relate_classes(config, dataset, part.class_names) if config.uses_labels else None
    # proxies of sets of labels are those of the labels
    classes = relation.indicators.shape[1] if isinstance(relation, LabelSets) else part.num_classes
    embedder, objective = build_parts(config, classes, generator, vector_length(dataset))
    if relation is not None:
        objective.with_relation(relation)
    if not restored:
        standardise_vectors(embedder, part)
    embedder.view = ImageView(dataset.catalogue.layout, None if config.data.cache == "none" else SHORT_SIDE)
    influence = build_influence(config, embedder, generator)
    batches = build_batches(config, embedder, dataset, part, report, team)
    if unlabelled is not None:
        batches.add_unlabelled(unlabelled)
    if influence is not None and not restored:
        influence.find_centres(batches, team)
    objective.explain(batches.network)  # raises if network and mixup do not go together
    if config.model.head_init == "whiten" and not restored:
        _whiten_head(embedder, batches, team)
    scheme = build_scheme(config, batches)
    network = connect(config, embedder, scheme.network, objective, team)
    probe = SeparationProbe()
    whole = NetworkWithLoss(network, objective, probe, influence)
    if objective.memory is not None and team.size > 1:  # alike everywhere: nothing to broadcast in each step
        names = [f"objective.memory.{name}" for name, _ in objective.memory.named_buffers()]
        ddp: Any = nn.parallel.DistributedDataParallel
        ddp._set_params_and_buffers_to_ignore_for_model(whole, names)
    module = team.fabric.setup_module(whole)
    optimizer = team.fabric.setup_optimizers(build_optimizer(config, embedder, objective.loss, team.device))
    average = WeightAverage(embedder, settings.ema) if settings.ema > 0 else None
    progress = Progress()
    return TrainingState(
        embedder, objective, module, optimizer, average, generator, batches, scheme, team, progress, probe, influence
    )


def build_parts(
    config: Config, classes: int, generator: torch.Generator, inputs: int | None = None
) -> tuple[Embedder, Objective]:
    """Network and objective of a configuration, before training.

    Args:
        config: the settings of the run
        classes: how many of them are trained on
        generator: draws λ, pairs and mixup types, and what a loss draws
        inputs: the length of vectors, where the data are vectors
    """
    embedder = build_embedder(config, inputs)
    loss = build_loss(config.loss, classes, config.model.dim, generator) if config.uses_labels else None
    if config.distils:
        return embedder, build_distillation(config, embedder, loss, generator)
    assert loss is not None, "without a teacher, labels are used"
    return embedder, build_objective(config, loss, generator)


def connect(config: Config, embedder: Embedder, network: nn.Module, objective: Objective, team: Team) -> nn.Module:
    """The network as a step calls it: in micro-batches if asked for, its loss and batch norm over all processes."""
    micro_batch = config.train.micro_batch
    if team.size > 1:
        objective.across_ranks(mix=config.mixing.mix)
        if config.model.sync_bn and micro_batch is None:  # micro-batches have statistics of their own
            synchronise_batch_norm(config, embedder, team)
    return network if micro_batch is None else MicroBatched(network, micro_batch)


def synchronise_batch_norm(config: Config, embedder: Embedder, team: Team) -> None:
    """Let batch norm normalise over the global batch: by torch's own layers on CUDA, else by ours.

    Ours can be told to normalise over the examples of one process, as those of mixed inputs must: they come in chunks
    whose number differs between processes, and torch's layers would wait for each other forever.
    """
    mixes_inputs = any(MIXUP_TYPES[name].mixes == "inputs" for name in config.mixing.mixup)
    if team.device.type == "cuda" and not mixes_inputs:
        from timm import layers

        timm_layers: Any = layers
        embedder.backbone = timm_layers.convert_sync_batchnorm(embedder.backbone)
    else:
        normalise_globally(embedder, team.ranks)


def _whiten_head(embedder: Embedder, batches: ImageBatches, team: Team) -> None:
    def embed() -> None:
        batches.embed(batches.part, team.device)

    embedder.to(team.device).eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a loader with workers draws a seed
        whiten_head(embedder.head, embed, team.sum_tensor)
    embedder.train()
