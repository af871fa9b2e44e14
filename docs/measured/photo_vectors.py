"""Write the vectors of photos on which reality-check.md trains: features of a frozen network, averaged over places.

python docs/measured/photo_vectors.py CUB_200_2011 package/ResNet50/model.json birds.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from metrix import data
from metrix.data.transforms import inference_transform
from metrix.model import Embedder

SIZE, BATCH = 128, 32


def embed(embedder: Embedder, images: data.Part, name: str) -> np.ndarray:
    """The averaged features of all images."""
    config = embedder.data_config
    seen = images.with_transform(inference_transform(SIZE, mean=config.mean, std=config.std))
    found = []
    with torch.inference_mode():
        for start in tqdm(range(0, len(seen), BATCH), desc=name):
            batch = torch.stack([seen[row][0] for row in range(start, min(start + BATCH, len(seen)))])
            found.append(embedder.features(batch).mean(dim=(2, 3)).numpy())
    return np.concatenate(found)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("data", "weights", "output"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    photos = data.open(str(options.data))
    embedder = Embedder("resnet50_v1", dim=1, weights=options.weights, image_size=SIZE).eval()
    parts = {"train": photos.train, "test": photos.test}
    np.savez(
        options.output,
        vectors=np.concatenate([embed(embedder, part, name) for name, part in parts.items()]),
        label=np.concatenate([np.array(part.class_names)[part.labels] for part in parts.values()]),
        split=np.repeat(list(parts), [len(part) for part in parts.values()]),
    )


if __name__ == "__main__":
    main()
