"""How attention is cut into launches."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.ragged.spans import LEAST_SAVED, TILE, launches


def tiles(lengths: list[int]) -> int:
    """Programs of one launch, for each head."""
    return len(lengths) * -(-max(lengths, default=0) // TILE)


@given(st.lists(st.integers(1, 3000), max_size=60), st.integers(0, 1500), st.booleans())
def test_launches_take_every_sequence_once_and_pay(some: list[int], short: int, ordered: bool) -> None:
    """In order; a second one leaves fewer tiles by half, and none would leave fewer."""
    lengths = [5] * short + some
    if ordered:
        lengths.sort()
    found = launches(np.array(lengths, dtype=np.int64))
    assert [each for start, stop in found for each in lengths[start:stop]] == lengths
    best = min((tiles(lengths[:cut]) + tiles(lengths[cut:]) for cut in range(1, len(lengths))), default=tiles(lengths))
    saved = tiles(lengths) - best
    if saved >= LEAST_SAVED and 2 * best <= tiles(lengths):
        assert sum(tiles(lengths[start:stop]) for start, stop in found) == best
    else:
        assert found == [(0, len(lengths))]


def test_one_long_text_beside_many_short_ones() -> None:
    assert launches(np.array([20] * 500 + [8000])) == [(0, 500), (500, 501)]
    assert launches(np.array([200] * 40)) == [(0, 40)]
