"""Batches to train on, of images or of cached activations of a frozen trunk, and the embeddings of a part."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from metrix import data
from metrix.data import BalancedSampler, Dataset, Part, RandomSampler
from metrix.data.cache import SHORT_SIDE
from metrix.data.class_relations import build_relation
from metrix.data.folds import take_fold
from metrix.data.layouts.vectors import NAME as VECTORS
from metrix.data.samplers import BatchSampler
from metrix.data.training_parts import choose_validation, require_trainable
from metrix.errors import InvalidInput
from metrix.files import describe_failure, warn_not_cached
from metrix.model import ActivationCache, DataConfig, Embedder
from metrix.train.config import Config
from metrix.train.names import LOSSES, MIXUP_TYPES
from metrix.train.network import name_examples
from metrix.train.unlabelled import UnlabelledBatches

if TYPE_CHECKING:
    from metrix.core.relations import Relation
    from metrix.train.distributed import Team
    from metrix.train.frozen_network import FrozenNetwork

Report = Callable[[str, int, int], None]  # what is being done, how many are done, of how many
EMBEDDED_AT_ONCE = 256  # images
VIEW_DRAWS = "philox"  # how random views are drawn; part of the key of their cached activations


def ignore_report(what: str, done: int, of: int) -> None:
    """A `Report` that does nothing."""


def open_data(config: Config, report: Report = ignore_report, *, in_memory: bool = True) -> Dataset:
    """The dataset of a configuration, with validation classes held out if it asks for them and there are enough.

    Args:
        config: the settings of the run
        report: is called with the progress of checking images
        in_memory: False ignores a cache in memory, for callers that read each image once; pixels are the same
    """
    choice = config.data
    skip_cache = choice.cache == "ram" and not in_memory
    dataset = data.open(
        choice.data,
        unseen=choice.unseen,
        seed=choice.split_seed,
        layout=choice.layout,
        root=choice.root,
        follow_links=choice.follow_links,
        image_column=choice.image_column,
        label_column=choice.label_column,
        max_bad=choice.max_bad if choice.max_bad < 1 else int(choice.max_bad),
        cache="none" if skip_cache else choice.cache,
        short_side=SHORT_SIDE if skip_cache else None,
        workers=choice.workers or None,
        progress=lambda done, of: report("checking images", done, of),
    )
    if choice.fold is not None:
        catalogue = take_fold(dataset.catalogue, choice.fold, choice.split_seed)
    else:
        catalogue = choose_validation(dataset.catalogue, choice.holdout, choice.split_seed, dataset.broken)
    return dataclasses.replace(dataset, catalogue=catalogue)


def select_training_part(config: Config, dataset: Dataset) -> Part:
    """The training images, of `train_classes` classes only if the configuration asks for it."""
    require_trainable(dataset.catalogue, config.data.data, dataset.broken)
    part, count = dataset.train, config.data.train_classes
    if count is None or count == part.num_classes:
        return part
    if count > part.num_classes:
        raise InvalidInput(
            f"train_classes: expected at most {part.num_classes}, the classes to train on "
            f"(unseen={config.data.unseen}, holdout={config.data.holdout}), got {count}"
        )
    catalogue = dataset.catalogue
    classes = np.unique(catalogue.labels[part.indices])
    chosen = np.sort(np.random.default_rng(config.data.split_seed).permutation(classes)[:count])
    return Part(dataset, part.indices[np.isin(catalogue.labels[part.indices], chosen)], chosen)


def relate_classes(config: Config, dataset: Dataset, class_names: Sequence[str]) -> Relation | None:
    """How positive some classes of the data are to each other; None where labels are plain classes."""
    choice = config.data
    return build_relation(dataset.catalogue, class_names, choice.category_weight, choice.label_relation)


def fit_batch_size(config: Config, part: Part) -> tuple[Config, str]:
    """The configuration with the batch size that is used, and a sentence if it is not the one asked for.

    A balanced batch has `per_class` images of each class at most once, a random one each image at most once.
    """
    train, classes = config.train, part.num_classes
    if train.sampler == "random":
        used, why = min(train.batch_size, len(part)), f"there are {len(part)} training {name_examples(config)}"
    else:
        used = min(train.batch_size // train.per_class, classes) * train.per_class
        each = f"{train.per_class} {name_examples(config)} in a batch (per_class)"
        few = f"there are {classes} training classes, each with {each}"
        why = few if used == classes * train.per_class else f"it is a multiple of per_class={train.per_class}"
    if used == train.batch_size or used < 2 * (1 if train.sampler == "random" else train.per_class):
        return config, ""
    return config.with_values({"batch_size": used}), f"batch_size is {used} instead of {train.batch_size}: {why}"


def build_sampler(config: Config, part: Part, share: tuple[int, int] = (0, 1)) -> RandomSampler | BalancedSampler:
    """The sampler of random or balanced batches; with `share` = (rank, world size), of that process's rows."""
    train = config.train
    rank, world = share
    if train.sampler == "random":
        return RandomSampler(len(part), min(train.batch_size, len(part)), seed=train.seed, rank=rank, world_size=world)
    if train.per_class < 2 and config.uses_labels and LOSSES[config.loss.loss].needs_pairs:
        raise InvalidInput(
            f"per_class: expected at least 2 with loss {config.loss.loss!r}, whose positives are "
            f"{name_examples(config)} of the same class, got {train.per_class}; raise it, or choose a loss with "
            "proxies or centres"
        )
    classes = min(train.batch_size // train.per_class, part.num_classes)
    if classes < 2:
        raise InvalidInput(
            f"batch_size: expected at least {2 * train.per_class} with per_class={train.per_class}, for 2 classes, "
            f"got {train.batch_size}"
        )
    return BalancedSampler(part.labels, classes, train.per_class, seed=train.seed, rank=rank, world_size=world)


def build_views(config: Config, wanted: DataConfig, layout: str) -> tuple[Any, Any]:
    """The training view and the test view of images, in the size and colours that a backbone wants.

    Grey images are converted for a backbone that wants colours, and the reverse; such glyphs are treated like photos,
    but never flipped. Vectors have no views.
    """
    if layout == VECTORS:
        return None, None
    size, augment = config.data.image_size or wanted.size, config.data.augment
    grey = layout.startswith("glyphs")
    test_view = data.still_transform(layout, size=size, channels=wanted.channels, mean=wanted.mean, std=wanted.std)
    if (1 if grey else 3) == wanted.channels:
        moving, _ = data.transforms_for(layout, size=size, augment=augment, mean=wanted.mean, std=wanted.std)
        return moving, test_view
    if augment != "standard":
        return test_view, test_view
    from torchvision.transforms import v2

    crop = data.train_transform(size, flip=0.0 if grey else 0.5).view
    return data.PhotoTransform(v2.Compose([v2.Grayscale(wanted.channels), crop]), wanted.mean, wanted.std), test_view


def embed_batches(
    network: nn.Module | FrozenNetwork, part: Part, batches: Sequence[Sequence[int]], device: torch.device, workers: int
) -> Iterator[Tensor]:
    """Embeddings of batches of a part's images, on the CPU, batch by batch.

    Args:
        network: maps images to embeddings
        part: the images, under the test view
        batches: positions within the part
        device: where the network is
        workers: processes that load images
    """
    given: Any = batches
    for images, _ in data.loader(part, given, workers=workers):
        yield network(images.to(device)).float().cpu()


class ImageBatches:
    """Batches of images under random views, and embeddings of any part under the test view."""

    activation_seconds = 0.0  # spent on activations of a frozen trunk

    def __init__(
        self, config: Config, embedder: Embedder, dataset: Dataset, part: Part, team: Team | None = None
    ) -> None:
        self.team = team
        wanted = embedder.data_config
        train_view, test_view = build_views(config, wanted, dataset.catalogue.layout)
        self.view = f"{config.data.image_size or wanted.size}|{wanted.mean}|{wanted.std}"
        self.config, self.embedder, self.dataset, self.workers = config, embedder, dataset, config.data.workers
        self.train_view, self.test_view = train_view, test_view
        self.part = part.with_transform(train_view, seed=config.train.seed)
        self.sampler: BatchSampler = build_sampler(config, part, (team.rank, team.size) if team else (0, 1))
        self.network: nn.Module = embedder
        self.unlabelled: UnlabelledBatches | None = None
        self._loader: Any = None

    @property
    def on_gpu(self) -> bool:
        """Whether batches go to a GPU that copies while the host goes on."""
        return self.team is not None and self.team.device.type == "cuda" and torch.cuda.is_available()

    def add_unlabelled(self, part: Part) -> None:
        """Let images without label join the batches from now on, with the label -1."""
        view, _ = build_views(self.config, self.embedder.data_config, part.layout)
        share = (self.team.rank, self.team.size) if self.team else (0, 1)
        self.unlabelled = UnlabelledBatches(part, self.config, view, self.sampler.batches_per_epoch, share, self.on_gpu)

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number `start` on."""
        labelled = self._labelled_batches(epoch, start)
        return labelled if self.unlabelled is None else self.unlabelled.join(labelled, epoch, start)

    def _labelled_batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        self.part.set_epoch(epoch)
        self.sampler.set_epoch(epoch, start)
        if self.workers == 0:
            return (self.part.batch(indices) for indices in self.sampler)
        if self._loader is None:
            self._loader = data.loader(self.part, self.sampler, workers=self.workers, pinned=self.on_gpu)
        return iter(self._loader)

    def example(self) -> Tensor:
        """One input of the network, (1, …), without drawing a random number."""
        return self.part.with_transform(self.test_view).batch([0])[0]

    def embed(self, part: Part, device: torch.device, network: FrozenNetwork | None = None) -> Tensor:
        """Unit embeddings (n, d) of a part under the test view; processes share the work and all get the result.

        `network` is another one than that which is trained.
        """
        still = part.with_transform(self.test_view)

        def embed_rows(rows: range) -> Iterator[Tensor]:
            batches = [rows[start : start + EMBEDDED_AT_ONCE] for start in range(0, len(rows), EMBEDDED_AT_ONCE)]
            return embed_batches(network or self.embedder, still, batches, device, self.workers)

        return self._embed_shares(len(part), embed_rows)

    def _embed_shares(self, total: int, embed_rows: Callable[[range], Iterator[Tensor]]) -> Tensor:
        """Embed this process's share of `total` rows and gather those of the others."""
        rank, world = (self.team.rank, self.team.size) if self.team else (0, 1)
        edges = [total * r // world for r in range(world + 1)]
        blocks = list(embed_rows(range(edges[rank], edges[rank + 1])))
        own = torch.cat(blocks) if blocks else torch.empty(0, self.embedder.config.dim)
        counts = [stop - start for start, stop in pairwise(edges)]
        return own if self.team is None else self.team.gather_rows(own, counts)


class FromActivations(nn.Module):
    """An embedder whose `features` takes the activations of its frozen trunk instead of images."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder

    def features(self, activations: Tensor) -> Tensor:
        """The features that the rest of the backbone computes from activations."""
        return self.embedder.features_from(activations)

    @property
    def head(self) -> nn.Module:
        """The head of the embedder."""
        return self.embedder.head

    def train(self, mode: bool = True) -> FromActivations:
        """As `nn.Module.train`."""
        self.training = mode
        self.embedder.train(mode)
        return self


class ActivationBatches(ImageBatches):
    """Batches of cached activations: the frozen trunk computes each image in `views` random views, once."""

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        dataset: Dataset,
        part: Part,
        report: Report,
        team: Team | None = None,
    ) -> None:
        super().__init__(config, embedder, dataset, part, team)
        if any(MIXUP_TYPES[name].mixes == "inputs" for name in config.mixing.mixup):
            raise InvalidInput(
                f"mixup: expected feature or embed with views={config.model.views}, got {config.mixing.mixup}; "
                "cached activations have no images to mix: choose another type, or leave views at 0"
            )
        self.network = FromActivations(embedder)
        self.views = config.model.views
        self.report, self._caches = report, dict[str, ActivationCache]()
        self._arithmetic = ""  # what activations depend on besides their key; nothing in float32 on a CPU
        if team is not None:
            embedder.to(team.device)  # the trunk computes views where it will be trained
            self._arithmetic += "" if team.device.type == "cpu" else f"|{team.device.type}"
            self._arithmetic += f"|{config.train.precision}" if config.train.precision == "bf16-mixed" else ""
        self._own_folder: Path | None = None  # where the cache folder cannot be written
        self._trunk = embedder.trunk_fingerprint()
        # views are seeded by the data, not by the run: runs of several seeds share one cache
        self.part = part.with_transform(self.train_view, seed=config.data.split_seed)
        name = f"{config.data.augment} {self.view}|{VIEW_DRAWS} seed {config.data.split_seed}"
        self.cache = self._open_cache(self.part, name, self.views)
        self.shift = np.random.default_rng([config.train.seed, 7]).integers(self.views, size=len(part))

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number `start` on; an image comes in its next view each time."""
        self.sampler.set_epoch(epoch, start)
        for indices in self.sampler:
            numbers = [int(i) for i in indices]
            visits = [getattr(i, "visit", 0) for i in indices]
            views = (self.shift[numbers] + epoch + np.asarray(visits)) % self.views
            rows = list(zip(numbers, views.tolist(), strict=True))
            yield self.cache.read(rows), self.part.labels[numbers]

    def example(self) -> Tensor:
        """The cached activations of one view, (1, …)."""
        return self.cache.read([(0, 0)])

    def embed(self, part: Part, device: torch.device, network: FrozenNetwork | None = None) -> Tensor:
        """Unit embeddings (n, d) of a part from the cached activations of its test view."""
        cache = self._open_cache(part.with_transform(self.test_view), f"test {self.view}", 1)

        def embed_rows(rows: range) -> Iterator[Tensor]:
            for start in range(0, len(rows), 512):
                z = self.network.features(cache.read([(i, 0) for i in rows[start : start + 512]]).to(device))  # type: ignore[operator]
                yield self.embedder.head(z).float().cpu()

        return self._embed_shares(len(part), embed_rows)

    def _open_cache(self, part: Part, view: str, views: int) -> ActivationCache:
        key = f"{self._trunk}|{view}|{self.dataset.catalogue.fingerprint()}|{_digest(part.indices)}{self._arithmetic}"
        if key not in self._caches:

            def read_view(index: int, number: int) -> Tensor:
                part.set_epoch(number)
                return part[index][0]

            def build(folder: Path) -> ActivationCache:
                with self.team.fabric.autocast() if self.team else nullcontext():
                    return ActivationCache.build(
                        folder,
                        key,
                        items=len(part),
                        views=views,
                        source=read_view,
                        trunk=self.embedder.trunk,
                        dtype="float16",
                        device=next(self.embedder.parameters()).device,
                        progress=lambda done, of: self.report("computing activations of the frozen trunk", done, of),
                    )

            folder = data.cache_folder() / "activations"
            began = time.monotonic()
            try:
                try:
                    with self.team.one_at_a_time("activations") if self.team else nullcontext():
                        self._caches[key] = build(folder)
                except OSError as unwritable:
                    if self._own_folder is None:
                        self._own_folder = Path(tempfile.mkdtemp(prefix="metrix"))
                        weakref.finalize(self, shutil.rmtree, self._own_folder, ignore_errors=True)
                    folder = self._own_folder
                    self._caches[key] = build(folder)
                    warn_not_cached("activations", unwritable)
            except OSError as error:
                raise InvalidInput(
                    f"activations cannot be written to {folder}: {describe_failure(error)}; free space there, set "
                    "METRIX_CACHE to another folder, or train with views=0"
                ) from error
            self.activation_seconds += time.monotonic() - began
        return self._caches[key]


def build_batches(
    config: Config, embedder: Embedder, dataset: Dataset, part: Part, report: Report, team: Team | None = None
) -> ImageBatches:
    """Batches of cached activations if the configuration asks for cached views, else of images."""
    if config.model.views == 0:
        return ImageBatches(config, embedder, dataset, part, team)
    if config.model.freeze_to is None:
        raise InvalidInput(
            f"freeze_to: expected one of {', '.join([*embedder.stages(), 'all'])} with views={config.model.views}, "
            "got none; cached views are activations of a frozen trunk"
        )
    return ActivationBatches(config, embedder, dataset, part, report, team)


def _digest(indices: Any) -> str:
    import hashlib

    return hashlib.sha256(np.ascontiguousarray(indices).tobytes()).hexdigest()
