"""The kernel that sums segments of rows, in Triton's interpreter, against PyTorch's operators."""

from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.kernels.rows import row_kernels
from gpu_worker.kernels.rows.row_kernels import PlainRows, RowKernels, WeightedRanges
from gpu_worker.model.heads import pooling
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.repository.recipe import POOLINGS

pytest.importorskip("triton", reason="Triton is published for Linux on x86-64")

from support.row_cases import DTYPES, segments_of, some_rows, some_segments, total  # Triton first

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 60
PLAIN = PlainRows()
MODES = [mode for mode in POOLINGS if "mean" in mode]


@settings(max_examples=20)
@given(
    some_segments(ROWS, longest=50, most=4),
    st.sampled_from(DTYPES),
    st.sampled_from([1, 8, 50, 136]),
    st.sampled_from([1, 7, 32, 40, 128]),
)
def test_sums_equal_the_twins(
    kernel: ModuleType, ranges: WeightedRanges, dtype: torch.dtype, width: int, chunk: int
) -> None:
    """Weights that are equal and that grow, number formats, widths, chunks."""
    rows = some_rows(ROWS, width, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "CHUNK_ROWS", chunk)
        ours = total(kernel.TritonRows(), ranges, rows)
    theirs = total(PLAIN, ranges, rows)
    assert ours.dtype == torch.float32
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


LENGTHS = [1, 31, 32, 33, 127, 128, 129, 256, 1000]


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        pytest.param(mode, dtype, marks=() if place == number else pytest.mark.slow)
        for place, mode in enumerate(MODES)
        for number, dtype in enumerate(DTYPES)
    ],
)
def test_pooling_equals_the_twins(
    kernels: RowKernels, mode: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mode at the edges of tiles and chunks and far beyond, with tokens left out, up to all of them."""
    pooled(mode, dtype, LENGTHS, kernels, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_pooling_of_the_longest_texts(kernels: RowKernels, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 chunks, and so many that their sums are more than a tile."""
    pooled(mode, torch.bfloat16, [8192, 3, 20_000], kernels, monkeypatch)


def pooled(mode: str, dtype: torch.dtype, lengths: list[int], kernels: RowKernels, patch: pytest.MonkeyPatch) -> None:
    batch = RaggedBatch.pack([np.zeros(each, dtype=np.int32) for each in lengths], torch.device("cpu"))
    hidden = some_rows(batch.total, 24, dtype)
    for skip in ([0] * len(lengths), [each // 3 for each in lengths], lengths):
        theirs = pooling.pool(hidden, batch, (mode,), np.array(skip))
        with patch.context() as inner:
            inner.setattr(row_kernels, "choose", lambda device: kernels)
            ours = pooling.pool(hidden, batch, (mode,), np.array(skip))
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5 * max(1, max(lengths) ** 0.5 / 10))
        assert not ours[torch.tensor(skip) >= torch.tensor(lengths)].any()


@settings(max_examples=6)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=3), st.sampled_from([0, 1]), st.data())
def test_a_sum_does_not_depend_on_its_company(
    kernels: RowKernels, lengths: list[int], growth: int, data: st.DataObject
) -> None:
    """Nor on where it lies, and whether others are split. Not in one bit."""
    rows = some_rows(sum(lengths), 16)
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    order = data.draw(st.permutations(range(len(lengths))))
    together = total(
        kernels, segments_of([starts[each] for each in order], [lengths[each] for each in order], growth), rows
    )
    for place, each in enumerate(order):
        moved = rows[starts[each] : starts[each] + lengths[each]].clone()
        alone = total(kernels, segments_of([0], [lengths[each]], growth), moved)
        assert torch.equal(alone[0], together[place])


def test_what_is_no_number_stays_with_its_text(kernels: RowKernels) -> None:
    """Of a tile that is masked nothing is read, and nothing is multiplied by zero."""
    rows = some_rows(40, 16)
    rows[10], rows[11, 3] = float("nan"), float("inf")
    sums = total(kernels, segments_of([0, 10, 11, 12, 5], [10, 1, 1, 28, 0]), rows)
    assert torch.isfinite(sums[[0, 3, 4]]).all()
    assert torch.isnan(sums[1]).all()
    assert sums[2, 3] == float("inf")
    assert torch.isfinite(sums[2, :3]).all()
