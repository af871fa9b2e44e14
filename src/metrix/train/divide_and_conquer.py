"""Training schemes: each batch trains the whole embedding, or one slice of it (Divide and Conquer).

Divide and Conquer (Sanakoyeu et al., CVPR 2019) clusters the embeddings of the training images by k-means, again
every few epochs. Each batch comes from one cluster and trains one slice of the embedding, which becomes the expert
for that cluster. The last epochs train the whole embedding on all images. Embeddings are
normalised whole; the authors normalise slice by slice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metrix.data.item_seeds import Repeat
from metrix.data.samplers import BalancedSampler, BatchSampler, RandomSampler
from metrix.errors import InvalidInput
from metrix.evaluate.clustering import k_means
from metrix.train.batches import ImageBatches
from metrix.train.config import Config
from metrix.train.names import LOSSES

Embed = Callable[[], Tensor]  # computes unit embeddings of the training images by the current weights


class Undivided:
    """The scheme in which every batch trains the whole embedding."""

    def __init__(self, source: ImageBatches) -> None:
        self.source = source
        self.network: nn.Module = source.network

    def begin(self, epoch: int, batch: int, embed: Embed) -> None:
        """Prepare an epoch of which the batches from number `batch` on will be trained."""

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number `start` on."""
        return self.source.batches(epoch, start)

    def tensors(self) -> dict[str, Tensor]:
        """The state to keep in a checkpoint."""
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `tensors` gave."""


class DivideAndConquer(Undivided):
    """Batches of one cluster train one slice, except in the last `finetune_epochs` of `epochs`."""

    def __init__(
        self, source: ImageBatches, dim: int, clusters: int, recluster_every: int, epochs: int, finetune_epochs: int
    ) -> None:
        super().__init__(source)
        self.slices = Slices(source.network, dim // clusters)
        self.network = self.slices
        self.sampler = DividedSampler(source.sampler, source.part.labels.numpy())
        source.sampler = self.sampler
        self.clusters, self.recluster_every = clusters, recluster_every
        self.divided_epochs = epochs - finetune_epochs
        self.assigned: NDArray[np.int64] | None = None  # the cluster of each training image

    def begin(self, epoch: int, batch: int, embed: Embed) -> None:
        """Cluster the images if it is time, else keep the clusters; divide nothing in the last epochs."""
        if epoch >= self.divided_epochs:
            self.sampler.divide(None)
            return
        if batch == 0 and epoch % self.recluster_every == 0:
            seed = self.sampler.seed + epoch
            found = k_means(embed().numpy(), self.clusters, seed=seed, iterations=100, restarts=5)
            self.assigned = found if self.assigned is None else match_clusters(found, self.assigned, self.clusters)
        self.sampler.divide(self.assigned)

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch; before each, the network is told which slice it trains."""
        for number, batch in enumerate(self.source.batches(epoch, start), start):
            self.slices.learner = self.sampler.learner(number)
            yield batch

    def tensors(self) -> dict[str, Tensor]:
        """The cluster of each training image."""
        return {} if self.assigned is None else {"clusters": torch.from_numpy(self.assigned)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the clusters of a checkpoint."""
        if "clusters" in tensors:
            self.assigned = tensors["clusters"].numpy()


class Slices(nn.Module):
    """A network whose head gives slice number `learner` of the embedding, normalised; the whole one if it is None."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network, self.width = network, width
        self.learner: int | None = None

    def features(self, x: Tensor) -> Tensor:
        """The features of the network."""
        z: Tensor = self.network.features(x)  # type: ignore[operator]
        return z

    def head(self, z: Tensor) -> Tensor:
        """The learner's slice (n, width), or the whole embedding."""
        embeddings: Tensor = self.network.head(z)  # type: ignore[operator]
        if self.learner is None:
            return embeddings
        start = self.learner * self.width
        return nn.functional.normalize(embeddings[:, start : start + self.width], dim=1)


class ClusterBatches(NamedTuple):
    """The images of one cluster, and the sampler of its batches."""

    learner: int
    members: NDArray[np.int64]
    sampler: BatchSampler


class DividedSampler(BatchSampler):
    """Batches of one cluster each, clusters in turn; before `divide`, the batches of the sampler `whole`.

    An image that is the only one of its class in its cluster has no positive there, so it is left out until the next
    clustering; so is a cluster of fewer than two classes.
    """

    def __init__(self, whole: BatchSampler, labels: NDArray[np.int64]) -> None:
        super().__init__(
            whole.batches_per_epoch, whole.seed, whole.rank, whole.world_size, whole.batch_size, whole.together
        )
        self.whole, self.labels = whole, labels
        self.groups: list[ClusterBatches] = []

    def divide(self, clusters: NDArray[np.int64] | None) -> None:
        """Take batches from clusters (one cluster number per image), or from all images if None."""
        self.groups = []
        for learner in [] if clusters is None else np.unique(clusters).tolist():
            members = np.flatnonzero(clusters == learner)
            _, membership, counts = np.unique(self.labels[members], return_inverse=True, return_counts=True)
            members = members[counts[membership] > 1]
            sampler = self._within(members)
            if sampler is not None:
                self.groups.append(ClusterBatches(learner, members, sampler))

    def learner(self, number: int) -> int | None:
        """The cluster of a batch of this epoch; None if batches come from all images."""
        return self.groups[self._turn(number)].learner if self.groups else None

    def _turn(self, number: int) -> int:
        # continues across epochs, so that epochs with fewer batches than clusters reach every cluster
        return (self.epoch * self.batches_per_epoch + number) % len(self.groups)

    def _within(self, members: NDArray[np.int64]) -> BatchSampler | None:
        """A sampler like `whole` for some of the images; None if they cannot fill a batch of two classes."""
        labels, world = self.labels[members], self.world_size
        if isinstance(self.whole, BalancedSampler):
            classes = min(self.whole.classes_per_batch, len(np.unique(labels))) // world * world
            if classes < 2:
                return None
            sampler: BatchSampler = BalancedSampler(labels, classes, self.whole.per_class)
        else:
            assert isinstance(self.whole, RandomSampler)
            if len(np.unique(labels)) < 2 or len(members) < world:
                return None
            sampler = RandomSampler(len(members), min(self.whole.batch_size, len(members)) // world * world)
        sampler.batches_per_epoch = self.batches_per_epoch  # an upper bound on what one cluster is asked for
        return sampler

    def _global_batches(self, rng: np.random.Generator) -> Iterator[list[int]]:
        if not self.groups:
            yield from self.whole._global_batches(rng)
            return
        streams = [g.sampler._global_batches(r) for g, r in zip(self.groups, rng.spawn(len(self.groups)), strict=True)]
        for number in range(self.batches_per_epoch):
            turn = self._turn(number)
            members = self.groups[turn].members
            yield [_to_position(index, int(members[index])) for index in next(streams[turn])]


def _to_position(index: int, position: int) -> int:
    """The position among all images for an index within a cluster, with the number of its visit."""
    visit = getattr(index, "visit", 0)
    return Repeat(position, visit) if visit else position


def match_clusters(found: NDArray[np.int64], before: NDArray[np.int64], clusters: int) -> NDArray[np.int64]:
    """Renumber new clusters like the old ones they overlap most with, so that each slice keeps its cluster.

    >>> match_clusters(np.array([0, 0, 1, 1]), np.array([1, 1, 1, 0]), 2).tolist()
    [1, 1, 0, 0]
    """
    from scipy.optimize import linear_sum_assignment

    shared = np.zeros((clusters, clusters), dtype=np.int64)
    np.add.at(shared, (found, before), 1)
    numbers: NDArray[np.int64] = linear_sum_assignment(shared, maximize=True)[1]
    return numbers[found]


def build_scheme(config: Config, source: ImageBatches) -> Undivided:
    """The scheme of a configuration; `InvalidInput` if other settings do not go with it."""
    train, dim, name = config.train, config.model.dim, config.loss.loss
    if train.scheme == "none":
        return Undivided(source)
    if config.mixing.mixup:
        raise InvalidInput(
            f"mixup: expected none with scheme {train.scheme!r}, whose slices train without mixup, "
            f"got {config.mixing.mixup}"
        )
    if "dim" in inspect.signature(LOSSES[name].make).parameters:
        raise InvalidInput(
            f"loss: expected a loss of pairs, such as margin, with scheme {train.scheme!r}, got {name!r}, whose "
            "proxies or centres have the length of the whole embedding, not of a slice"
        )
    if dim % train.clusters:
        raise InvalidInput(
            f"dim: expected a multiple of clusters={train.clusters}, because slices of the embedding are equal, "
            f"got {dim}"
        )
    if source.part.num_classes < 2 * train.clusters:
        raise InvalidInput(
            f"clusters: expected at most {source.part.num_classes // 2} for {source.part.num_classes} training "
            f"classes, 2 for each cluster, got {train.clusters}"
        )
    per_epoch = source.sampler.batches_per_epoch
    epochs = min(train.epochs, (train.max_steps or train.epochs * per_epoch) // per_epoch)  # complete epochs
    finetune = train.finetune_epochs or max(1, epochs // 20)
    if finetune >= epochs:
        raise InvalidInput(
            f"finetune_epochs: expected fewer than the {epochs} complete epochs, got {finetune}, which leaves none to "
            "divide; lower it, or raise epochs or max_steps"
        )
    return DivideAndConquer(source, dim, train.clusters, train.recluster_every, epochs, finetune)
