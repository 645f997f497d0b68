"""The fastest way, by a clock that the ways turn themselves."""

from collections.abc import Callable, Iterator

import pytest

from gpu_worker.device import fastest
from gpu_worker.device.fastest import clearly_fastest


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows."""
    shown = [0.0]
    monkeypatch.setattr(fastest.time, "perf_counter", lambda: shown[0])
    return shown


def taking(now: list[float], *seconds: float) -> Callable[[], None]:
    """A way whose runs take so long, one after the other."""
    left: Iterator[float] = iter(seconds)

    def run() -> None:
        now[0] += next(left)

    return run


@pytest.mark.parametrize(
    ("other", "chosen"), [(0.5, "other"), (0.79, "other"), (0.81, "usual"), (1.0, "usual"), (2.0, "usual")]
)
def test_another_way_than_the_usual_one_has_to_be_clearly_faster(now: list[float], other: float, chosen: str) -> None:
    """Wherever it stands among them."""
    for order in (1, -1):
        ways = {name: taking(now, *[each] * 10) for name, each in (("usual", 1.0), ("other", other), ("slow", 9.0))}
        assert clearly_fastest(dict(list(ways.items())[::order]), "usual", rounds=3) == chosen


def test_first_runs_and_disturbed_ones_do_not_count(now: list[float]) -> None:
    """Of each, the shortest later run is compared: the usual way is slow at first, and once more later."""
    ways = {"usual": taking(now, 9.0, 1.0, 9.0), "other": taking(now, 0.1, 0.9, 0.9)}
    assert clearly_fastest(ways, "usual", rounds=2) == "usual"


def test_one_disturbed_stretch_is_not_enough(now: list[float]) -> None:
    """The usual way is slow in two trials of three."""
    ways = {"usual": taking(now, *[9.0] * 5, 1.0, 9.0), "other": taking(now, *[0.9] * 7)}
    assert clearly_fastest(ways, "usual", rounds=2) == "usual"
