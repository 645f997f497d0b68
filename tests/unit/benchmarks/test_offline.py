"""Cosines, and which side is compared with which."""

from typing import Any

import numpy as np
import pytest

from benchmarks.benchmark import ALONE, SHARE, case, counterpart, number_format, shares
from benchmarks.offline import EXACT, OUR_SIDE, SIDES, compared


class FakePeer:
    """A peer whose rows are the ones that it was made with."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def outcome(self, side: str, **arguments: Any) -> Any:
        return np.array(self._rows)


def test_cosines_are_to_the_exact_side_whatever_the_length_of_a_row() -> None:
    """Mean and lowest; a float32 side whose numbers differ is an error that names it."""
    exact, near = [[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.6, 0.8]]
    int8 = "OpenVINO int8, best batch"
    peers: dict[str, Any] = {SIDES[EXACT].process: FakePeer(exact), SIDES[int8].process: FakePeer(near)}
    figures = compared(peers, {EXACT: {}, int8: {}})
    assert figures[EXACT] == {"mean cosine": 1, "lowest cosine": 1}
    assert figures[int8] == pytest.approx({"mean cosine": 0.9, "lowest cosine": 0.8})
    peers[SIDES[OUR_SIDE].process] = FakePeer([[1.0, 1e-3], [0.0, 1.0]])
    with pytest.raises(AssertionError, match=OUR_SIDE):
        compared(peers, {EXACT: {}, OUR_SIDE: {}})


def test_a_side_is_compared_with_ours_in_its_number_format() -> None:
    """With float32's where ours has none in it; our other formats with our float32; shares are of products in it."""
    sides = {EXACT: "float32", "selvage int8": "int8", "OpenVINO bfloat16, best batch": "bfloat16"}
    assert {side: number_format(side) for side in sides} == sides
    rates = {OUR_SIDE: 100.0, "selvage int8": 300.0, "OpenVINO int8": 150.0, "OpenVINO bfloat16": 200.0}
    assert counterpart("OpenVINO bfloat16", rates, "selvage") == "selvage"
    limits = {ALONE: 200.0, f"{ALONE}, int8": 600.0}
    shared = shares({name: [{"tokens/s": rate}] for name, rate in (rates | limits).items()}, "tokens/s")
    assert {name: shared[name][0].get(SHARE) for name in rates} == dict(zip(rates, (50, 50, 25, None), strict=True))
    over = case("a mix", shared, OUR_SIDE, ("tokens/s",))["ours_over"]
    ratios = {name: ratio["tokens/s"]["median"] for name, ratio in over.items()}
    assert ratios == {"selvage int8": 0.3333, "OpenVINO int8": 2, "OpenVINO bfloat16": 0.5}
