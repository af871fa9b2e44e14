"""The sections of a configuration: every key with its type, its default and its help.

A key's name is unique across sections, so it can be a flag: `train.epochs` in YAML is `--epochs` on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from metrix.errors import check_share, unknown_choice
from metrix.machine.devices import check_device_name

# The keys whose values are names of a table in `metrix.train.names`.
TABLES = {
    "pool": "POOLS",
    "loss": "LOSSES",
    "mixup_method": "METHODS",
    "mixup": "MIXUP_TYPES",
    "pairs": "PAIR_KINDS",
    "scheme": "SCHEMES",
    "label_relation": "SET_RELATIONS",
}


def table(key: str) -> Mapping[str, Any]:
    """The table of a key. It is imported when it is needed, because that imports torch."""
    from metrix.train import names

    table: Mapping[str, Any] = getattr(names, TABLES[key])
    return table


def _known(key: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in table(key):
            raise unknown_choice(key, name, table(key))
        return name

    return AfterValidator(check)


MixupName = Annotated[str, _known("mixup")]
PairsName = Annotated[str, _known("pairs")]
PoolName = Annotated[str, _known("pool")]
SetRelationName = Annotated[str, _known("label_relation")]
SchemeName = Annotated[str, _known("scheme")]
MethodName = Annotated[str, _known("mixup_method")]


def _as_tuple(given: object) -> object:
    return (given,) if isinstance(given, (int, float)) else given


PositiveNumbers = Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(_as_tuple)]


def _start_of_mixup(given: object) -> object:
    """A share of the steps below 1, or `fit`."""
    try:
        share = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        share = -1.0
    if given != "fit" and not 0 <= share < 1:
        raise ValueError("expected a share of the steps from 0 to below 1, or fit")
    return given if given == "fit" else share


def _whole_precision(name: object) -> object:
    return "bf16-mixed" if name == "bf16" else name


def _share(given: str | None) -> str | None:
    if given is not None:
        check_share("fold", given)
    return given


def _no_weights(given: object) -> object:
    return None if given == "random" else given


class ConfigSection(BaseModel):
    """A group of keys; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=())


class Data(ConfigSection):
    """Where images come from and how they are split."""

    data: str = Field(
        "glyphs",
        description="glyphs, glyphs-mini, a folder, a manifest (.csv, .tsv, .parquet), Parquet files with images, "
        "hf:owner/name (Hugging Face), vectors (.parquet, .npz, .npy), or LAYOUT:PATH",
    )
    unseen: float = Field(
        0.5, ge=0, lt=1, description="share of a folder's classes kept for testing; 0 trains on all, of any layout"
    )
    split_seed: int = Field(0, ge=0, description="seed of the split into seen and unseen classes")
    layout: str | None = Field(
        None,
        description="layout of the data, if it is not recognised: cub, cars, sop, inshop, folder, manifest, "
        "parquet, hf",
    )
    root: str | None = Field(
        None, description="folder that the paths of a manifest are relative to; its own by default"
    )
    follow_links: bool = Field(False, description="follow symbolic links that lead out of the folder of the data")
    image_column: str | None = Field(
        None, description="column of images in Parquet files and data of Hugging Face, if there are several"
    )
    label_column: str | None = Field(
        None, description="column of labels in Parquet files and data of Hugging Face, if there are several"
    )
    max_bad: float = Field(0.01, ge=0, description="unreadable images to tolerate: a share below 1, or a count")
    holdout: float = Field(0.1, ge=0, lt=1, description="share of the training classes held out for model selection")
    train_classes: int | None = Field(None, ge=2, description="train on only this many of the training classes")
    fold: Annotated[str | None, AfterValidator(_share)] = Field(
        None,
        description="I/N: train without share I of N of the training classes, and measure on it; the test classes are "
        "left alone",
    )
    category_weight: float = Field(
        0.0, ge=0, le=1, description="how positive images of one category, but of different classes, are to each other"
    )
    label_relation: SetRelationName = Field(
        "jaccard", description="how positive images with several labels (column labels of a manifest) are to each other"
    )
    image_size: int | None = Field(None, ge=8, description="side of the image crop; the backbone's own by default")
    augment: Literal["standard", "none"] = Field("standard", description="random views of the training images")
    cache: Literal["ram", "disk", "none"] = Field("none", description="where to keep decoded, resized images")
    workers: int = Field(0, ge=0, description="processes that load images; 0 loads them in the main process")


class Model(ConfigSection):
    """Backbone and head."""

    backbone: str = Field(
        "resnet50", description="a timm model, efficientnet_lite0, 1 or 2, or glyphs-cnn; mlp for vectors"
    )
    dim: int = Field(512, ge=1, description="length of the embedding")
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (),
        description="train prefixes of the embedding too, such as 64,128: their lengths, separated by commas, or none",
    )
    matryoshka_weight: float = Field(
        1.0, ge=0, description="weight of the loss of each prefix; that of the whole embedding has 1"
    )
    pool: PoolName = Field("avg+max", description="pooling of the head")
    head_init: Literal["random", "whiten"] = Field(
        "random", description="head before training: random, or whitened principal components of the training images"
    )
    weights: Annotated[str | None, BeforeValidator(_no_weights)] = Field(
        None,
        description="pretrained, random, or a file (.safetensors, .pth, model.json); by default pretrained for photos, "
        "random for glyphs and in files of settings",
    )
    freeze_to: str | None = Field(
        None,
        description="freeze the backbone up to a stage, such as layer3 of a ResNet, blocks.8 of a ViT, or all of it",
    )
    peft: Literal["none", "lora"] = Field(
        "none", description="lora: train low-rank changes of the backbone's linear layers only (ViT, ConvNeXt)"
    )
    lora_rank: int = Field(8, ge=1, description="lora: rank of the changes")
    lora_alpha: float = Field(16.0, gt=0, description="lora: the changes are multiplied by this / --lora-rank")
    lora_targets: tuple[str, ...] = Field(
        (), description="lora: names of layers, such as qkv,proj; all linear layers by default"
    )
    frozen_bn: bool = Field(False, description="keep the statistics of batch norm fixed in training")
    frozen_affine: bool = Field(False, description="keep scale and shift of batch norm fixed in training")
    sync_bn: bool = Field(True, description="with several processes: batch norm over the global batch")
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (512,), description="for vectors: widths of the hidden layers of mlp, separated by commas, or none"
    )
    mix_at: int | None = Field(
        None, ge=0, description="for vectors: feature mixup mixes after so many hidden layers; after all by default"
    )
    views: int = Field(0, ge=0, description="with --freeze-to: views of each training image to cache; 0 for no cache")


class LossChoice(ConfigSection):
    """The loss and its parameters; those left out have the loss's own defaults."""

    loss: str = Field("multi-similarity", description="the loss")
    margin: float | None = Field(None, description="m, the margin")
    beta: float | None = Field(None, gt=0, description="β, scale of positives; initial boundary in the margin loss")
    gamma: float | None = Field(None, gt=0, description="γ, scale of negatives; scale over centres in soft-triple")
    temperature: float | None = Field(
        None,
        gt=0,
        description="T, temperature of the NCA losses, supcon, nt-xent, normalized-softmax, epshn and recall-at-k",
    )
    reduction: str | None = Field(
        None,
        description="how terms are summed or averaged; contrastive: sum, mean_nonzero; proxy-anchor: mean, present, "
        "original",
    )
    mining: str | None = Field(None, description="triplet loss: which triplets count, semi-hard or all")
    centers: int | None = Field(
        None, ge=0, description="K, centres per class in soft-triple and subcenter-arcface, proxies in potential-field"
    )
    la: float | None = Field(None, gt=0, description="λ, scale of similarities in soft-triple")
    tau: float | None = Field(None, ge=0, description="τ, weight of the regulariser of soft-triple")
    scale: float | None = Field(None, gt=0, description="s, scale of cosines in cosface, arcface and tuplet-margin")
    ks: tuple[int, ...] | None = Field(None, description="the values of k in recall-at-k, separated by commas")
    rank_temperature: PositiveNumbers | None = Field(
        None, description="temperatures of ranks in recall-at-k: one as a multiple of k, or one for each k"
    )
    radius: float | None = Field(None, gt=0, description="δ, radius of forces in potential-field")
    decay: float | None = Field(None, gt=0, description="α, how fast forces fade in potential-field")


class Mixing(ConfigSection):
    """Mixup; keys left out have the defaults of the mixing method."""

    mixup_method: MethodName = Field("metrix", description="mixing method")
    mixup: tuple[MixupName, ...] = Field(("feature",), description="mixup type, several separated by commas, or none")
    pairs: tuple[PairsName, ...] = Field(
        ("pos-neg", "anc-neg"), description="kinds of mixing pairs, one of which is drawn in each step"
    )
    strength: float = Field(0.4, ge=0, description="w, weight of the mixed loss")
    alpha: float = Field(2.0, gt=0, description="α of the distribution of λ, Beta(α, α)")
    mixup_after: Annotated[str | float, BeforeValidator(_start_of_mixup)] = Field(
        0.0,
        description="when mixup begins: after a share of the steps, such as 0.5, or fit: after the epoch in which 95 % "
        "of a batch's images are nearest to one of their class",
    )
    mixup_ramp: float = Field(
        0.0, ge=0, le=1, description="share of the steps in which w then grows from 0 to its value; 0 for none"
    )
    hard_negatives: tuple[int | None, ...] | None = Field(
        None, description="mix only with the k hardest negatives, or all; one value per mixup type"
    )
    lam_per: Literal["pair", "batch"] = Field("pair", description="draw one λ for each pair or batch")
    mix: Literal["local", "global"] = Field(
        "local", description="with several processes: mix features and inputs within a process or across all"
    )
    instance_temperature: float | None = Field(
        None, gt=0, description="imix: temperature of its cross-entropy over instances, 0.2 as published"
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_method(cls, given: Any) -> Any:
        method = table("mixup_method").get(given.get("mixup_method", "metrix")) if isinstance(given, dict) else None
        return given if method is None else {**method.defaults, **given}

    def describe(self) -> str:
        """The mixup in a few words, such as `none`, `embed` or `imix input`."""
        types = ", ".join(self.mixup)
        if not types or self.mixup_method == "metrix":
            return types or "none"
        return f"{self.mixup_method} {types}"


class Distillation(ConfigSection):
    """The run whose embeddings are imitated; without one, a run is trained with labels alone."""

    teacher: str | None = Field(None, description="folder of the finished run whose embeddings are imitated")
    teacher_digest: str | None = Field(None, description="SHA-256 of the teacher's weights; taken when the run starts")
    distance_weight: float = Field(25.0, ge=0, description="weight of relational distillation of distances")
    angle_weight: float = Field(50.0, ge=0, description="weight of relational distillation of angles")
    cosine_weight: float = Field(10.0, ge=0, description="weight of 1 - cosine to the teacher's embeddings")
    label_weight: float = Field(0.0, ge=0, description="weight of the loss of labelled images")
    unlabelled: tuple[str, ...] = Field((), description="folders of images without labels, which join the batches")
    unlabelled_batch: int | None = Field(
        None, ge=1, description="images without label in a batch, beside those with one; as many by default"
    )
    compatible: bool = Field(
        False, description="embeddings in the teacher's space, of its length, so that they can query its indexes"
    )


class Training(ConfigSection):
    """Batches, optimiser, schedule and model selection."""

    epochs: int = Field(
        60, ge=0, description="passes over the training images; 0 saves and measures the untrained network"
    )
    max_steps: int | None = Field(None, ge=1, description="stop after this many steps, even within an epoch")
    batch_size: int = Field(100, ge=2, description="images in a batch, over all processes together")
    micro_batch: int | None = Field(
        None,
        ge=1,
        description="images that go through the network at a time; the loss is still that of the whole batch",
    )
    memory: int | None = Field(
        None, ge=1, description="embeddings of past batches to use as further candidates (cross-batch memory)"
    )
    memory_after: int = Field(0, ge=0, description="steps before the memory is used")
    compatible_with: str | None = Field(
        None, description="a finished run: train embeddings that can be compared with those of its model"
    )
    compatible_weight: float = Field(
        1.0, gt=0, description="with --compatible-with: weight of the loss against the old model's class centres"
    )
    compatible_strength: float = Field(
        0.4, ge=0, description="with --compatible-with: weight of old and new features of a class mixed; 0 for none"
    )
    sampler: Literal["balanced", "random"] = Field(
        "balanced", description="equally many images of each class in a batch, or images at random"
    )
    per_class: int = Field(5, ge=1, description="images of each class in a balanced batch")
    lr: float = Field(1e-4, gt=0, description="learning rate of the backbone")
    head_lr: float | None = Field(None, gt=0, description="learning rate of the head; that of the backbone by default")
    proxy_lr: float | None = Field(
        None,
        gt=0,
        description="learning rate of the loss's own parameters; for proxies 100 times the head's, for the margin's β "
        "5e-4, for soft-triple's centres 0.01 by default",
    )
    weight_decay: float = Field(1e-4, ge=0, description="weight decay of AdamW")
    schedule: Literal["step", "cosine", "constant"] = Field("step", description="how the learning rate falls")
    decay_every: int = Field(10, ge=1, description="step schedule: epochs between two decays")
    decay_by: float = Field(0.5, gt=0, le=1, description="step schedule: factor of each decay")
    warmup_epochs: int = Field(0, ge=0, description="first epochs, in which only the head and the proxies are trained")
    clip: float | None = Field(None, gt=0, description="clip the gradient at this value")
    clip_by: Literal["norm", "value"] = Field("norm", description="what is clipped: the norm, or each entry")
    scheme: SchemeName = Field("none", description="training scheme")
    clusters: int = Field(
        8, ge=2, description="divide-and-conquer: clusters of training images, and slices of the embedding"
    )
    recluster_every: int = Field(2, ge=1, description="divide-and-conquer: epochs between two clusterings")
    finetune_epochs: int | None = Field(
        None,
        ge=1,
        description="divide-and-conquer: last epochs, which train the whole embedding; 5 % of all by default",
    )
    precision: Annotated[Literal["auto", "32-true", "bf16-mixed", "16-mixed"], BeforeValidator(_whole_precision)] = (
        Field(
            "auto",
            description="precision of the network, bf16 for short; auto is bfloat16 on GPUs that have it, else float32",
        )
    )
    ema: float = Field(
        0.0, ge=0, lt=1, description="decay of a moving average of weights, which becomes the model; 0 for none"
    )
    device: Annotated[str, AfterValidator(check_device_name)] = Field(
        "auto", description="device to train on: auto, cpu, cuda, one of several GPUs such as cuda:1, or mps"
    )
    deterministic: bool = Field(
        False, description="on a GPU: the same run gives the same weights, without TF32 and measured convolutions"
    )
    compile: bool = Field(
        False, description="compile network and objective with torch.compile: the first steps take minutes, others less"
    )
    seed: int = Field(0, ge=0, description="seed of weights, batches, views and mixup")
    validate_every: int = Field(1, ge=1, description="epochs between two validations")
    select_from: int = Field(0, ge=0, description="first epoch that may become the model; 0 is the untrained network")
    patience: int | None = Field(None, ge=1, description="stop after this many validations without improvement")
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop", description="when a loss or gradient is not finite: stop the run, or skip the step and count it"
    )
    checkpoint_steps: int = Field(500, ge=1, description="steps between two checkpoints within an epoch")
    log: tuple[Literal["csv", "wandb", "mlflow"], ...] = Field(
        (), description="trackers beside TensorBoard, several separated by commas: csv, wandb, mlflow"
    )
