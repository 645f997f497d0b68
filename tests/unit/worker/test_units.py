"""Units of a job: every token of every sequence once and in order, and room that is given back."""

from itertools import accumulate, chain

import numpy as np
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


def units_of(lengths: list[int]) -> Units:
    """Units of sequences of so many tokens, in pieces of 16."""
    sequences = sequences_of(lengths)
    return Units.of(sequences, Alike.none([(number,) for number in range(len(lengths))]), 16)


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
@given(cases(), st.randoms(use_true_random=False))
def test_every_token_is_in_one_slice_and_in_order(
    case: tuple[Sequences, list[tuple[int, ...]], int], chance: object
) -> None:
    """However the units are cut into slices, pieces of a sequence are joined in a slice and follow each other."""
    sequences, groups, longest = case
    units = Units.of(sequences, Alike.none(groups), longest)
    done, start = [0] * len(sequences), 0
    while start < len(units.numbers):
        stop = start + min(chance.choice([1, 1, 2, 5, 100]), len(units.numbers) - start)  # type: ignore[attr-defined]
        numbers, starts, stops = units.ranges(start, stop)
        assert numbers.tolist() == sorted(set(numbers.tolist()))
        assert int((stops - starts).sum()) == sum(units.tokens[start:stop])
        for number, first, last in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True):
            assert first == done[number] < last
            done[number] = last
        start = stop
    assert done == sequences.lengths.tolist()


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
    for (number, *_), count in zip((each for each in units.numbers if each), units.tokens, strict=False):
        assert number not in cut or count <= longest


@settings(deadline=None, max_examples=200)
@given(cases())
def test_room_is_taken_for_a_sequence_at_once_and_given_back(
    case: tuple[Sequences, list[tuple[int, ...]], int],
) -> None:
    """One long sequence of a job has room at a time, and all of it is given back with its last piece."""
    sequences, groups, longest = case
    units = Units.of(sequences, Alike.none(groups), longest)
    if not units.room:
        return
    held = list(accumulate(units.room))
    assert held[-1] == 0
    assert min(held) == 0
    for numbers, room, now in zip(units.numbers, units.room, held, strict=True):
        assert now in (0, *(int(sequences.lengths[number]) for number in numbers))
        assert room == 0 or abs(room) == int(sequences.lengths[numbers[0]])


def test_units_without_a_long_sequence_need_no_room() -> None:
    assert units_of([3, 16]).room == []
    assert units_of([3, 17]).room == [0, 17, -17]


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


def test_all_tokens_of_a_job_are_counted_once() -> None:
    """Costs are what admission and speed are measured by."""
    sequences = sequences_of([5, 33, 1, 64])
    groups = [(0, 1), (2, 3)]
    for longest in (0, 1, 16, 32, 64):
        units = Units.of(sequences, Alike.none(groups), longest)
        assert sum(units.tokens) == 103
        assert set(chain(*units.numbers)) == set(np.arange(4).tolist())


@settings(deadline=None, max_examples=100)
@given(cases(), st.randoms(use_true_random=False))
def test_rows_count_where_a_sequence_ends(case: tuple[Sequences, list[tuple[int, ...]], int], chance: object) -> None:
    """A unit costs its tokens, or the rows of the sequences that end in it, where these are more."""
    sequences, groups, longest = case
    units = Units.of(sequences, Alike.none(groups), longest)
    rows = np.array([chance.choice([1, 2, 9, 200]) for _ in range(len(sequences))])  # type: ignore[attr-defined]
    costs = units.costs_with_rows(units.tokens, rows)
    for unit, cost in enumerate(costs):
        numbers, _, stops = units.ranges(unit, unit + 1)
        ended = int(rows[numbers[stops == sequences.lengths[numbers]]].sum())
        assert cost == max(units.tokens[unit], ended)
