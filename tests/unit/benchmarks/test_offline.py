"""The choice of batches, cosines, and which side is compared with which."""

from typing import Any

import numpy as np
import pytest

from benchmarks.offline import EXACT, OUR_SIDE, SIDES, Side, choices, cosines
from benchmarks.rounds import ALONE, SHARE, case, counterpart, number_format, shares


class FakePeer:
    """A peer whose time depends on its arguments, and whose rows are the ones that it was made with."""

    def __init__(self, rows: Any = None) -> None:
        self.rows, self.runs = rows, list[dict[str, Any]]()

    def run(self, side: str, turn: float, **arguments: Any) -> dict[str, float]:
        self.runs.append(arguments)
        return {"seconds": abs(arguments["batch_size"] - 8) + arguments.get("streams", 0) / 10}

    def outcome(self, side: str, **arguments: Any) -> Any:
        return np.array(self.rows)


def test_choices_are_those_that_the_texts_allow() -> None:
    """No batch is larger than the texts are many, and several at a time need as many."""
    runtime, theirs = Side(process="x", sizes=(2, 8), streams=True), Side(process="x", sizes=(2, 8))
    assert choices(Side(process="x"), 8, 2) == [{}]
    assert choices(theirs, 4, 2) == [{"batch_size": 2}, {"batch_size": 4}]
    assert choices(runtime, 1, 2) == [{"batch_size": 1, "streams": 1}]
    assert choices(runtime, 8, 1) == [{"batch_size": 2, "streams": 1}, {"batch_size": 8, "streams": 1}]
    assert [tuple(each.values()) for each in choices(runtime, 8, 2)] == [(2, 1), (2, 2), (8, 1)]


def test_cosines_are_to_the_exact_side_whatever_the_length_of_a_row() -> None:
    """Mean and lowest; a float32 side whose numbers differ is an error that names it."""
    exact, near = [[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.6, 0.8]]
    int8 = "OpenVINO int8, best batch"
    peers: dict[str, Any] = {SIDES[EXACT].process: FakePeer(exact), SIDES[int8].process: FakePeer(near)}
    found = cosines(peers, {EXACT: {}, int8: {}})
    assert found[EXACT] == {"mean cosine": 1, "lowest cosine": 1}
    assert found[int8] == pytest.approx({"mean cosine": 0.9, "lowest cosine": 0.8})
    peers[SIDES[OUR_SIDE].process] = FakePeer([[1.0, 1e-3], [0.0, 1.0]])
    with pytest.raises(AssertionError, match=OUR_SIDE):
        cosines(peers, {EXACT: {}, OUR_SIDE: {}})


def test_a_side_is_compared_with_ours_in_its_number_format() -> None:
    """With float32's where ours has none in it; our other formats with our float32; shares are of products in it."""
    assert [number_format(name) for name in (EXACT, "selvage int8", "OpenVINO bfloat16, best batch")] == [
        "float32",
        "int8",
        "bfloat16",
    ]
    sides = {OUR_SIDE: 100.0, "selvage int8": 300.0, "OpenVINO int8": 150.0, "OpenVINO bfloat16": 200.0}
    assert counterpart("OpenVINO bfloat16", sides, "selvage") == "selvage"
    limits = {ALONE: 200.0, f"{ALONE}, int8": 600.0}
    figures = {name: [{"tokens/s": rate}] for name, rate in (sides | limits).items()}
    told = shares(figures, "tokens/s")
    assert {name: told[name][0].get(SHARE) for name in sides} == dict(zip(sides, (50, 50, 25, None), strict=True))
    over = case("a mix", told, OUR_SIDE, ("tokens/s",))["ours_over"]
    ratios = {name: each["tokens/s"]["median"] for name, each in over.items()}
    assert ratios == {"selvage int8": 0.3333, "OpenVINO int8": 2, "OpenVINO bfloat16": 0.5}
