"""MetrixLoss with images: a small CLIP that is made here, in the multimodal trainer of sentence-transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from metrix import Metrix, losses
from metrix.errors import InvalidInput
from metrix.sentence_transformers import MetrixLoss
from tests.photos import draw_photo

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A CLIP of one layer for images and one for texts, with random weights."""
    pytest.importorskip("sentence_transformers", minversion="5.4")
    from sentence_transformers import SentenceTransformer
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    folder = str(tmp_path_factory.mktemp("clip"))
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    tokenizer = CLIPTokenizer(vocab={word: n for n, word in enumerate(words)}, merges=[], model_max_length=16)
    pictures = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    layers = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    text = {**layers, **ends, "vocab_size": len(words), "max_position_embeddings": 16}
    torch.manual_seed(0)
    config = CLIPConfig(text_config=text, vision_config={**layers, "image_size": 16, "patch_size": 8}, projection_dim=8)
    CLIPModel(config).save_pretrained(folder)
    CLIPProcessor(pictures, tokenizer).save_pretrained(folder)
    return SentenceTransformer(folder, device="cpu").eval()


def draw_images(number: int = 0) -> list[Any]:
    return [draw_photo(k, n + 2 * number, 24) for k in range(3) for n in range(2)]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize("mixup", ["embed", "feature"])
def test_a_batch_of_images_is_metrix_of_their_embeddings(network: Any, mixup: str) -> None:
    column = network.preprocess(draw_images())
    assert "pixel_values" in column
    found = MetrixLoss(network, losses.MultiSimilarity(), mixup=mixup, generator=seeded())([column], LABELS)
    vectors = network(network.preprocess(draw_images()))["sentence_embedding"]
    expected = Metrix(losses.MultiSimilarity(), mixup="embed", generator=seeded())(vectors, LABELS)
    if mixup == "embed":
        torch.testing.assert_close(found, expected)
    else:  # what is mixed is what CLIP gives, before it is normalised
        assert found > losses.MultiSimilarity()(vectors, LABELS)
    weight = next(p for name, p in network.named_parameters() if "vision" in name and "q_proj.weight" in name)
    (gradient,) = torch.autograd.grad(found, weight)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0


def test_an_image_and_the_text_in_its_row_belong_together(network: Any) -> None:
    columns = [network.preprocess(draw_images()), network.preprocess([f"thing {n}" for n in "abcdef"])]
    loss = MetrixLoss(network, losses.Contrastive(), mixup="none")
    vectors = [network({**column})["sentence_embedding"] for column in columns]
    expected = losses.Contrastive()(torch.cat(vectors), torch.arange(6).repeat(2))
    torch.testing.assert_close(loss(columns), expected)
    # with labels, all images and texts of a class belong together
    together = losses.Contrastive()(torch.cat(vectors), LABELS.repeat(2))
    torch.testing.assert_close(loss(columns, LABELS), together)


def test_inputs_are_not_mixed(network: Any) -> None:
    with pytest.raises(InvalidInput, match="words, or images in the form that the model takes"):
        MetrixLoss(network, losses.Contrastive(), mixup="input")


@pytest.mark.parametrize("columns", ["image", "image and text"])
def test_in_the_multimodal_trainer_the_loss_falls(network: Any, columns: str, tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Image, Value
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    model = copy.deepcopy(network).train()
    labels = [k for k in range(4) for _ in range(4)]
    data: dict[str, list[Any]] = {"image": [draw_photo(k, n, 24) for k in range(4) for n in range(4)]}
    features = {"image": Image()}
    if columns == "image":
        data["label"] = labels
        features["label"] = ClassLabel(names=list("abcd"))
    else:
        data["title"] = [f"{'abcd'[k]} {k}" for k in labels]
        features["title"] = Value("string")
    loss = MetrixLoss(model, losses.Contrastive(), mixup="embed", parts=True, generator=seeded())
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        batch_sampler="group_by_label" if columns == "image" else "batch_sampler",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    dataset = Dataset.from_dict(data, features=Features(features))
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "clean" in line]
    assert len(lines) == 8
    assert sum(line["loss"] for line in lines[-2:]) < sum(line["loss"] for line in lines[:2])
