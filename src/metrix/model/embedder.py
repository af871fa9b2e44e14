"""The model: an image to features (g_m) to a unit embedding (f_m)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from metrix.errors import ModelError, check_integer, unknown_choice
from metrix.model import saving
from metrix.model.backbones import DataConfig, build_backbone, example_image
from metrix.model.pooling import POOLS, build_head
from metrix.model.stages import run_up_to

FREEZE_ALL = "all"
_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # BatchNorm1d/2d/3d, SyncBatchNorm and timm's kin


@dataclass(frozen=True)
class EmbedderConfig:
    """The choices that rebuild an `Embedder` around its weights."""

    backbone: str
    dim: int
    pool: str
    freeze_to: str | None
    frozen_bn: bool
    image_size: int | None


class Embedder(nn.Module):
    """`forward(x) = head(features(x))`, unit vectors (n, dim).

    >>> embedder = Embedder("glyphs-cnn", dim=64)
    >>> embedder.features(torch.rand(2, 1, 28, 28)).shape, embedder(torch.rand(2, 1, 28, 28)).shape
    (torch.Size([2, 128, 4, 4]), torch.Size([2, 64]))

    Args:
        backbone: any name of timm, `efficientnet_lite0|1|2` (timm's `tf_` network, weights from the extra
            `metrix[lite]`) or `glyphs-cnn`.
        dim: length of the embedding.
        pool: `avg+max` (the paper's), `avg`, `max`, `gem`, `cls` or `attention`.
        weights: None (random), 'pretrained', or the path of a .safetensors, .pth or .pt file.
        freeze_to: the last stage that is frozen (one of `stages()`), 'all', or None.
        frozen_bn: batch norm of the backbone keeps its statistics in training, too; its scale and shift
            still train where they are not frozen.
        image_size: another size than the backbone's own.

    Of a transformer, `features` are the patch tokens (n, p, c): the class and register tokens are no
    positions of the image, so they are not pooled. With `pool="cls"` they are the class token (n, 1, c).

    The frozen part is in eval mode and without gradients, always. `features` is then
    `features_from(trunk(x))`, where `trunk(x)`, the activations at the boundary, can be kept
    (`metrix.model.ActivationCache`). Without freezing the trunk is empty: `trunk(x)` is x.
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
    ) -> None:
        super().__init__()
        dim = check_integer("dim", dim, least=1)
        if image_size is not None:
            image_size = check_integer("image_size", image_size, least=1)
        if pool not in POOLS:
            raise unknown_choice("pool", pool, POOLS)
        built = build_backbone(backbone, weights, image_size)
        if pool == "cls" and not built.has_class_token:
            accepted = ", ".join(repr(name) for name in POOLS if name != "cls")
            raise ModelError(f"pool 'cls' on {backbone!r}, which has no class token; accepted: {accepted}")
        self.config = EmbedderConfig(backbone, dim, pool, freeze_to, frozen_bn, image_size)
        self.data_config: DataConfig = built.data_config
        self.backbone = built.module
        self.head = build_head(pool, built.channels, dim)
        self._stages = built.anatomy.stages
        self._channels_last = built.channels_last
        self._prefix_tokens = built.prefix_tokens
        self._boundary: str | None = None  # path of the last frozen module; None where all or nothing is
        self._rest: tuple[str, ...] = ()  # paths of the modules after the boundary
        self._map_of_convolutions = built.anatomy.output.ndim == 4 and not built.channels_last
        if self._map_of_convolutions:
            # CPU convolutions measured a third faster, forward and backward; shapes stay the same.
            self.backbone.to(memory_format=torch.channels_last)
        self._freeze(freeze_to)
        if self._boundary is not None:
            self._check_split()
        self.train()

    def stages(self) -> list[str]:
        """The stages that `freeze_to` accepts beside 'all', from the image on: `['stem', 'layer1', ...]`."""
        return [stage.name for stage in self._stages]

    def features(self, x: Tensor) -> Tensor:
        """Images (n, 3, h, w) to the map (n, c, h', w') or tokens (n, p, c) before pooling: g_m."""
        return self.features_from(self.trunk(x))

    def forward(self, x: Tensor) -> Tensor:
        """Images to unit embeddings (n, dim)."""
        embeddings: Tensor = self.head(self.features(x))
        return embeddings

    def trunk(self, x: Tensor) -> Tensor:
        """Images to activations at the boundary, without gradient; the images if nothing is frozen."""
        if self.config.freeze_to is None:
            return x
        with torch.no_grad():
            if self._boundary is not None:
                return run_up_to(self.backbone, self._boundary, x)
            return self._positions_first(self.backbone.forward_features(x))  # type: ignore[operator]

    def features_from(self, activations: Tensor) -> Tensor:
        """The rest of `features`, from the activations that `trunk` gave."""
        if self.config.freeze_to is None:
            return self._positions_first(self.backbone.forward_features(activations))  # type: ignore[operator]
        if self._boundary is None:
            return activations
        if self._map_of_convolutions:  # activations read from a file are laid out channels-first
            activations = activations.contiguous(memory_format=torch.channels_last)
        for path in self._rest:
            activations = self.backbone.get_submodule(path)(activations)
        return self._positions_first(activations)

    def train(self, mode: bool = True) -> Embedder:
        """As `nn.Module.train`; the frozen part, and batch norm if `frozen_bn`, stay in eval mode."""
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
        """A hash of all that `trunk` depends on beside its input: architecture, boundary, frozen weights."""
        ends_in_class_token = self._boundary is None and self.config.pool == "cls"
        digest = hashlib.sha256(f"{self.config.backbone}|{self._boundary}|{ends_in_class_token}".encode())
        for name, tensor in sorted(self._frozen_tensors()):
            digest.update(f"|{name}{tuple(tensor.shape)}{tensor.dtype}|".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def save(self, folder: str | Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write `model.safetensors` and `config.json` to `folder`, each whole or not at all.

        `weights` are those of the embedder, where it has them in shares.
        """
        saving.save(self.state_dict() if weights is None else weights, self.config, self.data_config, Path(folder))

    @classmethod
    def load(cls, path: str | Path) -> Embedder:
        """The embedder that `save` wrote to a folder, or a run to its `model/`; needs no network."""
        saved = saving.read(Path(path))
        embedder = cls(**saved.choices)
        embedder.data_config = saved.data_config
        try:
            embedder.load_state_dict(saved.tensors)
        except RuntimeError as error:
            raise ModelError(f"{saved.source} does not hold the weights that its config describes: {error}") from error
        return embedder

    def _positions_first(self, x: Tensor) -> Tensor:
        """What `forward_features` gives, as a map (n, c, h, w) or the tokens to pool (n, p, c)."""
        if x.ndim == 4:
            return x.permute(0, 3, 1, 2) if self._channels_last else x
        if self.config.pool == "cls":
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
        """A cut must not change a value; code that works in place between two modules would."""
        self.eval()
        image = example_image(self.data_config.channels, self.data_config.size)
        with torch.no_grad():
            whole = self._positions_first(self.backbone.forward_features(image))  # type: ignore[operator]
            if not torch.equal(whole, self.features(image)):
                raise ModelError(
                    f"{self.config.backbone!r} cannot be cut after {self.config.freeze_to!r}: it computes "
                    "something between its stages. Accepted are freeze_to='all' and None"
                )

    def _frozen_tensors(self) -> Iterator[tuple[str, Tensor]]:
        if self.config.freeze_to is None:
            return
        trained = tuple(f"{path}." for path in self._rest)
        for name, tensor in self.backbone.state_dict().items():
            if not name.startswith(trained):
                yield name, tensor
