"""What `benchmarks.offline` measures and reports, with sides that compute nothing."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from benchmarks import offline, rounds
from benchmarks.mixes import MIXES, Texts, read, write
from benchmarks.offline import EXACT, Side
from benchmarks.work import Here, Work


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE", 0)
    monkeypatch.setattr(rounds, "TURN", 0)


def rows_of(texts: Texts, _: int = 0) -> np.ndarray:
    """Unit vectors that tell texts apart."""
    rows = np.array([[len(text), text[1]] for text in texts], dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def turned(texts: Texts, _: int = 0) -> np.ndarray:
    """The same by an angle whose cosine is 0.8."""
    return rows_of(texts) @ np.array([[0.8, 0.6], [-0.6, 0.8]], dtype=np.float32)


def here(embed: Callable[[Texts, int], np.ndarray]) -> Callable[[Texts, int], Work]:
    return lambda texts, size: Here(lambda: embed(texts, size))


SIDES = {
    "selvage float32": Side(work=here(rows_of)),
    EXACT: Side(work=here(rows_of), batch_sizes=(32,)),
    "a quantised peer": Side(work=here(turned), batch_sizes=(2, 4), difference=1.0),
}


def case_of(sides: Mapping[str, Side], sizes: Mapping[str, int] = MappingProxyType({})) -> offline.Case:
    return offline.Case("32 tokens", sides, 8, 1, sizes)


@pytest.mark.parametrize(("name", "mean", "longest"), [("32 tokens", 32, 32), ("512 tokens", 512, 512)])
def test_texts_of_one_length(name: str, mean: int, longest: int) -> None:
    """Special tokens count."""
    texts = MIXES[name](8, 1)
    assert {len(text) for text in texts} == {mean} == {longest}
    assert {(text[0], text[-1]) for text in texts} == {(101, 102)}


def test_lognormal_lengths_keep_their_mean() -> None:
    """Though the longest are cut at 512; the same seed gives the same texts."""
    texts = MIXES["lognormal"](64, 1)
    lengths = [len(text) for text in texts]
    assert np.mean(lengths) == pytest.approx(126, abs=1)
    assert max(lengths) == 512
    assert [text.tolist() for text in texts] == [text.tolist() for text in MIXES["lognormal"](64, 1)]


def test_texts_reach_a_peer_as_they_are(tmp_path: Path) -> None:
    """Ids and lengths, through a file."""
    texts = MIXES["lognormal"](5, 1)
    write(texts, str(tmp_path / "texts.npz"))
    found = read(str(tmp_path / "texts.npz"))
    assert [text.tolist() for text in found] == [text.tolist() for text in texts]
    assert {text.dtype for text in found} == {np.dtype(np.int32)}


def test_the_fastest_batch_size_is_chosen() -> None:
    """By the fastest of three runs on half of the texts."""
    asked: list[tuple[int, int]] = []

    class Slow:
        def __init__(self, texts: Texts, size: int) -> None:
            asked.append((len(texts), size))
            self._size = size
            self._times = iter([9.0, 1.0, 9.0] if size == 4 else [2.0, 2.0, 2.0])

        def seconds(self) -> list[float]:
            return [next(self._times), 1.0]

        def outcome(self) -> np.ndarray:
            raise AssertionError("nobody asked for it")

    assert Side(work=Slow, batch_sizes=(2, 4, 8)).best(MIXES["32 tokens"](16, 1)) == 4
    assert asked == [(8, 2), (8, 4), (8, 8)]


def test_rounds_are_interleaved() -> None:
    """A B A B, as often as there are rounds."""
    calls: list[str] = []
    works = {name: Here(lambda name=name: calls.append(name)) for name in "AB"}
    times = rounds.interleaved(works, 2, "rounds")
    assert calls == ["A", "B"] * 2
    assert [len(each) for each in times.values()] == [2, 2]


def test_short_runs_fill_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long one fills it alone, where one is enough."""
    monkeypatch.setattr(rounds, "TURN", 10)

    class Work:
        def __init__(self, *times: list[float]) -> None:
            self._times = iter(times)

        def seconds(self) -> list[float]:
            return next(self._times)

        def outcome(self) -> np.ndarray:
            raise AssertionError("nobody asked for it")

    runs = [[1.0, 1.0], [3.0, 0.5], [2.0, 3.0], [9.0, 9.0]]
    assert rounds.turn(Work(*runs), at_least=1) == runs[:3]
    assert rounds.turn(Work([12.0], [9.0]), at_least=1) == [[12]]
    assert rounds.turn(Work([12.0], [9.0]), at_least=2) == [[12], [9]]


def test_a_case_reports_every_side_and_the_price_of_quantisation() -> None:
    """Cosines against the exact side, chosen batch sizes, and ratios of each of ours over each peer; runs of all
    starts."""
    (case,) = offline.together([offline.measure({"32 tokens": case_of(SIDES)}, rounds) for rounds in (1, 2)])
    assert (case["texts"], case["tokens"], case["longest"]) == (8, 256, 32)
    assert {name: side["lowest_cosine"] for name, side in case["sides"].items()} == {
        "selvage float32": 1.0,
        EXACT: 1.0,
        "a quantised peer": pytest.approx(0.8, abs=1e-6),
    }
    assert [side["batch_size"] for side in case["sides"].values()][:2] == [None, 32]
    assert case["sides"]["a quantised peer"]["batch_size"] in (2, 4)
    assert [(len(side["starts"]), side["runs"]) for side in case["sides"].values()] == [(2, 3)] * 3
    assert set(case["against"]) == {"selvage float32"}
    assert set(case["against"]["selvage float32"]) == {EXACT, "a quantised peer"}


def test_speed_and_ratio_say_the_same() -> None:
    """Of each start the lower quartiles of a run's parts."""
    times = {
        "selvage float32": [[[0.5, 9.0], [8.0, 0.5], [0.5, 0.5], [0.5, 0.5], [7.0, 7.0]], [[1.0, 0.0]]],
        EXACT: [[[3.0]], [[4.0], [2.0], [3.0], [7.0], [9.0]]],
    }
    case = offline.figures_of(case_of({name: SIDES[name] for name in times}).about, times)
    assert case["against"]["selvage float32"][EXACT]["ratio"] == pytest.approx(3)
    assert [side["tokens_per_second"] for side in case["sides"].values()] == [256, 85]


def test_a_side_that_computes_something_else_is_not_timed() -> None:
    """It is named instead."""
    wrong = SIDES | {"selvage float32": Side(work=here(turned))}
    with pytest.raises(AssertionError, match="selvage float32 differs"):
        case_of(wrong)


def test_batch_sizes_are_chosen_once() -> None:
    """Those of the first start are everybody's later; 0 is of a side that makes batches of its own."""
    first = offline.measure({"32 tokens": case_of(SIDES)}, 1)
    given = first.sizes["32 tokens"] | {"a quantised peer": 3}
    second = offline.measure({"32 tokens": case_of(SIDES, given)}, 1)
    assert second.sizes == {"32 tokens": {"selvage float32": 0, EXACT: 32, "a quantised peer": 3}}
