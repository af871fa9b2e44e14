from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from metrix import Embedder
from metrix.errors import InvalidInput
from metrix.model import DataConfig
from metrix.train import Config, train
from metrix.train.frozen_network import FrozenNetwork, open_frozen_network


def network(size: int, mean: tuple[float, ...], std: tuple[float, ...], channels: int = 3) -> Embedder:
    embedder = Embedder("glyphs-cnn" if channels == 1 else "test_resnet.r160_in1k", dim=8, pool="avg")
    embedder.data_config = DataConfig(size, mean, std, channels)
    return embedder


def test_inputs_are_normalised_as_the_frozen_network_expects() -> None:
    pixels = torch.rand(4, 3, 32, 32)
    given = network(32, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    frozen = network(32, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    by_given = v2.functional.normalize(pixels, list(given.data_config.mean), list(given.data_config.std))
    expected = v2.functional.normalize(pixels, list(frozen.data_config.mean), list(frozen.data_config.std))
    net = FrozenNetwork(frozen, given)
    torch.testing.assert_close(net.convert(by_given), expected)
    with torch.no_grad():
        torch.testing.assert_close(net(by_given), frozen(expected))
    assert net.describe_conversion() == "mean 0.4,0.5,0.6 and std 0.2,0.3,0.4 to mean 0.1,0.2,0.3 and std 0.5,0.6,0.7"


def test_colours_become_grey_and_sizes_agree() -> None:
    pixels = torch.rand(4, 3, 40, 40)
    given, frozen = network(40, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)), network(28, (0.5,), (0.5,), 1)
    net = FrozenNetwork(frozen, given)
    inputs = v2.functional.normalize(pixels, list(given.data_config.mean), list(given.data_config.std))
    grey = v2.functional.rgb_to_grayscale(pixels)
    expected = (v2.functional.resize(grey, [28, 28], antialias=True) - 0.5) / 0.5
    torch.testing.assert_close(net.convert(inputs), expected, atol=1e-3, rtol=0)  # torchvision rounds 0.299 to 0.2989
    back = FrozenNetwork(given, frozen)
    assert back.convert(torch.rand(2, 1, 28, 28)).shape == (2, 3, 40, 40)
    assert back.describe_conversion().startswith("28 px to 40 px, grey to colours")


def test_a_mixture_is_the_same_mixture_for_both() -> None:
    net = FrozenNetwork(network(28, (0.5,), (0.5,), 1), network(40, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    a, b = torch.rand(2, 5, 3, 40, 40, dtype=torch.float64)
    torch.testing.assert_close(net.convert(0.3 * a + 0.7 * b), 0.3 * net.convert(a) + 0.7 * net.convert(b))


def test_nothing_of_it_trains_and_pieces_change_nothing(run: Path) -> None:
    trained = Embedder("glyphs-cnn", dim=4)
    whole, pieces = (open_frozen_network(run, "teacher", trained, at_once) for at_once in (None, 3))
    images = torch.randn(7, 1, 28, 28, requires_grad=True)
    vectors = whole(images)
    assert not vectors.requires_grad
    assert not whole.embedder.training
    assert not any(p.requires_grad for p in whole.embedder.parameters())
    assert whole.describe_conversion() == ""
    torch.testing.assert_close(pieces(images), vectors)
    torch.testing.assert_close(vectors, Embedder.load(run)(images).detach())
    assert whole.dim == vectors.shape[1]


def test_refusals(run: Path, small: Config, tmp_path: Path) -> None:
    trained = Embedder("glyphs-cnn", dim=4)
    with pytest.raises(InvalidInput, match=r"teacher: expected a finished run: .* is no run"):
        open_frozen_network(tmp_path / "none", "teacher", trained)
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "config.yaml").write_text("{}")
    with pytest.raises(InvalidInput, match="has no trained model yet; resume it"):
        open_frozen_network(tmp_path / "unfinished", "teacher", trained)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "v.npz", vectors=rng.normal(size=(64, 6)), label=np.repeat(np.arange(8), 8))
    values = {"data": str(tmp_path / "v.npz"), "max_steps": 1, "holdout": 0.0, "dim": 4, "train_classes": None}
    values |= {"backbone": "mlp", "pool": "avg", "mixup": ()}
    of_vectors = train(small.with_values(values), tmp_path / "vectors").path
    with pytest.raises(InvalidInput, match=r"expected a run on images, as the data are, got .* takes vectors of 6"):
        open_frozen_network(of_vectors, "teacher", trained)
    mlp = Embedder("mlp", dim=4, pool="avg", inputs=6)
    assert open_frozen_network(of_vectors, "teacher", mlp)(torch.randn(2, 6)).shape == (2, 4)
    with pytest.raises(InvalidInput, match="expected a run on vectors of 5 numbers"):
        open_frozen_network(of_vectors, "teacher", Embedder("mlp", dim=4, pool="avg", inputs=5))


def test_inputs_in_bfloat16_are_converted_in_float32() -> None:
    net = FrozenNetwork(Embedder("glyphs-cnn", dim=8), trained=Embedder("test_vit", dim=8, pool="avg"))
    x = torch.rand(2, 3, 160, 160).bfloat16()
    torch.testing.assert_close(net.convert(x), net.convert(x.float()))
