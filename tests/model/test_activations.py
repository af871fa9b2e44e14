from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from metrix.errors import ChoiceError, InvalidInput
from metrix.model import ActivationCache, Embedder
from metrix.model import activations as module


def image(index: int, view: int) -> Tensor:
    return torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(1000 * view + index))


def plain(x: Tensor) -> Tensor:
    """A trunk whose values tell which image they are of."""
    return x[:, 0, :2, :3]


class Counting:
    def __init__(self, fail_after: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.fail_after = fail_after

    def __call__(self, index: int, view: int) -> Tensor:
        if self.fail_after is not None and len(self.asked) >= self.fail_after:
            raise KeyboardInterrupt
        self.asked.append((index, view))
        return image(index, view)


def all_pairs(items: int, views: int) -> list[tuple[int, int]]:
    return [(index, view) for view in range(views) for index in range(items)]


@pytest.mark.parametrize("workers", [0, 2])
def test_reads_what_the_trunk_gave(tmp_path: Path, workers: int) -> None:
    embedder = Embedder("glyphs-cnn", dim=4, freeze_to="stage3").eval()
    cache = ActivationCache.build(
        tmp_path, "k", items=7, views=3, source=image, trunk=embedder.trunk, block=3, workers=workers
    )
    assert (cache.items, cache.views, cache.shape) == (7, 3, (64, 7, 7))
    assert cache.nbytes == 7 * 3 * 64 * 7 * 7 * 4
    pairs = [(6, 2), (0, 0), (3, 1), (6, 2)]
    expected = torch.cat([embedder.trunk(image(*pair).unsqueeze(0)) for pair in pairs])
    got = cache.read(pairs)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        embedder.features_from(got), embedder.features(torch.stack([image(*pair) for pair in pairs]))
    )


def test_every_pair_is_at_its_place_exactly(tmp_path: Path) -> None:
    cache = ActivationCache.build(tmp_path, "k", items=5, views=4, source=image, trunk=plain, block=2)
    pairs = all_pairs(5, 4)
    assert torch.equal(cache.read(pairs), plain(torch.stack([image(*pair) for pair in pairs])))


def test_float16_takes_half_the_space_and_rounds(tmp_path: Path) -> None:
    full = ActivationCache.build(tmp_path, "k", items=3, source=image, trunk=plain)
    half = ActivationCache.build(tmp_path, "k", items=3, source=image, trunk=plain, dtype="float16")
    assert half.nbytes * 2 == full.nbytes
    pairs = all_pairs(3, 1)
    assert torch.equal(half.read(pairs), full.read(pairs).half().float())


def test_a_complete_cache_is_only_opened(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    ActivationCache.build(tmp_path, "k", items=5, views=2, source=first, trunk=plain, block=2)
    again = ActivationCache.build(tmp_path, "k", items=5, views=2, source=second, trunk=plain, block=2)
    assert len(first.asked) == 11  # each once, and the first image for the shape
    assert second.asked == []
    assert torch.equal(again.read([(4, 1)]), plain(image(4, 1).unsqueeze(0)))


def test_other_keys_do_not_meet(tmp_path: Path) -> None:
    one = ActivationCache.build(tmp_path, "a", items=2, source=image, trunk=plain)
    two = ActivationCache.build(tmp_path, "b", items=2, source=image, trunk=lambda x: plain(x) + 1)
    assert torch.equal(one.read([(0, 0)]) + 1, two.read([(0, 0)]))


def test_an_interruption_loses_only_the_block_under_way(tmp_path: Path) -> None:
    arguments = {"items": 10, "views": 2, "trunk": plain, "block": 4}
    with pytest.raises(KeyboardInterrupt):
        ActivationCache.build(tmp_path, "k", source=Counting(fail_after=1 + 4 + 4 + 1), **arguments)  # type: ignore[arg-type]
    later = Counting()
    seen: list[tuple[int, int]] = []
    cache = ActivationCache.build(
        tmp_path, "k", source=later, progress=lambda done, total: seen.append((done, total)), **arguments
    )  # type: ignore[arg-type]
    assert later.asked == [*all_pairs(10, 2)[8:]]
    assert seen == [(8, 20), (10, 20), (14, 20), (18, 20), (20, 20)]
    pairs = all_pairs(10, 2)
    assert torch.equal(cache.read(pairs), plain(torch.stack([image(*pair) for pair in pairs])))


def test_a_killed_build_resumes(tmp_path: Path) -> None:
    """A process that is really killed; the blocks that it had marked are not computed again."""
    program = f"""
import time, torch
from metrix.model import ActivationCache
def source(index, view):
    time.sleep(0.02)
    return torch.full((1, 2, 2), float(100 * view + index))
ActivationCache.build({str(tmp_path)!r}, "k", items=200, source=source, trunk=lambda x: x, block=5,
                      progress=lambda done, total: print(done, flush=True))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 15:
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    asked: list[int] = []

    def source(index: int, view: int) -> Tensor:
        asked.append(index)
        return torch.full((1, 2, 2), float(100 * view + index))

    cache = ActivationCache.build(tmp_path, "k", items=200, source=source, trunk=lambda x: x, block=5)
    assert min(asked) >= 15
    assert torch.equal(cache.read(all_pairs(200, 1))[:, 0, 0, 0], torch.arange(200.0))


def test_views_can_be_added(tmp_path: Path) -> None:
    ActivationCache.build(tmp_path, "k", items=5, views=1, source=image, trunk=plain, block=2)
    more = Counting()
    cache = ActivationCache.build(tmp_path, "k", items=5, views=3, source=more, trunk=plain, block=4)
    assert more.asked == all_pairs(5, 3)[5:]
    pairs = all_pairs(5, 3)
    assert torch.equal(cache.read(pairs), plain(torch.stack([image(*pair) for pair in pairs])))
    fewer = ActivationCache.build(tmp_path, "k", items=5, views=2, source=more, trunk=plain)
    assert fewer.views == 2


def test_a_data_file_that_was_cut_is_built_again(tmp_path: Path) -> None:
    cache = ActivationCache.build(tmp_path, "k", items=5, source=image, trunk=plain)
    with (cache.folder / "activations.bin").open("r+b") as file:
        file.truncate(10)
    again = ActivationCache.build(tmp_path, "k", items=5, source=image, trunk=plain)
    assert torch.equal(again.read([(4, 0)]), plain(image(4, 0).unsqueeze(0)))


def test_a_damaged_description_is_told(tmp_path: Path) -> None:
    cache = ActivationCache.build(tmp_path, "k", items=2, source=image, trunk=plain)
    (cache.folder / "description.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"is damaged .*delete its folder"):
        ActivationCache.build(tmp_path, "k", items=2, source=image, trunk=plain)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((5, 0), "index: expected 0 to 4 .*got 5"),
        ((0, 2), "view: expected 0 to 1 .*got 2"),
        ((-1, 0), "index: .* got -1"),
    ],
)
def test_reading_what_is_not_there(tmp_path: Path, pair: tuple[int, int], message: str) -> None:
    cache = ActivationCache.build(tmp_path, "k", items=5, views=2, source=image, trunk=plain)
    with pytest.raises(InvalidInput, match=message):
        cache.read([pair])
    assert cache.read([]).shape == (0, 2, 3)


def test_no_room_is_told_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = module.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    source = Counting()
    with pytest.raises(InvalidInput, match=r"GB free; use fewer views, dtype='float16'"):
        ActivationCache.build(tmp_path, "k", items=1000, source=source, trunk=plain)
    assert source.asked == [(0, 0)]


def test_values_past_float16(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not finite in float16; use dtype='float32'"):
        ActivationCache.build(tmp_path, "k", items=2, source=image, trunk=lambda x: plain(x) + 1e6, dtype="float16")


def test_images_of_two_sizes_of_activations(tmp_path: Path) -> None:
    sizes = iter([2, 2, 3])
    with pytest.raises(InvalidInput, match="all images must have one size"):
        ActivationCache.build(tmp_path, "k", items=2, source=image, trunk=lambda x: x[:, 0, 0, : next(sizes)], block=1)


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ChoiceError, match="dtype of activations 'float61'; did you mean 'float16'"):
        ActivationCache.build(tmp_path, "k", items=2, source=image, trunk=plain, dtype="float61")
    with pytest.raises(InvalidInput, match="views: expected an integer ≥ 1, got 0"):
        ActivationCache.build(tmp_path, "k", items=2, source=image, trunk=plain, views=0)


def test_workers_load_the_next_block_meanwhile_and_no_more(tmp_path: Path) -> None:
    """At most one block ahead: memory stays bounded however slow the trunk is."""
    source = Counting()
    ahead: list[int] = []
    computed = 0

    def slow(x: Tensor) -> Tensor:
        nonlocal computed
        if len(x) == 4:
            time.sleep(0.05)
            computed += len(x)
            ahead.append(len(source.asked) - 1 - computed)  # the first was asked for the shape
        return plain(x)

    ActivationCache.build(tmp_path, "k", items=24, source=source, trunk=slow, block=4, workers=2)
    assert max(ahead) == 4
