"""The configuration of a run: one pydantic model, which is also the YAML file and the flags of the command line.

Keys are grouped in sections. A key's name is unique across sections, so it can be a flag: `train.epochs` in YAML is
`--epochs` on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from metrix.errors import InvalidInput, check_share, describe_value, unknown_choice
from metrix.files import describe_failure
from metrix.machine.devices import check_device_name
from metrix.yaml_text import parse_yaml

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


def _table(key: str) -> Mapping[str, Any]:
    """The table of a key. It is imported when it is needed, because that imports torch."""
    from metrix.train import names

    table: Mapping[str, Any] = getattr(names, TABLES[key])
    return table


def _known(key: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in _table(key):
            raise unknown_choice(key, name, _table(key))
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
        method = _table("mixup_method").get(given.get("mixup_method", "metrix")) if isinstance(given, dict) else None
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


# The mixup of distillation: both networks see mixtures of inputs, with λ uniform in [0, 1].
DISTILLATION_MIXING: dict[str, Any] = {"mixup": ("input",), "strength": 1.0, "alpha": 1.0}


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


class Config(ConfigSection):
    """All keys of a run, in sections."""

    data: Data = Field(default_factory=Data)
    model: Model = Field(default_factory=Model)
    loss: LossChoice = Field(default_factory=LossChoice)
    mixing: Mixing = Field(default_factory=Mixing)
    distil: Distillation = Field(default_factory=Distillation)
    train: Training = Field(default_factory=Training)

    @property
    def distils(self) -> bool:
        """Whether a teacher is imitated."""
        return self.distil.teacher is not None

    @property
    def uses_labels(self) -> bool:
        """Whether the loss of labelled examples is trained with."""
        return not self.distils or self.distil.label_weight > 0

    @property
    def objective_name(self) -> str:
        """What is trained with, in a word or two: the loss, distillation, or both."""
        if not self.distils:
            return self.loss.loss
        return f"distillation + {self.loss.loss}" if self.uses_labels else "distillation"

    def to_yaml(self) -> str:
        """The whole configuration, defaults included, as YAML."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def differences_to(self, other: Config) -> dict[str, Any]:
        """The keys, without their sections, that have other values in another configuration, with the values here.

        >>> Config().differences_to(Config().with_values({"epochs": 3}))
        {'epochs': 60}
        """
        own, others = self.model_dump(mode="json"), other.model_dump(mode="json")
        return {key: value for name, part in own.items() for key, value in part.items() if others[name][key] != value}

    def dropped_by(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters of this loss that `with_values(values)` leaves out, because it names another loss.

        >>> Config().with_values({"loss": "contrastive", "margin": 0.4}).dropped_by({"loss": "nca", "epochs": 3})
        {'margin': 0.4}
        """
        if values.get("loss", self.loss.loss) == self.loss.loss:
            return {}
        given = self.loss.model_dump(exclude={"loss"}, exclude_none=True)
        return {key: value for key, value in given.items() if key not in values}

    def with_values(self, values: dict[str, Any]) -> Config:
        """A copy with other values for some keys, which are named without their section.

        Another loss or mixing method starts from its own defaults: see `dropped_by`.

        >>> Config().with_values({"epochs": 3}).train.epochs
        3
        """
        nested: dict[str, Any] = self.model_dump(mode="json")
        if values.get("mixup_method", self.mixing.mixup_method) != self.mixing.mixup_method:
            nested["mixing"] = {}  # settings of one method do not carry over to another
        if (values.get("teacher", self.distil.teacher) is None) != (self.distil.teacher is None):
            nested["mixing"] = {}  # nor do those of training with and without a teacher
        if values.get("loss", self.loss.loss) != self.loss.loss:
            nested["loss"] = {}  # nor do the parameters of one loss
        for key, value in values.items():
            section = sections().get(key)
            if section is None:
                raise unknown_choice("key", key, sections())
            nested[section][key] = value
        nested = _with_scheme(nested)
        if "loss" in values and "mixup" not in values and not _takes_mixup(nested):
            nested["mixing"].pop("mixup", None)  # it was meant for the previous loss
        return parse_config(nested)


def sections() -> dict[str, str]:
    """The name of each key's section."""
    return {key: name for name, part in _parts().items() for key in part.model_fields}


def _parts() -> dict[str, type[ConfigSection]]:
    return {
        "data": Data,
        "model": Model,
        "loss": LossChoice,
        "mixing": Mixing,
        "distil": Distillation,
        "train": Training,
    }


def field(key: str) -> Any:
    """The pydantic field of a key."""
    return _parts()[sections()[key]].model_fields[key]


def parse_config(nested: dict[str, Any]) -> Config:
    """The configuration given as a mapping of sections to keys to values.

    Raises:
        InvalidInput: an unknown section or key, with the nearest known one, or a value that is not allowed

    >>> parse_config({"train": {"epochs": 3}}).train.epochs
    3
    """
    if not isinstance(nested, dict):
        raise InvalidInput(f"configuration: expected a mapping of sections, got {type(nested).__name__}")
    for name, part in nested.items():
        if name not in _parts():
            raise unknown_choice("section", name, _parts())
        if not isinstance(part, dict):
            raise InvalidInput(f"section {name!r}: expected a mapping of keys to values, got {describe_value(part)}")
        for key in part:
            if key not in _parts()[name].model_fields:
                raise unknown_choice(f"key in {name}", key, _parts()[name].model_fields)
            if key in ("loss", "mixup_method") and not isinstance(part[key], str):
                raise unknown_choice(key, part[key], _table(key))
    nested = _with_scheme(nested)
    mixing = nested.get("mixing", {})
    if nested.get("distil", {}).get("teacher") is not None:
        mixing = {**DISTILLATION_MIXING, **mixing}
        nested = {**nested, "mixing": mixing}
    asked_for = "mixup" in mixing or mixing.get("mixup_method", "metrix") != "metrix"
    if not asked_for and not _takes_mixup(nested):
        nested = {**nested, "mixing": {**mixing, "mixup": ()}}
    loss = nested.get("loss", {}).get("loss", LossChoice().loss)
    if loss not in _table("loss"):
        raise unknown_choice("loss", loss, _table("loss"))
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise InvalidInput(_describe_mistake(error)) from error


# what pydantic says is wrong -> what was expected
_EXPECTED = {
    "greater_than": "a number > {gt:g}",
    "greater_than_equal": "a number ≥ {ge:g}",
    "less_than": "a number < {lt:g}",
    "less_than_equal": "a number ≤ {le:g}",
    "literal_error": "{expected}",
    "int_parsing": "an integer",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
}


def _describe_mistake(error: ValidationError) -> str:
    """The first value that is not allowed, with its key, and what was expected."""
    first = error.errors()[0]
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, InvalidInput):  # it names the key and the value already
        return str(reason)
    key = next((str(x) for x in first["loc"][1:]), str(first["loc"][0]))
    expected = _EXPECTED.get(first["type"])
    said = str(reason or first["msg"]) if expected is None else f"expected {expected.format(**first.get('ctx', {}))}"
    return f"{key}: {said}, got {describe_value(first['input'])}"


def _with_scheme(nested: dict[str, Any]) -> dict[str, Any]:
    """Replace a scheme given as the loss by that scheme, with its authors' loss."""
    name = nested.get("loss", {}).get("loss")
    if name not in _table("scheme") or name == "none":
        return nested
    return {
        **nested,
        "loss": {**nested["loss"], "loss": "margin"},
        "train": {**nested.get("train", {}), "scheme": name},
    }


def _takes_mixup(nested: dict[str, Any]) -> bool:
    entry = _table("loss").get(str(nested.get("loss", {}).get("loss", LossChoice().loss)))
    return entry is None or entry.takes_mixup


def read_config(path: Path) -> Config:
    """The configuration in a YAML file; keys that it leaves out have their defaults."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {describe_failure(error)}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} cannot be read: expected text in UTF-8, got other bytes") from error
    return parse_config(parse_yaml(text, str(path)) or {})
