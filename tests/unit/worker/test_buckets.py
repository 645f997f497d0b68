"""The sizes that are captured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.model.tune.graphs import ROOM, TOKENS, Bucket, ladder
from gpu_worker.ragged.spans import TILE

STEPS, LONGEST = st.integers(1, 65_536), st.integers(2, 131_072)
MOST = 38


def tiles(size: Bucket) -> int:
    """Attention tiles per head, filled or not."""
    return size.sequences * -(-size.longest // TILE)


@given(STEPS, LONGEST)
def test_they_are_few_the_smallest_first_and_none_is_mostly_empty(step_tokens: int, longest: int) -> None:
    found = ladder(step_tokens, longest)
    assert len(found) == len(set(found)) <= MOST
    assert [each.tokens for each in found] == sorted(each.tokens for each in found)
    assert {each.tokens for each in found} == {tokens for tokens in TOKENS if tokens <= step_tokens}
    for each in found:
        assert 2 <= each.longest <= min(longest, each.tokens)
        assert tiles(each) <= ROOM * (each.sequences + each.tokens // TILE)


@given(STEPS, LONGEST)
def test_every_number_of_tokens_has_one_for_its_longest_text(step_tokens: int, longest: int) -> None:
    found = ladder(step_tokens, longest)
    for tokens in {each.tokens for each in found}:
        assert max(each.longest for each in found if each.tokens == tokens) == min(longest, tokens)


@pytest.mark.parametrize("longest", [128, 512, 8192])
def test_steps_of_texts_of_one_length_have_one(longest: int) -> None:
    """A batch of texts of eight to a hundred tokens has a graph of at most twice its tokens, up to the largest."""
    found = ladder(16_384, longest)
    for tokens in (64, 65, 1000, 1025, 4096, 4097, TOKENS[-1]):
        for length in (8, 30, 64, 100):
            count = tokens // length
            held = [each for each in found if each.holds(count * length, count, length)]
            assert held, (tokens, length)
            assert held[0].tokens <= max(128, 2 * count * length)
    assert not [each for each in found if each.holds(TOKENS[-1] + 1, 8, 100)]
