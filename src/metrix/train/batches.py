"""What a network trains on: images, or cached activations of a frozen trunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from metrix import data
from metrix.data import BalancedSampler, Dataset, Part, RandomSampler
from metrix.data.cache import SHORT_SIDE
from metrix.data.samplers import BatchSampler
from metrix.errors import InvalidInput
from metrix.model import ActivationCache, DataConfig, Embedder
from metrix.train.config import Config
from metrix.train.names import LOSSES

if TYPE_CHECKING:
    from metrix.train.distributed import Team

Report = Callable[[str, int, int], None]  # what, done, of


def opened_data(config: Config, report: Report, *, in_memory: bool = True) -> Dataset:
    """The dataset of a configuration, with validation classes held out if asked for.

    Where each image is read once, `in_memory=False` spares a cache in memory: images give the same pixels.
    """
    choice = config.data
    spared = choice.cache == "ram" and not in_memory
    dataset = data.open(
        choice.data,
        unseen=choice.unseen,
        seed=choice.split_seed,
        layout=choice.layout,
        max_bad=choice.max_bad if choice.max_bad < 1 else int(choice.max_bad),
        cache="none" if spared else choice.cache,
        short_side=SHORT_SIDE if spared else None,
        workers=choice.workers or None,
        progress=lambda done, of: report("checking images", done, of),
    )
    return dataset.hold_out(choice.holdout, choice.split_seed) if choice.holdout > 0 else dataset


def training_part(config: Config, dataset: Dataset) -> Part:
    """The training images, of only some classes if asked for."""
    part, count = dataset.train, config.data.train_classes
    if part.num_classes < 2:
        raise InvalidInput(
            f"{config.data.data} has {part.num_classes} class to train on (unseen={config.data.unseen}, "
            f"holdout={config.data.holdout}); at least 2 are needed: lower unseen or holdout, or add classes"
        )
    if count is None or count == part.num_classes:
        return part
    if count > part.num_classes:
        raise InvalidInput(
            f"train_classes={count}, but there are {part.num_classes} to train on "
            f"(unseen={config.data.unseen}, holdout={config.data.holdout}); accepted is at most that"
        )
    catalogue = dataset.catalogue
    classes = np.unique(catalogue.labels[part.indices])
    chosen = np.sort(np.random.default_rng(config.data.split_seed).permutation(classes)[:count])
    return Part(dataset, part.indices[np.isin(catalogue.labels[part.indices], chosen)], chosen)


def sampler_for(config: Config, part: Part, share: tuple[int, int] = (0, 1)) -> RandomSampler | BalancedSampler:
    """Random or balanced batches; of `share` = (rank, world size) that process's part of each."""
    train = config.train
    rank, world = share
    if train.sampler == "random":
        size = min(train.batch_size, len(part))
        return RandomSampler(len(part), size, seed=train.seed, rank=rank, world_size=world)
    if train.per_class < 2 and LOSSES[config.loss.loss].pairs:
        raise InvalidInput(
            f"per_class={train.per_class} with loss {config.loss.loss!r}: images of a class are each other's "
            "positives; accepted is per_class from 2, or a loss with proxies or centres"
        )
    classes = min(train.batch_size // train.per_class, part.num_classes)
    if classes < 2:
        raise InvalidInput(
            f"batch_size={train.batch_size} with per_class={train.per_class}: a batch needs at least 2 classes; "
            f"accepted is a batch_size from {2 * train.per_class}"
        )
    return BalancedSampler(part.labels, classes, train.per_class, seed=train.seed, rank=rank, world_size=world)


def views_for(config: Config, wanted: DataConfig, layout: str) -> tuple[Any, Any]:
    """The training and the test view of a layout's images as a backbone wants them.

    Grey images for a backbone of colours, and the reverse, are converted; glyphs are then treated as photos
    that must not be flipped.
    """
    size, augment = config.data.image_size or wanted.size, config.data.augment
    grey = layout.startswith("glyphs")
    if (1 if grey else 3) == wanted.channels:
        return data.transforms_for(layout, size=size, augment=augment, mean=wanted.mean, std=wanted.std)
    from torchvision.transforms import v2

    moving, still = data.train_transform(size, flip=0.0 if grey else 0.5), data.inference_transform(size)
    train_view, test_view = (
        data.PhotoTransform(v2.Compose([v2.Grayscale(wanted.channels), part.view]), wanted.mean, wanted.std)
        for part in (moving if augment == "standard" else still, still)
    )
    return train_view, test_view


class Images:
    """Batches of images under random views; any part embedded by the whole network."""

    def __init__(
        self, config: Config, embedder: Embedder, dataset: Dataset, part: Part, team: Team | None = None
    ) -> None:
        self.team = team
        wanted = embedder.data_config
        train_view, test_view = views_for(config, wanted, dataset.catalogue.layout)
        self.view = f"{config.data.image_size or wanted.size}|{wanted.mean}|{wanted.std}"
        self.embedder, self.dataset, self.workers = embedder, dataset, config.data.workers
        self.train_view, self.test_view = train_view, test_view
        self.part = part.with_transform(train_view, seed=config.train.seed)
        self.sampler: BatchSampler = sampler_for(config, part, (team.rank, team.size) if team else (0, 1))
        self.network: nn.Module = embedder
        self._loader: Any = None

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number `start` on."""
        self.part.set_epoch(epoch)
        self.sampler.set_epoch(epoch, start)
        if self.workers == 0:
            return (self.part.batch(indices) for indices in self.sampler)
        if self._loader is None:
            self._loader = data.loader(self.part, self.sampler, workers=self.workers)
        return iter(self._loader)

    def embed(self, part: Part, device: torch.device) -> Tensor:
        """Unit embeddings of a part under the test view; each process embeds a share, and all get the whole."""
        still = part.with_transform(self.test_view)

        def embedded(rows: range) -> Iterator[Tensor]:
            batches: Any = [rows[start : start + 256] for start in range(0, len(rows), 256)]
            for images, _ in data.loader(still, batches, workers=self.workers):
                yield self.embedder(images.to(device)).float().cpu()

        return self._together(len(part), embedded)

    def _together(self, total: int, embedded: Callable[[range], Iterator[Tensor]]) -> Tensor:
        rank, world = (self.team.rank, self.team.size) if self.team else (0, 1)
        edges = [total * r // world for r in range(world + 1)]
        parts = list(embedded(range(edges[rank], edges[rank + 1])))
        own = torch.cat(parts) if parts else torch.empty(0, self.embedder.config.dim)
        counts = [stop - start for start, stop in pairwise(edges)]
        return own if self.team is None else self.team.in_order(own, counts)


class FromActivations(nn.Module):
    """An embedder entered at its freezing boundary: `features` takes activations instead of images."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder

    def features(self, activations: Tensor) -> Tensor:
        """The rest of the features after the boundary."""
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


class Activations(Images):
    """Batches of cached activations: each image in `views` random views, computed once."""

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
        if "input" in config.mixing.mixup:
            raise InvalidInput(
                f"mixup={config.mixing.mixup} with views={config.model.views}: input mixup mixes images, "
                "which cached activations no longer have; leave views at 0, or choose feature or embed"
            )
        self.network = FromActivations(embedder)
        self.views = config.model.views
        self.report, self._caches = report, dict[str, ActivationCache]()
        self._trunk = embedder.trunk_fingerprint()
        # views belong to the data, not to a run's seed: runs of several seeds share one cache
        self.part = part.with_transform(self.train_view, seed=config.data.split_seed)
        name = f"{config.data.augment} {self.view}|seed {config.data.split_seed}"
        self.cache = self._cached(self.part, name, self.views)
        self.shift = np.random.default_rng([config.train.seed, 7]).integers(self.views, size=len(part))

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch; an image comes in its next view each time."""
        self.sampler.set_epoch(epoch, start)
        for indices in self.sampler:
            numbers = [int(i) for i in indices]
            visits = [getattr(i, "visit", 0) for i in indices]
            views = (self.shift[numbers] + epoch + np.asarray(visits)) % self.views
            rows = list(zip(numbers, views.tolist(), strict=True))
            yield self.cache.read(rows), self.part.labels[numbers]

    def embed(self, part: Part, device: torch.device) -> Tensor:
        """Unit embeddings of a part from the activations of its test view."""
        cache = self._cached(part.with_transform(self.test_view), f"test {self.view}", 1)

        def embedded(rows: range) -> Iterator[Tensor]:
            for start in range(0, len(rows), 512):
                z = self.network.features(cache.read([(i, 0) for i in rows[start : start + 512]]).to(device))  # type: ignore[operator]
                yield self.embedder.head(z).float().cpu()

        return self._together(len(part), embedded)

    def _cached(self, part: Part, view: str, views: int) -> ActivationCache:
        key = f"{self._trunk}|{view}|{self.dataset.catalogue.fingerprint()}|{_digest(part.indices)}"
        if key not in self._caches:

            def source(index: int, number: int) -> Tensor:
                part.set_epoch(number)
                return part[index][0]

            with self.team.one_at_a_time("activations") if self.team else nullcontext():
                self._caches[key] = ActivationCache.build(
                    data.cache_folder() / "activations",
                    key,
                    items=len(part),
                    views=views,
                    source=source,
                    trunk=self.embedder.trunk,
                    dtype="float16",
                    progress=lambda done, of: self.report("computing activations of the frozen trunk", done, of),
                )
        return self._caches[key]


def source_for(
    config: Config, embedder: Embedder, dataset: Dataset, part: Part, report: Report, team: Team | None = None
) -> Images:
    """Cached activations where the trunk is frozen and views of it are asked for, else images."""
    if config.model.views == 0:
        return Images(config, embedder, dataset, part, team)
    if config.model.freeze_to is None:
        raise InvalidInput(
            f"views={config.model.views} without freeze_to: cached views are of a frozen trunk; accepted with it "
            f"are freeze_to={', '.join([*embedder.stages(), 'all'])}"
        )
    return Activations(config, embedder, dataset, part, report, team)


def _digest(indices: Any) -> str:
    import hashlib

    return hashlib.sha256(np.ascontiguousarray(indices).tobytes()).hexdigest()
