"""Rows by the processor's kernels equal their twin, with the same bits alone and among others; bad places are told.

Tests of `test_row_kernels.py` run with them as well.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.kernels.rows.row_kernels import NativeRows, PlainRows, WeightedRanges
from support.native import LIBRARY, needs_kernels
from support.row_cases import DTYPES, segments_of, some_rows, some_segments, total

pytestmark = needs_kernels
ROWS = 400
OURS, PLAIN = NativeRows(LIBRARY), PlainRows()


@given(
    some_segments(ROWS, longest=300, most=6),
    st.sampled_from(DTYPES),
    st.sampled_from([1, 8, 17, 50, 384]),
    st.integers(1, 3),
)
def test_sums_equal_the_twins(ranges: WeightedRanges, dtype: torch.dtype, width: int, threads: int) -> None:
    """Any ranges, formats and widths, whatever the number of threads."""
    rows, before = some_rows(ROWS, width, dtype), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        ours = total(OURS, ranges, rows)
    finally:
        torch.set_num_threads(before)
    theirs = total(PLAIN, ranges, rows)
    assert (ours.dtype, ours.shape) == (torch.float32, theirs.shape)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    for place in range(len(ranges.lengths)):
        one = slice(place, place + 1)
        alone = WeightedRanges(
            starts=ranges.starts[one],
            lengths=ranges.lengths[one],
            first=ranges.first[one],
            growth=ranges.growth,
            divisors=ranges.divisors[one],
        )
        assert torch.equal(total(OURS, alone, rows)[0], ours[place])


def test_a_sum_over_the_largest_number_is_still_of_finite_numbers() -> None:
    rows = torch.full((2, 64), 3e38)
    assert OURS.finite(rows).all()
    assert not OURS.finite(rows * torch.inf).any()


def test_what_lies_outside_of_the_rows_is_told() -> None:
    rows = some_rows(5, 32)
    for starts, lengths in (([3], [3]), ([-1], [2])):
        with pytest.raises(RuntimeError, match="range 0 lies outside of the rows"):
            total(OURS, segments_of(starts, lengths), rows)
    for row in (5, -1):
        with pytest.raises(RuntimeError, match=f"row {row} is none of 5"):
            OURS.finished(rows, torch.tensor([0, row]), 0, unit=True)


def test_a_processor_with_kernels_chooses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = row_kernels.choose.__wrapped__
    assert isinstance(choose(torch.device("cpu")), NativeRows)
    monkeypatch.setattr(library, "load", lambda: library.KernelLibrary(missing="none are built"))
    assert isinstance(choose(torch.device("cpu")), PlainRows)
