"""The kernel that finishes rows, and steps by both kernels, in Triton's interpreter against PyTorch's operators.

It runs one program after the other: what they do at the same time is proven by tests/gpu only.
"""

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.kernels.rows.row_kernels import TORCH_TYPES, PackedRows, PlainRows, RowKernels, unpack
from gpu_worker.model.loading import load
from shared.jobs import Encode, Job, JobResult, Score
from shared.vectors import DataType, MultiVectors, ScoringMethod
from support.tiny import CPU, DENSE, MULTI, encode, raw, run, score, tokens

pytest.importorskip("triton", reason="Triton is published for Linux on x86-64")

from support.interpreted import Launches
from support.random_models import random_model
from support.row_cases import DTYPES, segments_of, some_rows, total  # Triton first

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = PlainRows()


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
    found = theirs.finite
    if ours.scales is None or theirs.scales is None:
        assert ours.scales is theirs.scales
    else:
        assert torch.allclose(ours.scales[found], theirs.scales[found], rtol=3e-7, atol=0)
    left, right = ours.values[found], theirs.values[found]
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
    own = sound[chosen]
    for part in (picked, moved):
        assert torch.equal(part.values[own], whole.values[chosen][own])
        assert torch.equal(part.finite, sound[chosen])
        if part.scales is not None and whole.scales is not None:
            assert torch.equal(part.scales[own], whole.scales[chosen][own])


@pytest.mark.parametrize("data_type", [DataType.FLOAT16, DataType.BFLOAT16, DataType.INT8])
def test_ties_are_rounded_to_even(kernels: RowKernels, data_type: DataType) -> None:
    """And what a type cannot hold becomes infinite, as the twin has it; the row itself consisted of numbers."""
    rows = torch.tensor([[127, 0.5, 1.5, 2.5, -0.5, -3.5], [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1e5, 3e38, -7e4]])
    ours, theirs = (each.packed(rows, None, 0, False, data_type) for each in (kernels, PLAIN))
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
    found = [Launches(modules[0].sum_segments), Launches(modules[0].finish_rows)]
    for name, each in zip(("sum_segments", "finish_rows"), found, strict=True):
        monkeypatch.setattr(modules[0], name, each)
    return found


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
    warmed = [set(each.seen) for each in launches]
    assert list(map(len, warmed)) == [len(DTYPES), 2 * len(DTYPES)]
    for dtype in DTYPES:
        for width, dimensions in ((1, 0), (16, 0), (50, 7), (48, 16)):
            rows = some_rows(5, width, dtype)
            total(kernel.TritonRows(), segments_of([0, 2, 1], [2, 3, 0], growth=1), rows)
            for data_type in DataType:
                kernel.TritonRows().packed(rows, torch.tensor([2]), dimensions, False, data_type)
            kernel.TritonRows().finite(rows)
    assert [set(each.seen) for each in launches] == warmed


CASES: dict[str, list[Encode | Score]] = {
    "tiny-bert": [
        *(encode(DENSE, MULTI, data_type=each) for each in (DataType.INT8, DataType.BINARY)),
        encode(DENSE, dimensions=7, data_type=DataType.FLOAT16),
        raw(DENSE, MULTI),
    ],
    "tiny-colbert": [encode(MULTI, token_ids=True), score(ScoringMethod.LATE_INTERACTION, 2), raw(MULTI)],
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_gives_what_it_gives_by_the_twin(
    kernels: RowKernels, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All forms at once, one of them with a text that is split."""
    engine = ModelEngine(load(random_model(name), CPU))
    works = CASES[name]
    jobs = [Job(id=place, work=work, tokens=tokens(3, 9, 4, seed=place)) for place, work in enumerate(works)]
    jobs.append(Job(id=99, work=works[0], tokens=tokens(129)))
    theirs = run(engine, jobs)
    monkeypatch.setattr(row_kernels, "choose", lambda device: kernels)
    for job, ours, expected in zip(jobs, run(engine, jobs), theirs, strict=True):
        exact = getattr(job.work, "data_type", DataType.FLOAT32) in (DataType.FLOAT32, DataType.BINARY)
        for left, right in zip(numbers(job, ours), numbers(job, expected), strict=True):
            assert torch.allclose(left, right, rtol=0, atol=1e-5 if exact else 1e-2)


def numbers(job: Job, result: JobResult) -> Iterator[Tensor]:
    """Rows as float32, and scores."""
    for rows in (result.dense, result.tokens):
        if rows is not None:
            assert isinstance(job.work, Encode)
            count = len(rows.data) // job.work.data_type.row_bytes(rows.dimensions)
            vectors = MultiVectors(
                data_type=job.work.data_type,
                dimensions=rows.dimensions,
                lengths=(count,),
                data=rows.data,
                scales=rows.scales,
            )
            yield unpack(vectors)
    if result.scores:
        yield torch.frombuffer(bytearray(result.scores), dtype=torch.float32)
