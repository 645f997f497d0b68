"""The sizes that are captured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.model.tune.graph_sizes import EMPTY, MOST, TOKENS, buckets, smallest
from gpu_worker.ragged.launches import TILE, launches

STEPS, LONGEST = st.integers(1, 65_536), st.integers(2, 131_072)


@given(STEPS, LONGEST)
def test_they_are_few_the_largest_first_and_none_is_mostly_empty(step_tokens: int, longest: int) -> None:
    found = buckets(step_tokens, longest)
    assert len(found) <= MOST
    assert len(set(found)) == len(found)
    assert [each.tokens for each in found] == sorted((each.tokens for each in found), reverse=True)
    for each in found:
        assert 2 <= each.longest <= longest
        assert each.tokens <= step_tokens
        assert each.tiles <= EMPTY * (each.sequences + each.tokens // TILE)


@given(STEPS, LONGEST)
def test_what_fills_a_bucket_is_held_by_it_and_attended_to_in_one_launch(step_tokens: int, longest: int) -> None:
    """Whatever the longest text of a model."""
    for each in buckets(step_tokens, longest):
        assert each.holds(sum(each.filled), len(each.filled), max(each.filled))
        assert len(launches(np.array(each.filled))) == 1


@given(STEPS, LONGEST, st.integers(1, 10_000), st.integers(1, 1000), st.integers(1, 10_000))
def test_the_smallest_that_holds_a_batch_is_taken(
    step_tokens: int, most: int, tokens: int, sequences: int, longest: int
) -> None:
    """And none where none does; bounds are met exactly, as they are by nobody else."""
    found = buckets(step_tokens, most)
    held = [each for each in found if each.tokens >= tokens and each.sequences >= sequences and each.longest >= longest]
    chosen = smallest(found, tokens, sequences, longest)
    assert (chosen is None) == (not held)
    if chosen is not None:
        assert chosen in held
        assert all((chosen.tokens, chosen.tiles) <= (each.tokens, each.tiles) for each in held)


@pytest.mark.parametrize("longest", [128, 512, 8192])
def test_short_steps_of_any_size_have_one(longest: int) -> None:
    """A batch of texts of eight to a hundred tokens has a bucket of at most twice its tokens, up to the largest."""
    found = buckets(16_384, longest)
    for tokens in (1, 63, 64, 65, 1000, 4097, TOKENS[-1]):
        for length in (8, 30, 100):
            sequences = -(-tokens // length)
            if sequences > 512:
                continue
            chosen = smallest(found, tokens, sequences, min(length, tokens))
            assert chosen is not None, (tokens, length)
            assert chosen.tokens <= max(TOKENS[0], 2 * tokens)
    assert smallest(found, TOKENS[-1] + 1, 8, 100) is None
