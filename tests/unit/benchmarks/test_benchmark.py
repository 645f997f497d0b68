"""Sides in turns, and the figures of their rounds."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import benchmark, result
from benchmarks.benchmark import ALONE, SHARE, Options, Turn, case, interleaved, shares, spread


def test_every_side_has_its_turn_in_each_round_and_every_other_round_goes_backwards() -> None:
    """A B, B A, A B; a case after the other. Another product that fails a case is left out there, with its reason."""
    order: list[str] = []

    def counting(name: str) -> Turn:
        return lambda: (order.append(name), {"tokens/s": float(len(order))})[1]

    turns = {"short": {name: counting(name) for name in "ab"}, "long": {"c": counting("c")}}
    figures = interleaved(turns, 3, "a", {}, pause=0)
    assert "".join(order) == "abc" + "bac" + "abc"
    assert [row["tokens/s"] for row in figures["short"]["b"]] == [2, 4, 8]
    absent: dict[str, str] = {}
    failing = {"long": {"a": counting("a"), "b": lambda: sys.exit("the clients ended with 1")}}
    assert list(interleaved(failing, 2, "a", absent, pause=0)["long"]) == ["a"]
    assert absent == {"b, long": "the clients ended with 1"}
    with pytest.raises(SystemExit, match="the clients ended with 1"):
        interleaved(failing, 2, "b", absent, pause=0)


def test_a_ratio_is_taken_round_by_round() -> None:
    """A machine that is ten times slower in one round changes no ratio. A side of which nothing kept its deadline, or
    whose answers had no latency in one round, makes none. A spread is the median with quartiles, to four digits."""
    assert spread([4, 1, 2, 3, 1000]) == {"median": 3, "lower": 2, "upper": 4}
    assert spread([1 / 3]) == {"median": 0.3333, "lower": 0.3333, "upper": 0.3333}
    sides = {"ours": [{"tokens/s": 30.0}, {"tokens/s": 3.0}], "theirs": [{"tokens/s": 10.0}, {"tokens/s": 1.0}]}
    made = case("short", sides, "ours", ("tokens/s", "p50 ms"))
    assert made["ours_over"] == {"theirs": {"tokens/s": {"median": 3, "lower": 3, "upper": 3}}}
    assert made["sides"]["ours"]["tokens/s"]["median"] == 16.5
    lost: list[dict[str, float]] = [{"goodput/s": 0.0}, {"goodput/s": 0.0, "p50 ms": 5.0}]
    kept: list[dict[str, float]] = [{"goodput/s": 9.0, "p50 ms": 4.0}] * 2
    made = case("overload", {"ours": kept, "theirs": lost}, "ours", ("goodput/s", "p50 ms"))
    assert made["ours_over"] == {}
    assert made["sides"]["theirs"]["p50 ms"]["median"] == 5


def test_shares_are_of_the_products_of_the_same_round() -> None:
    """A side without the rate has none, and products alone are no side to compare with."""
    sides = {
        "ours float32": [{"tokens/s": 50.0}, {"tokens/s": 10.0}],
        "null": [{"requests/s": 1.0}, {"requests/s": 1.0}],
        ALONE: [{"tokens/s": 100.0}, {"tokens/s": 20.0}],
    }
    shared = shares(sides, "tokens/s")
    assert [row[SHARE] for row in shared["ours float32"]] == [50, 50]
    assert all(SHARE not in row for side in ("null", ALONE) for row in shared[side])
    assert case("short", shared, "ours float32", ("tokens/s",))["ours_over"] == {}


class Fake(ModuleType):
    """A benchmark whose sides compute nothing; counts how often everybody was started."""

    OUR_SIDE, RATE, COMPARED, started = "ours", "tokens/s", ("tokens/s",), 0

    @contextlib.contextmanager
    def turns(self, options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
        self.started += 1
        assert options.folder.is_dir()
        yield {"short": {"ours": lambda: {"tokens/s": 30.0 * self.started}, "theirs": lambda: {"tokens/s": 10.0}}}


def test_a_benchmark_starts_everybody_anew_and_writes_one_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of all starts count; machine, commit and settings are told; the table has every side."""
    fake = Fake("benchmarks.fake", "Nothing against nothing.\n\nAt length.")
    measured = benchmark.run(fake, "fake", {"threads": 1, "seconds": 0, "against": []}, rounds=2, starts=2)
    assert fake.started == 2
    assert measured["says"] == "Nothing against nothing."
    assert measured["settings"] == {"threads": 1, "rounds": 2, "starts": 2}
    assert set(measured["machine"]) == {"processor", "cores", "python", "versions", "commit"}
    assert measured["cases"][0]["sides"]["ours"]["tokens/s"] == {"median": 45, "lower": 30, "upper": 60}
    result.write(measured, tmp_path / "fake.json")
    monkeypatch.setattr(result, "RESULTS", tmp_path)
    assert result.read("fake") == measured
    assert [path.name for path in tmp_path.iterdir()] == ["fake.json"]
    assert "| tokens/s | 45 (30 to 60) | 10 |" in result.tables(measured)
    assert "| tokens/s: ours over it |  | 4.5 (3 to 6) |" in result.tables(measured)
