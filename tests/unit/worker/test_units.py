"""Units of a job: every token of every sequence once and in order, and room that is given back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.engine.jobs.units import Alike, PieceLimits, Units
from gpu_worker.engine.step.sequences import Sequences
from shared.errors import InputTooLong
from shared.jobs import Job
from support.synchronous_engine import WORK
from support.tiny import tokens


def sequences_of(lengths: list[int], tails: list[int] | None = None) -> Sequences:
    """Sequences of so many tokens, and how many at their ends are not attended to."""
    return Sequences(Job(id=1, work=WORK, tokens=tokens(*lengths), unattended_tails=tuple(tails or ())))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Sequences, list[tuple[int, ...]], int]:
    """Sequences, their groups in any order, some of them empty, and the most tokens of a piece."""
    lengths = draw(st.lists(st.integers(1, 50), min_size=1, max_size=12))
    tails = [draw(st.sampled_from([0, 0, 0, 1])) * (length > 1) for length in lengths]
    order = draw(st.permutations(range(len(lengths))))
    groups: list[tuple[int, ...]] = []
    while order:
        count = draw(st.sampled_from([1, 1, 2, 3]))
        groups, order = [*groups, tuple(order[:count])], order[count:]
    groups += [()] * draw(st.integers(0, 3))  # documents without a sequence
    return sequences_of(lengths, tails), groups, draw(st.sampled_from([0, 1, 2, 7, 16, 60]))


@settings(deadline=None, max_examples=200)
@given(cases())
def test_long_sequences_alone_are_cut(case: tuple[Sequences, list[tuple[int, ...]], int]) -> None:
    """The others stay in the groups that no long one is in; one with an unattended tail is never cut."""
    sequences, groups, longest = case
    units, lengths = Units.of(sequences, Alike.none(groups), longest), sequences.lengths.tolist()
    cut = {number for number in range(len(sequences)) if 0 < longest < lengths[number] and not sequences.tails[number]}
    expected: list[tuple[int, ...]] = []
    for group in groups:
        if cut.isdisjoint(group):
            expected.append(group)
            continue
        for number in group:
            expected += [(number,)] * (-(-lengths[number] // longest) if number in cut else 1)
    assert units.numbers == expected
    assert bool(units.room) == bool(cut)
    assert sum(units.room) == 0
    for (number, *_), count in zip((numbers for numbers in units.numbers if numbers), units.tokens, strict=False):
        assert number not in cut or count <= longest


def test_what_never_fits_is_refused_with_the_number_that_would() -> None:
    """A sequence that is not cut needs no room, however long it is."""
    limits = PieceLimits(longest=16, cache_bytes=40)
    limits.check(sequences_of([40, 3]))
    with pytest.raises(InputTooLong, match=r"a sequence has 41 tokens, --cache-megabytes .* of 40"):
        limits.check(sequences_of([3, 41]))
    PieceLimits(longest=16, cache_bytes=4).check(sequences_of([16]))
    PieceLimits(longest=0, cache_bytes=0).check(sequences_of([100]))
    limits.check(sequences_of([41, 3], [1, 0]))  # it stays whole


@given(st.integers(1, 500), st.integers(0, 10**12))
def test_the_longest_text_is_the_one_whose_bytes_fit(token_bytes: int, cache_bytes: int) -> None:
    longest = int(PieceLimits(cache_bytes=cache_bytes, token_bytes=token_bytes).cache_tokens)
    assert longest * token_bytes <= cache_bytes < (longest + 1) * token_bytes
