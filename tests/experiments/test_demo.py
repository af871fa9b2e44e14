from __future__ import annotations

from pathlib import Path

import pytest

from metrix.errors import InvalidInput
from metrix.experiments.demo import Contrast, Demonstration, run_demo
from metrix.train.presets import preset
from metrix.train.watching import Watcher


@pytest.fixture(autouse=True)
def _mini(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small glyphs, few of them in a batch."""
    small = preset("glyphs").with_values({"data": "glyphs-mini", "train_classes": 8, "batch_size": 16, "dim": 8})
    monkeypatch.setattr("metrix.experiments.demo.preset", lambda name: small)


def test_goes_on_and_trains_nothing_twice(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818 - an interruption
        pass

    begun: list[str] = []

    def watcher_of(side: str, seed: int) -> Watcher:
        class Noting(Watcher):
            def begin(self, *_: object) -> None:
                begun.append(f"{side} {seed}")
                if begun == ["clean 0", "metrix 0"]:
                    raise Stop

        return Noting()

    with pytest.raises(Stop):
        run_demo(tmp_path, seeds=2, steps=2, watcher_of=watcher_of)
    run_demo(tmp_path, seeds=2, steps=2, watcher_of=watcher_of)
    assert begun == ["clean 0", "metrix 0", "metrix 0", "clean 1", "metrix 1"]
    with pytest.raises(InvalidInput, match="other settings"):
        run_demo(tmp_path, seeds=2, steps=2, lr=0.5)


def test_the_rule() -> None:
    """|mean| > t(0.975, 2) · s / √3, by hand: t = 4.3027."""
    close = Contrast("Recall@1", (50.0, 51.0, 52.0), (51.0, 53.0, 55.0))  # differences 1, 2, 3: s = 1
    assert close.mean == 2.0
    assert close.margin == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert not close.outside
    clear = Contrast("Recall@1", (50.0, 51.0, 52.0), (53.0, 55.0, 57.0))  # 3, 4, 5
    assert clear.outside
    assert clear.better
    worse = Contrast("alignment", (0.1, 0.1, 0.1), (0.2, 0.21, 0.19))
    assert worse.outside
    assert not worse.better


def test_the_conclusion_claims_what_the_seeds_show() -> None:
    def concluded(*after: float) -> str:
        contrast = Contrast("Recall@1", (50.0, 51.0, 52.0), after)
        return Demonstration(Path("demo"), preset("glyphs"), 3, (contrast,)).conclusion

    assert concluded(53.0, 55.0, 57.0).startswith("Metrix helps here: Recall@1 +4.0 points (95 % interval +1.5 to +6.5")
    assert concluded(47.0, 47.0, 47.0).startswith("Metrix harms here: Recall@1 -4.0 points")
    assert concluded(51.0, 53.0, 55.0).startswith("No conclusion: Recall@1 +2.0 points")
