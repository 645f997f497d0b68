"""Kernels that sum segments of rows and that finish rows, in Triton's interpreter, against PyTorch's operators.

It runs one program after the other: what they do at the same time is proven by tests/gpu only.
"""

from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.kernels.rows import row_kernels
from gpu_worker.kernels.rows.row_kernels import TORCH_TYPES, PackedRows, PlainRows, RowKernels, WeightedRanges
from gpu_worker.model.heads import pooling
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.repository.recipe import POOLINGS
from shared.vectors import DataType

pytest.importorskip("triton", reason="Triton is published for Linux on x86-64")

from support.interpreted import Launches
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
    assert (ours.dtype, ours.shape) == (torch.float32, theirs.shape)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


USUAL = [1, 31, 32, 33, 127, 128, 129, 256, 1000]
POOLED = [
    *((mode, dtype, USUAL, place == number) for place, mode in enumerate(MODES) for number, dtype in enumerate(DTYPES)),
    *((mode, torch.bfloat16, [8192, 3, 20_000], False) for mode in MODES),
]
"""The last texts have 64 chunks, and so many that their sums are more than a tile."""


@pytest.mark.parametrize(
    ("mode", "dtype", "lengths"),
    [pytest.param(*case, marks=() if often else pytest.mark.slow) for *case, often in POOLED],
)
def test_pooling_equals_the_twins(
    kernels: RowKernels, mode: str, dtype: torch.dtype, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mode at the edges of tiles and chunks and far beyond, with tokens left out, up to all of them."""
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in lengths], torch.device("cpu"))
    hidden = some_rows(batch.total, 24, dtype)
    for skip in ([0] * len(lengths), [length // 3 for length in lengths], lengths):
        theirs = pooling.pool(hidden, batch, (mode,), np.array(skip))
        with monkeypatch.context() as patch:
            patch.setattr(row_kernels, "choose", lambda device: kernels)
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
    segments = segments_of([starts[text] for text in order], [lengths[text] for text in order], growth)
    together = total(kernels, segments, rows)
    for place, text in enumerate(order):
        moved = rows[starts[text] : starts[text] + lengths[text]].clone()
        alone = total(kernels, segments_of([0], [lengths[text]], growth), moved)
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


def awkward(dtype: torch.dtype, width: int) -> Tensor:
    """Rows of zeros, with NaN and infinities at the first and last place, tiny and large ones; the others are usual."""
    rows = some_rows(19, width, dtype)
    rows[2], rows[3, 0], rows[4, -1], rows[5, width // 2] = 0, float("nan"), float("inf"), float("-inf")
    rows[6] *= 1e-6
    rows[7] *= 1e3
    rows[8] = -0.0
    return rows


def near(ours: PackedRows, theirs: PackedRows, data_type: DataType, unit: bool) -> None:
    """Bit for bit the twin's where nothing was divided by a length; else within the last bit of the type."""
    assert torch.equal(ours.finite, theirs.finite)
    assert ours.values.shape == theirs.values.shape
    sound = theirs.finite
    if ours.scales is None or theirs.scales is None:
        assert ours.scales is theirs.scales
    else:
        assert torch.allclose(ours.scales[sound], theirs.scales[sound], rtol=3e-7, atol=0)
    left, right = ours.values[sound], theirs.values[sound]
    if not unit or data_type is DataType.BINARY:
        assert torch.equal(left, right)
    elif data_type is DataType.INT8:
        assert (left.view(torch.int8).int() - right.view(torch.int8)).abs().max() <= 1
    else:
        kind = TORCH_TYPES[data_type]
        steps = torch.finfo(kind)
        least = steps.smallest_normal * steps.eps  # the last bit of the smallest numbers
        assert torch.allclose(left.view(kind).float(), right.view(kind).float(), rtol=2 * steps.eps, atol=least)


WIDTHS = [(1, 0), (16, 0), (50, 7), (48, 16), (256, 0), (300, 257), (530, 0)]
"""Of rows, and the dimensions that are kept; the last need several blocks."""
FORMS = [
    pytest.param(*form, dtype, marks=() if (place + number) % 3 == 0 else pytest.mark.slow)
    for place, form in enumerate(WIDTHS)
    for number, dtype in enumerate(DTYPES)
]


@pytest.mark.parametrize(("width", "dimensions", "dtype"), FORMS)
def test_finished_rows_equal_the_twins(kernels: RowKernels, width: int, dimensions: int, dtype: torch.dtype) -> None:
    """As every data type, of unit length and as they are, all rows and some of them."""
    rows = awkward(dtype, width)
    some = torch.tensor([18, 2, 2, 3, 0, 8, 4, 6])
    for index in (None, some):
        for unit in (False, True):
            ours = kernels.finished(rows, index, dimensions, unit)
            theirs = PLAIN.finished(rows, index, dimensions, unit)
            assert (ours.dtype, ours.shape) == (torch.float32, theirs.shape)
            sound = torch.isfinite(theirs).all(dim=1)
            assert torch.allclose(ours[sound], theirs[sound], rtol=3e-7 if unit else 0, atol=0)
            for data_type in DataType if index is None or unit else ():
                packed = kernels.packed(rows, index, dimensions, unit, data_type)
                near(packed, PLAIN.packed(rows, index, dimensions, unit, data_type), data_type, unit)
    assert torch.equal(kernels.finite(rows), torch.isfinite(rows).all(dim=1))


@settings(max_examples=10)
@given(st.permutations(range(19)), st.integers(1, 19), st.sampled_from(list(DataType)))
def test_a_finished_row_does_not_depend_on_its_company(
    kernels: RowKernels, order: list[int], count: int, data_type: DataType
) -> None:
    """Not in one bit, be it picked or alone."""
    rows = awkward(torch.bfloat16, 40)
    sound = torch.isfinite(rows).all(dim=1)
    whole = kernels.packed(rows, None, 0, True, data_type)
    chosen = torch.tensor(order[:count])
    picked = kernels.packed(rows, chosen, 0, True, data_type)
    moved = kernels.packed(rows[chosen].clone(), None, 0, True, data_type)
    finite = sound[chosen]
    for part in (picked, moved):
        assert torch.equal(part.values[finite], whole.values[chosen][finite])
        assert torch.equal(part.finite, finite)
        if part.scales is not None and whole.scales is not None:
            assert torch.equal(part.scales[finite], whole.scales[chosen][finite])


@pytest.mark.parametrize("data_type", [DataType.FLOAT16, DataType.BFLOAT16, DataType.INT8])
def test_ties_are_rounded_to_even(kernels: RowKernels, data_type: DataType) -> None:
    """And what a type cannot hold becomes infinite, as the twin has it; the row itself consisted of numbers."""
    rows = torch.tensor([[127, 0.5, 1.5, 2.5, -0.5, -3.5], [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1e5, 3e38, -7e4]])
    ours, theirs = (way.packed(rows, None, 0, False, data_type) for way in (kernels, PLAIN))
    near(ours, theirs, data_type, unit=False)
    assert ours.finite.all()


def test_views_at_odd_addresses_and_with_strides(kernels: RowKernels) -> None:
    wide, flat = some_rows(20, 30, torch.bfloat16), some_rows(20, 9, torch.bfloat16).flatten()
    for rows in (wide[:, :16], wide[3:, 5:9], wide.T, flat[3:163].view(20, 8)):
        assert torch.equal(kernels.finished(rows, None, 0, False), rows.float())
        ours = total(kernels, segments_of([0, 4], [3, 0]), rows)
        assert torch.allclose(ours, total(PLAIN, segments_of([0, 4], [3, 0]), rows), rtol=1e-6, atol=1e-6)


@pytest.fixture
def launches(modules: list[ModuleType], monkeypatch: pytest.MonkeyPatch) -> list[Launches]:
    """Of what sums, and of what finishes."""
    names = ("sum_segments", "finish_rows")
    watched = [Launches(getattr(modules[0], name)) for name in names]
    for name, launch in zip(names, watched, strict=True):
        monkeypatch.setattr(modules[0], name, launch)
    return watched


def test_one_launch_a_form_and_none_for_nothing(kernel: ModuleType, launches: list[Launches]) -> None:
    kernels: RowKernels = kernel.TritonRows()
    rows, (sums, finishes) = some_rows(300, 16), launches
    total(kernels, segments_of([0, 9], [4, 128]), rows)
    assert len(sums.seen) == 1
    total(kernels, segments_of([0, 9], [4, 129]), rows)
    assert len(sums.seen) == 3
    kernels.packed(rows, None, 8, True, DataType.INT8)
    assert len(finishes.seen) == 1
    assert total(kernels, segments_of([], []), rows).shape == (0, 16)
    nothing = kernels.packed(rows, torch.zeros(0, dtype=torch.int64), 9, True, DataType.BINARY)
    assert (nothing.values.shape, nothing.finite.shape) == ((0, 2), (0,))
    assert kernels.finished(rows[:0], None, 0, True).shape == (0, 16)
    assert (len(sums.seen), len(finishes.seen)) == (3, 1)


def test_starting_up_calls_every_variant(kernel: ModuleType, launches: list[Launches]) -> None:
    """Whatever is asked for later was compiled before: by plain calls, so nothing but calls decides what that is."""
    kernel.TritonRows().warm(torch.device("cpu"))
    warmed = [set(launch.seen) for launch in launches]
    assert list(map(len, warmed)) == [len(DTYPES), 2 * len(DTYPES)]
    for dtype in DTYPES:
        for width, dimensions in ((1, 0), (16, 0), (50, 7), (48, 16)):
            rows = some_rows(5, width, dtype)
            total(kernel.TritonRows(), segments_of([0, 2, 1], [2, 3, 0], growth=1), rows)
            for data_type in DataType:
                kernel.TritonRows().packed(rows, torch.tensor([2]), dimensions, False, data_type)
            kernel.TritonRows().finite(rows)
    assert [set(launch.seen) for launch in launches] == warmed
