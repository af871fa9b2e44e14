"""Metrix as a loss of sentence-transformers: texts, images, or whatever else its models embed.

    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from metrix import losses
    from metrix.sentence_transformers import MetrixLoss

    loss = MetrixLoss(model, losses.MultiSimilarity(), mixup="embed")
    SentenceTransformerTrainer(model=model, train_dataset=dataset, loss=loss).train()

`pip install "metrix[text]"` installs sentence-transformers, which this module itself does not import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metrix.core.loss import ProxyLoss
from metrix.core.metrix import Metrix
from metrix.core.objective import Clean, Objective, StepOutput
from metrix.core.tensors import INTEGERS
from metrix.core.validation import as_class_numbers, at_least_float32
from metrix.errors import InvalidInput, LabelError, ModelError, ShapeError
from metrix.messages import first_few

__all__ = ["MetrixLoss"]

EMBEDDING = "sentence_embedding"  # the key of vectors in what modules of sentence-transformers pass on
NO_MIXUP = "none"
CITATION = """
@inproceedings{venkataramanan2022it,
    title={It Takes Two to Tango: Mixup for Deep Metric Learning},
    author={Shashanka Venkataramanan and Bill Psomas and Ewa Kijak and Laurent Amsaleg and Konstantinos Karantzalos
            and Yannis Avrithis},
    booktitle={International Conference on Learning Representations},
    year={2022}
}
"""


class MetrixLoss(nn.Module):
    """The clean loss of a batch of texts plus `strength` times the loss of mixed ones, for the trainer's `loss`.

    In place of texts, columns may have images or whatever else a multimodal model takes (sentence-transformers 5.4 or
    newer); a column of images and one of texts are mixed in the space that they share.

    The dataset has either one column of texts (or several, all of the same class) and a column `label` of integers, or
    two columns and no labels: then the two texts of a row belong together, and those of other rows are negatives.
    Batches need several texts of a class: `batch_sampler=BatchSamplers.GROUP_BY_LABEL` draws such ones.

    Args:
        model: a `SentenceTransformer`.
        loss: one of `metrix.losses`, or a pytorch-metric-learning loss of known form. Its own parameters, such as
            proxies, are trained with the model; `learning_rate_mapping={"proxies": 1e-2}` gives them a rate.
        mixup: "embed" mixes embeddings; "feature" mixes pooled vectors, and the modules behind the pooling (dense
            layers, normalisation) embed the mixture; of several, one is drawn in each step. "none" is the clean loss.
        parts: return the clean and the weighted mixed loss apart, which the trainer adds up and logs.
        settings: of `metrix.Metrix`, such as `strength`, `alpha`, `pairs` and `generator`.

    >>> from metrix import losses
    >>> class Words(nn.EmbeddingBag):  # stands for a SentenceTransformer
    ...     def forward(self, texts):
    ...         return {"sentence_embedding": super().forward(texts["input_ids"])}
    >>> loss = MetrixLoss(Words(50, 8), losses.MultiSimilarity())
    >>> batch = {"input_ids": torch.randint(0, 50, (6, 4))}
    >>> loss([batch], torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module,
        mixup: str | Sequence[str] = "embed",
        *,
        parts: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise InvalidInput(f"model: expected a SentenceTransformer, got {type(model).__name__}")
        self.model, self.parts = model, parts
        self.objective = _build_objective(loss, mixup, settings)

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """The loss of a batch.

        Args:
            sentence_features: what the model takes, for each column of texts.
            labels: (n,), integers, one for each row; None with two columns whose texts belong together.

        Returns:
            A scalar; with `parts`, its two parts `clean` and `mixed`.
        """
        columns = _check_columns(sentence_features)
        mixes_features = isinstance(self.objective, Metrix) and "feature" in self.objective.mixup
        found = [_embed(self.model, column, mixes_features) for column in columns]
        shapes = [tuple(one.pooled.shape) for one in found]
        if len(set(shapes)) > 1:
            raise ShapeError(
                "sentence_features: expected columns with as many texts as the dataset has rows, got embeddings of the "
                f"shapes {' and '.join(map(str, shapes))}"
            )
        classes = self._classes(labels, len(found[0].pooled), len(columns)).to(found[0].pooled.device)
        out = self.objective.step(_Rest(found[0].rest), torch.cat([one.pooled for one in found]), classes)
        return _parts(out) if self.parts else out.loss

    def _classes(self, labels: Tensor | None, rows: int, columns: int) -> Tensor:
        """The class of each text, column after column."""
        if labels is not None:
            numbers = as_class_numbers("labels", labels)
            if numbers.shape not in ((rows,), (rows, 1)):
                given = len(numbers) if numbers.ndim == 1 else f"a tensor of shape {tuple(numbers.shape)}"
                raise ShapeError(f"labels: expected one for each of {rows} rows, got {given}")
            if numbers.dtype not in INTEGERS:
                raise LabelError(
                    f"labels: expected integers, the class of each row, got {numbers.dtype}; similarities of pairs are "
                    "for losses such as CosineSimilarityLoss of sentence-transformers"
                )
            return numbers.flatten().to(torch.int64).repeat(columns)
        if columns != 2:
            raise LabelError(
                f"labels: expected a column 'label' of integers with {columns} column{'s' * (columns != 1)} of texts, "
                "got none; without labels, a dataset has two columns, whose texts of a row belong together"
            )
        if isinstance(self.objective.loss, ProxyLoss):
            raise LabelError(
                f"labels: expected a column 'label' of integers with {type(self.objective.loss).__name__}, which has "
                "a proxy for each class, got none; add labels, or choose a loss of pairs"
            )
        return torch.arange(rows).repeat(2)

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the card of the model."""
        about: dict[str, Any] = {"loss": repr(self.objective.loss)}
        if not isinstance(self.objective, Metrix):
            return {**about, "mixup": NO_MIXUP}
        names = ("mixup", "pairs", "strength", "alpha", "lam_per")
        return {**about, **{name: getattr(self.objective, name) for name in names}}

    @property
    def citation(self) -> str:
        """BibTeX of the paper, for the card of the model."""
        return CITATION


def _build_objective(loss: nn.Module, mixup: str | Sequence[str], settings: dict[str, Any]) -> Objective:
    names = (mixup,) if isinstance(mixup, str) else tuple(mixup)
    if names in ((NO_MIXUP,), ()):
        if settings:
            raise InvalidInput(f"mixup: expected a mixup type with {', '.join(settings)}, got {NO_MIXUP!r}")
        return Clean(loss)
    if "input" in names:
        raise InvalidInput(
            "mixup: expected 'embed', 'feature' or both, got 'input'; inputs are words, or images in the form that the "
            "model takes, which cannot be interpolated"
        )
    return Metrix(loss, mixup=names, **settings)


def _parts(out: StepOutput) -> dict[str, Tensor]:
    """The two parts of a loss, which add up to it."""
    return {"clean": out.clean, "mixed": out.loss - out.clean}


class _Embedded(NamedTuple):
    """A batch of texts, as the vectors to mix: (n, d)."""

    pooled: Tensor  # after the pooling, or embeddings where these are mixed
    rest: list[nn.Module]  # from there to embeddings


def _embed(model: nn.Module, column: dict[str, Tensor], keep_pooled: bool) -> _Embedded:
    """Embed a column in one pass of the model, which may be wrapped (DistributedDataParallel, torch.compile).

    The pooled vectors are the output of the first module that gives vectors of whole texts.
    """
    modules = list(_unwrap(model).children())
    pooled: list[tuple[int, Tensor]] = []

    def watch(number: int) -> Any:
        def record(module: nn.Module, args: object, output: object) -> None:
            if not pooled and isinstance(output, Mapping) and EMBEDDING in output:
                pooled.append((number, output[EMBEDDING]))

        return modules[number].register_forward_hook(record)

    handles = [watch(number) for number in range(len(modules))] if keep_pooled else []
    try:
        output = model(column)
    except KeyError as error:
        raise InvalidInput(
            f"sentence_features: expected what the model takes, with {error}, got a dictionary with "
            f"{first_few(column) or 'nothing'}; the data collator of the trainer, or model.preprocess(texts), makes it"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    embeddings = _check_embeddings(output)
    if not keep_pooled:
        return _Embedded(embeddings, [])
    if not pooled:
        raise ModelError(
            f"mixup='feature': expected a model whose modules pass on a dictionary with {EMBEDDING!r}, as those of "
            f"sentence-transformers do, got {type(_unwrap(model)).__name__}; choose mixup='embed'"
        )
    number, vectors = pooled[0]
    _check_embeddings({EMBEDDING: vectors})
    return _Embedded(vectors, modules[number + 1 :])


def _check_columns(sentence_features: Any) -> list[dict[str, Tensor]]:
    """A dictionary for each column of texts."""
    expected = "sentence_features: expected a list with a dictionary of tensors for each column of texts, such as"
    example = "[model.preprocess(texts)]"
    if isinstance(sentence_features, Mapping | str | bytes | Tensor) or not isinstance(sentence_features, Iterable):
        raise InvalidInput(f"{expected} {example}, got {type(sentence_features).__name__}")
    columns = list(sentence_features)
    if not columns:
        raise ShapeError(f"{expected} {example}, got none")
    wrong = [type(column).__name__ for column in columns if not isinstance(column, Mapping)]
    if wrong:
        raise InvalidInput(f"{expected} {example}, got a list with {first_few(wrong)}")
    for column in columns:
        _check_tokens(column)
    return columns


def _check_tokens(column: Mapping[str, Any]) -> None:
    """Tokens of texts, if it has any, are tensors, and the mask is of their shape."""
    shapes = {}
    for name in ("input_ids", "attention_mask"):
        if name in column:
            if not isinstance(column[name], Tensor):
                raise InvalidInput(
                    f"{name} of sentence_features: expected a tensor of shape (texts, tokens), got "
                    f"{type(column[name]).__name__}; model.preprocess(texts) pads texts and makes it"
                )
            shapes[name] = tuple(column[name].shape)
    if len(set(shapes.values())) > 1:
        given = " and ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
        raise ShapeError(f"sentence_features: expected tokens and a mask of the same shape, got {given}")


def _check_embeddings(output: Any) -> Tensor:
    """The vectors (n, d) in what a model gives."""
    if not isinstance(output, Mapping) or EMBEDDING not in output:
        given = f"a dictionary with {first_few(output)}" if isinstance(output, Mapping) else type(output).__name__
        raise ModelError(
            f"model: expected a SentenceTransformer, which gives a dictionary with {EMBEDDING!r}, got {given}; end its "
            "modules with a pooling"
        )
    embeddings = output[EMBEDDING]
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
        given = str(tuple(embeddings.shape)) if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise ShapeError(
            f"{EMBEDDING} of the model: expected a tensor of shape (texts, dimensions), got {given}; end its modules "
            "with a pooling"
        )
    return embeddings


def _unwrap(model: nn.Module) -> nn.Module:
    for name in ("module", "_orig_mod"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return _unwrap(inner)
    return model


class _Rest(nn.Module):
    """A model whose features are the vectors to mix, and whose head are the modules behind them."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.rest = nn.ModuleList(modules)

    def features(self, pooled: Tensor) -> Tensor:
        """The pooled vectors, as they are."""
        return pooled

    def head(self, pooled: Tensor) -> Tensor:
        """Unit embeddings of pooled vectors."""
        passed: dict[str, Tensor] = {EMBEDDING: pooled}
        for module in self.rest:
            try:
                passed = module(passed)
            except KeyError as error:
                raise ModelError(
                    f"mixup='feature': expected modules behind the pooling that need only {EMBEDDING!r}, got "
                    f"{type(module).__name__}, which needs {error}; choose mixup='embed'"
                ) from error
        return nn.functional.normalize(at_least_float32(passed[EMBEDDING]), dim=1)
