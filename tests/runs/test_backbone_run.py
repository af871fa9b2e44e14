"""A pretrained network as the model of an index, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from metrix.errors import InvalidInput
from metrix.runs.backbone_run import find_model_run
from metrix.runs.trained_model import open_run
from metrix.search import Index
from tests.command_line import refused
from tests.photos import write_photos

NAME = "efficientnet_lite0"


@pytest.fixture(scope="module")
def made(metrix: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backbone")
    photos = write_photos(folder / "photos", 4, 3)
    outcome = metrix("index", NAME, photos, "-o", folder / "photos.index")
    assert outcome.code == 0, outcome.err
    return folder


def test_embeddings_are_the_features_of_the_network(made: Path) -> None:
    from metrix.model.backbones import build_backbone
    from metrix.retrieve.encoder import ImageEncoder

    index = Index.open(made / "photos.index")
    network: Any = build_backbone(NAME, "pretrained").module.eval()
    encoder = ImageEncoder(open_run(made / "photos.model"))
    view = encoder.view(made / "photos" / "kind 1" / "2.jpg")
    with torch.inference_mode():
        expected = F.normalize(network.forward_features(view[None]).mean((2, 3)), dim=1)
    np.testing.assert_allclose(index.get(["kind 1/2.jpg"]).vectors, expected.numpy(), atol=1e-4)
    assert index.dim == 1280


def test_other_verbs_take_the_index_and_its_model(made: Path, metrix: Any) -> None:
    index = made / "photos.index"
    found = metrix("search", index, made / "photos" / "kind 1" / "2.jpg", "-k", 2, "--json")
    assert found.code == 0, found.err
    measured = metrix("evaluate", made / "photos.model", "--json")
    assert measured.code == 0, measured.err
    again = metrix("index", NAME, made / "photos", "-o", index, "--json")  # the same network: nothing to overwrite
    assert again.code == 0, again.err
    exported = metrix("export", made / "photos.model", "--onnx", made / "model.onnx")
    assert exported.code == 0, exported.err


def test_another_backbone_needs_overwrite(made: Path) -> None:
    refused(
        *("index", "efficientnet_lite1", made / "photos", "-o", made / "photos.index"),
        words=("photos.model holds the network efficientnet_lite0, got efficientnet_lite1", "--overwrite"),
    )


def test_what_is_neither_a_run_nor_a_backbone(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"'efficientnet_lite9': expected a run .* or a backbone, got neither: .*did you mean"
    ):
        find_model_run(Path("efficientnet_lite9"), tmp_path / "i.index", "photos")
    assert list(tmp_path.iterdir()) == []
    assert find_model_run(Path("runs/a"), tmp_path / "i", "photos") == Path("runs/a")
