"""Presets, settings by name: the paper's for each dataset and loss, those for a CPU, and those of the demo.

`paper/cub/proxy-anchor` names dataset and loss; `paper/cub` has the loss multi-similarity. Sampling and learning rates
are from table exp-settings; epochs, batch, optimizer, decay, weight decay and w from section "Training". Where the
paper is silent, its reference code decides, by what its commands do: torchvision's first ImageNet weights, crops of
original images, gradients clipped by value, decay every 10 epochs, a warm-up, one λ per batch, and batch norm whose
scale and shift are frozen with its statistics. (That code builds such a network; the end of its warm-up then makes all
parameters trainable, which reads like an oversight: `frozen_affine=False` follows it there.)

Losses that take no mixup, such as `paper/cub/triplet`, are trained clean, with the sampling of their authors.
`cpu/cars` trains a whole small network on a CPU. `dinov2` and `lora/dinov2` follow a public recipe for retrieval with a
large backbone; no figure of metrix is measured with them.
"""

from __future__ import annotations

from typing import Any

from metrix.errors import unknown_choice
from metrix.train.config import Config

_COMMON: dict[str, Any] = {
    "backbone": "resnet50.tv_in1k",  # timm's name of torchvision's first weights
    "weights": "pretrained",
    "dim": 512,
    "pool": "avg+max",
    "frozen_bn": True,
    "frozen_affine": True,
    "epochs": 100,
    "batch_size": 100,
    "weight_decay": 1e-4,
    "schedule": "step",
    "decay_every": 10,
    "warmup_epochs": 5,
    "clip": 10.0,
    "clip_by": "value",
    "mixup": ("feature",),
    "lam_per": "batch",
    "holdout": 0.0,
    "cache": "none",  # random crops are of the original images
    "workers": 4,
}
DATASETS: dict[str, dict[str, Any]] = {
    "cub": {"sampler": "random", "lr": 1e-4, "layout": "cub"},
    "cars": {"sampler": "random", "lr": 1e-4, "layout": "cars"},
    "sop": {
        "sampler": "balanced",
        "per_class": 5,
        "lr": 3e-5,
        "decay_by": 0.25,
        "layout": "sop",
        "frozen_bn": False,
        "frozen_affine": False,
    },
    "inshop": {
        "sampler": "balanced",
        "per_class": 5,
        "lr": 1e-4,
        "decay_by": 0.25,
        "decay_every": 5,
        "warmup_epochs": 1,
        "layout": "inshop",
        "frozen_bn": False,
        "frozen_affine": False,
    },
}
# The paper's decay for CUB and Cars is by loss. Contrastive is averaged over non-zero terms, as the
# reference code trains it: sums over pairs make the two terms depend on the batch's class sizes.
LOSSES: dict[str, dict[str, Any]] = {
    "contrastive": {"loss": "contrastive", "margin": 0.5, "reduction": "mean_nonzero", "decay_by": 0.1},
    "multi-similarity": {"loss": "multi-similarity", "decay_by": 0.5},
    "proxy-anchor": {"loss": "proxy-anchor", "reduction": "original", "decay_by": 0.5},
    "proxy-nca++": {"loss": "proxy-nca++", "decay_by": 0.5, "proxy_lr": 4e-2},
}
# What the authors of a baseline say about its training takes precedence over what the paper says about a dataset.
# Learning rates are the paper's AdamW ones where the authors train with SGD, or a network of another kind.
BASELINES: dict[str, dict[str, Any]] = {
    "triplet": {"loss": "triplet", "sampler": "balanced", "per_class": 4},
    "margin": {"loss": "margin", "sampler": "balanced", "per_class": 5},
    "epshn": {
        "loss": "epshn",
        "sampler": "balanced",
        "batch_size": 128,
        "per_class": 16,
        "decay_every": 50,
        "decay_by": 0.1,
    },
    "soft-triple": {
        "loss": "soft-triple",
        "sampler": "random",
        "batch_size": 32,
        "epochs": 50,
        "decay_every": 20,
        "decay_by": 0.1,
    },
    "divide-and-conquer": {
        "loss": "margin",
        "scheme": "divide-and-conquer",
        "clusters": 8,
        "recluster_every": 2,
        "finetune_epochs": 10,
        "epochs": 200,
        "sampler": "balanced",
        "batch_size": 80,
        "per_class": 4,
        "dim": 128,
        "lr": 1e-5,
        "schedule": "constant",
        "warmup_epochs": 0,
    },
}
# Products have few images each, hence fewer images per class in a batch, and fewer centres per class.
PRODUCT_SETTINGS: dict[str, dict[str, Any]] = {"epshn": {"per_class": 4}, "soft-triple": {"centers": 2}}


def list_presets() -> list[str]:
    """The names of all presets."""
    datasets = [f"paper/{name}" for name in DATASETS]
    return [
        *datasets,
        *(f"{name}/{loss}" for name in datasets for loss in (*LOSSES, *BASELINES)),
        *CPU,
        *LARGE,
        "glyphs",
    ]


def preset(name: str) -> Config:
    """The configuration of a preset; the paper's presets leave the key `data` to be given.

    >>> preset("paper/cub/contrastive").loss.margin
    0.5
    """
    if name not in list_presets():
        short = [known for known in list_presets() if known.count("/") < 2]
        of_losses = f"paper/DATASET/LOSS with one of {', '.join((*LOSSES, *BASELINES))}"
        raise unknown_choice("preset", name, list_presets(), [*short, of_losses])
    if name == "glyphs":
        return Config().with_values(GLYPHS)
    if name in CPU or name in LARGE:
        return Config().with_values({**CPU, **LARGE}[name])
    _, dataset, *rest = name.split("/")
    loss = rest[0] if rest else "multi-similarity"
    if loss in LOSSES:
        return Config().with_values({**_COMMON, **LOSSES[loss], **DATASETS[dataset]})
    products = PRODUCT_SETTINGS.get(loss, {}) if dataset in ("sop", "inshop") else {}
    return Config().with_values({**_COMMON, **DATASETS[dataset], **BASELINES[loss], **products, "mixup": ()})


# The whole network on a CPU, at a size at which an epoch of Cars196 takes minutes. Batch norm, the start of the head
# and the learning rates are the best of the *clean* losses on held-out training classes: larger rates destroy the
# pretrained features, a random head and trained batch norm statistics cost 5 to 20 points of Recall@1. These rates were
# chosen for ProxyNCA++ of half its published sharpness (temperature 2/9); with losses of pairs, lr 1e-4 and head_lr
# 3e-4 are better.
CPU: dict[str, dict[str, Any]] = {
    "cpu/cars": {
        "image_size": 96,
        "cache": "ram",
        "backbone": "efficientnet_lite0",
        "weights": "pretrained",
        "dim": 128,
        "pool": "avg+max",
        "frozen_bn": True,
        "head_init": "whiten",
        "loss": "proxy-nca++",
        "epochs": 12,
        "batch_size": 100,
        "per_class": 5,
        "lr": 3e-4,
        "head_lr": 1e-3,
        "proxy_lr": 0.1,
        "schedule": "cosine",
        "validate_every": 2,
        "mixup": ("feature",),
        "lam_per": "pair",
    }
}
# Fine-tuning of DINOv2: its class token, all weights at 1e-6, 64 classes with 4 images in a batch, bfloat16, at most 3
# epochs without improvement. The head starts from whitened principal components of the class tokens, because at this
# rate a random one would stay what it is. With adapters, the rate is the usual one of LoRA. Nothing of it was measured.
_DINOV2: dict[str, Any] = {
    "backbone": "vit_small_patch14_dinov2",
    "weights": "pretrained",
    "image_size": 224,
    "dim": 384,
    "pool": "cls",
    "head_init": "whiten",
    "loss": "multi-similarity",
    "mixup": (),
    "epochs": 100,
    "batch_size": 256,
    "per_class": 4,
    "lr": 1e-6,
    "schedule": "constant",
    "patience": 3,
    "precision": "bf16-mixed",
    "workers": 4,
}
LARGE: dict[str, dict[str, Any]] = {
    "dinov2": _DINOV2,
    "lora/dinov2": {**_DINOV2, "peft": "lora", "lora_rank": 8, "lora_alpha": 16.0, "lr": 1e-4},
}
# Few training classes and no augmentation: the regime that mixup is meant for. All was chosen on held-out training
# classes, never the test classes: parameters of the loss, learning rate and steps for the *clean* loss (β = 18, γ = 75,
# m = 0.77 as in the paper; β = 2, γ = 50, m from 0.1 to 0.7; lr 3e-3, 1e-2; 250 to 1,000 steps), then w
# for the mixed one (0.4, 0.8, 1.6).
GLYPHS: dict[str, Any] = {
    "data": "glyphs",
    "train_classes": 30,
    "augment": "none",
    "holdout": 0.0,
    "backbone": "glyphs-cnn",
    "dim": 64,
    "loss": "multi-similarity",
    "beta": 2.0,
    "gamma": 50.0,
    "margin": 0.3,
    "epochs": 1000,
    "max_steps": 500,
    "batch_size": 120,
    "per_class": 4,
    "lr": 1e-2,
    "schedule": "cosine",
    "mixup": ("feature",),
    "strength": 0.8,
    "lam_per": "pair",
}
