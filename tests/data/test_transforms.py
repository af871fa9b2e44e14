from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from metrix import data
from metrix.data.item_seeds import item_keys, seed_torch
from metrix.data.transforms import transforms_for
from metrix.errors import ChoiceError, DataError


def picture(height: int = 90, width: int = 120, channels: int = 3) -> torch.Tensor:
    values = np.random.default_rng(height).integers(0, 256, (channels, height, width), dtype=np.uint8)
    return torch.from_numpy(values)


def reference(*steps: object) -> v2.Compose:
    return v2.Compose(
        [*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.IMAGENET_MEAN, data.IMAGENET_STD)]
    )


def test_inference_is_resize_256_centre_224() -> None:
    image = picture(300, 400)
    expected = reference(v2.Resize(256, antialias=True), v2.CenterCrop(224))(image)
    assert torch.allclose(data.inference_transform()(image), expected, atol=1e-5)


@pytest.mark.parametrize(("size", "resize"), [(64, 73), (112, 128), (28, 32)])
def test_sizes_keep_the_ratio_of_256_to_224(size: int, resize: int) -> None:
    image = picture(150, 200)
    expected = reference(v2.Resize(resize, antialias=True), v2.CenterCrop(size))(image)
    assert torch.allclose(data.inference_transform(size)(image), expected, atol=1e-5)


def test_training_is_random_resized_crop_and_flip() -> None:
    image = picture()
    torch.manual_seed(3)
    expected = reference(v2.RandomResizedCrop(48, antialias=True), v2.RandomHorizontalFlip())(image)
    torch.manual_seed(3)
    assert torch.allclose(data.train_transform(48)(image), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 20_000), (20_001, 1), (3, 40_000)])
def test_a_strip_is_cut_before_it_is_enlarged(shape: tuple[int, int]) -> None:
    image, sizes = picture(*shape), []
    transform = data.inference_transform(28)
    resize = next(step for step in transform.view.transforms if isinstance(step, v2.Resize))
    resize.register_forward_hook(lambda module, given, resized: sizes.append(resized.shape[-2:].numel()))
    seen = transform(image)
    assert sizes[0] < 32 * 32 * 110, "some kilobytes of a file would take gigabytes"
    assert torch.allclose(seen, reference(v2.Resize(32, antialias=True), v2.CenterCrop(28))(image), atol=1e-5)


def test_mean_and_std_are_options() -> None:
    white = torch.full((3, 40, 40), 255, dtype=torch.uint8)
    values = data.inference_transform(32, mean=(0.498,) * 3, std=(0.502,) * 3)(white)
    assert torch.allclose(values, torch.full((3, 32, 32), 1.0), atol=1e-6)


def test_a_batch_is_its_images_one_by_one() -> None:
    images = [picture(60 + n, 80) for n in range(5)]  # of different sizes
    keys = item_keys(0, 0, range(5))
    transform = data.train_transform(32)
    batch = transform.batch(images, keys)
    for n, image in enumerate(images):
        with seed_torch(keys[n]):
            assert torch.equal(batch[n], transform(image))


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 32, "resize": 16}])
def test_sizes_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(
        DataError, match=r"expected a number of pixels ≥ 1, got 0|resize: expected at least size=32, got 16"
    ):
        data.inference_transform(**options)


def glyphs(count: int = 16) -> list[torch.Tensor]:
    image = torch.zeros(1, 28, 28, dtype=torch.uint8)
    image[0, 6:22, 8:12] = 255  # an L, which no turn makes its mirror image
    image[0, 18:22, 8:20] = 255
    return [image] * count


def test_glyphs_move_a_little_each_in_its_own_way() -> None:
    keys = item_keys(0, 0, range(16))
    moved = data.GlyphTransform().batch(glyphs(), keys)
    still = data.GlyphTransform.still().batch(glyphs(), keys)
    assert len({tuple(m.flatten().tolist()) for m in moved}) == 16
    assert torch.equal(still[0], (glyphs()[0].float() / 255 - 0.5) / 0.5)
    flipped = still.flip(-1)
    near, far = (moved - still).abs().mean((1, 2, 3)), (moved - flipped).abs().mean((1, 2, 3))
    assert (near < far).all()


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"degrees": 10, "shear": 0, "scale": (1, 1), "shift": 0}, np.sin(np.deg2rad(10))),
        ({"degrees": 0, "shear": 0, "scale": (1, 1), "shift": 0.1}, 0.2),
        ({"degrees": 0, "shear": 20, "scale": (1, 1), "shift": 0}, np.tan(np.deg2rad(20))),
        ({"degrees": 0, "shear": 0, "scale": (0.8, 1.25), "shift": 0}, 0.25),
    ],
)
def test_moves_stay_in_their_bounds_and_reach_them(options: dict[str, object], bound: float) -> None:
    matrices = data.GlyphTransform(**options).matrices(item_keys(0, 0, range(3000)))  # type: ignore[arg-type]
    largest = (matrices - torch.eye(2, 3)).abs().max().item()
    assert 0.95 * bound < largest <= bound + 1e-6
    assert (matrices.mean(dim=0) - torch.eye(2, 3)).abs().max() < 0.1 * bound  # to both sides alike


def test_a_shift_moves_whole_pixels() -> None:
    class Right(data.GlyphTransform):
        def matrices(self, keys: np.ndarray) -> torch.Tensor:
            return torch.tensor([[[1.0, 0, 2 * 2 / 28], [0, 1, 0]]])

    moved = Right(mean=0, std=1).batch(glyphs(1), item_keys(0, 0, [0]))
    assert torch.allclose(moved[0, :, :, :-2], glyphs(1)[0][:, :, 2:] / 255, atol=1e-4)


def test_glyph_moves_do_not_depend_on_the_batch() -> None:
    keys = item_keys(1, 2, range(16))
    whole = data.GlyphTransform().batch(glyphs(), keys)
    for n in range(16):
        assert torch.equal(data.GlyphTransform().batch(glyphs(1), keys[n : n + 1])[0], whole[n])


def test_the_usual_transforms_by_layout() -> None:
    train, test = transforms_for("glyphs-mini")
    assert isinstance(train, data.GlyphTransform)
    assert train.moves
    assert not test.moves
    train, test = transforms_for("cub", size=64)
    assert train(picture()).shape == test(picture()).shape == (3, 64, 64)
    train, test = transforms_for("folder", size=64, augment="none")
    assert train is test
    with pytest.raises(ChoiceError, match="did you mean 'none'"):
        transforms_for("cub", augment="nine")
