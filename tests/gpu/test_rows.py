"""The kernels that sum and finish rows on CUDA against PyTorch's operators on the CPU: numbers, bits, waits,
compilations.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.device.transfer import Upload
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.kernels.rows.row_kernels import TORCH_TYPES, PackedRows, PlainRows, PoolRows, WeightedRanges
from gpu_worker.model.heads import pooling
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.repository.recipe import POOLINGS
from shared.vectors import DataType

pytest.importorskip("triton", reason="Triton is published for Linux on x86-64")

import triton

from gpu_worker.kernels.rows.triton_rows import CHUNK_ROWS, TritonRows

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [1, 31, 32, 33, CHUNK_ROWS, CHUNK_ROWS + 1, 5, 1000, 8192]
MODES = [mode for mode in POOLINGS if "mean" in mode]
SHAPES = [(1, 0), (48, 16), (50, 7), (128, 0), (300, 257), (768, 256), (1024, 0), (4096, 1000)]
"""Widths of rows, and dimensions that are kept; 0: all."""


def some_rows(count: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """On the CPU; with rows of zeros, with NaN and with infinities where there are enough."""
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.randn(count, width, generator=generator) * 3).to(dtype)
    if count > 9:
        rows[2], rows[3, 0], rows[4, -1], rows[5, width // 2] = 0, float("nan"), float("inf"), float("-inf")
    return rows


def ranges(lengths: list[int]) -> WeightedRanges:
    """Means of texts that lie end to end."""
    counts = np.array(lengths, dtype=np.int64)
    return WeightedRanges(
        starts=np.cumsum(counts) - counts,
        lengths=counts,
        first=np.ones_like(counts),
        growth=0,
        divisors=np.maximum(counts, 1e-9),
    )


def summing(lengths: list[int], device: torch.device) -> PoolRows:
    upload = Upload(device)
    summed = TritonRows().weighted_sum(ranges(lengths), upload)
    upload.send()
    return summed


@pytest.fixture
def without_waits() -> Iterator[None]:
    """CUDA's own debug mode raises where something waits."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_cuda_runs_the_kernels(cuda: torch.device) -> None:
    assert isinstance(row_kernels.choose(cuda), TritonRows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [2, 50, 384, 1024])
def test_pooling_equals_the_twin(cuda: torch.device, mode: str, dtype: torch.dtype, width: int) -> None:
    """On the same rounded rows, with tokens left out, up to all of them."""
    ids = [np.zeros(each, dtype=np.int32) for each in LENGTHS]
    here, there = (RaggedBatch.pack(ids, device) for device in (torch.device("cpu"), cuda))
    hidden = torch.randn(here.total, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    for skip in ([0] * len(LENGTHS), [each // 3 for each in LENGTHS], LENGTHS):
        expected = pooling.pool(hidden, here, (mode,), np.array(skip))
        ours = pooling.pool(hidden.to(cuda), there, (mode,), np.array(skip)).cpu()
        assert ((ours - expected).abs() <= 1e-5 * expected.abs().amax(dim=1, keepdim=True).clamp(min=1)).all()


def near(ours: PackedRows, theirs: PackedRows, data_type: DataType) -> None:
    """Within the last bits of the type, for rows that consist of numbers."""
    assert torch.equal(ours.finite.cpu(), theirs.finite)
    sound = theirs.finite
    left, right = ours.values.cpu()[sound], theirs.values[sound]
    if data_type is DataType.BINARY:
        assert torch.equal(left, right)
    elif data_type is DataType.INT8:
        assert ours.scales is not None
        assert theirs.scales is not None
        assert torch.allclose(ours.scales.cpu()[sound], theirs.scales[sound], rtol=1e-6, atol=0)
        assert (left.view(torch.int8).int() - right.view(torch.int8)).abs().max() <= 1
    else:
        kind = TORCH_TYPES[data_type]
        eps = torch.finfo(kind).eps
        assert torch.allclose(left.view(kind).float(), right.view(kind).float(), rtol=8 * eps, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "dimensions"), SHAPES)
def test_finished_rows_equal_the_twins(cuda: torch.device, width: int, dimensions: int, dtype: torch.dtype) -> None:
    """As every data type, of unit length and as they are, all rows and some of them."""
    rows, ours, theirs = some_rows(77, width, dtype), TritonRows(), PlainRows()
    some = torch.tensor([76, 2, 2, 3, 0, 40, 4, 6])
    for index in (None, some):
        for unit in (False, True):
            asked = (index, dimensions, unit)
            there = (None if index is None else index.to(cuda), dimensions, unit)
            expected = theirs.finished(rows, *asked)
            sound = torch.isfinite(expected).all(dim=1)
            found = ours.finished(rows.to(cuda), *there).cpu()
            assert torch.allclose(found[sound], expected[sound], rtol=1e-6, atol=1e-7 if unit else 0)
            for data_type in DataType:
                packed = ours.packed(rows.to(cuda), *there, data_type)
                near(packed, theirs.packed(rows, *asked, data_type), data_type)
    assert torch.equal(ours.finite(rows.to(cuda)).cpu(), torch.isfinite(rows).all(dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_every_time_and_in_any_company(cuda: torch.device, dtype: torch.dtype) -> None:
    """Programs end in another order each time; texts beside others, alone and elsewhere."""
    rows = torch.randn(sum(LENGTHS), 384, generator=torch.Generator().manual_seed(0)).to(cuda, dtype)
    first = summing(LENGTHS, cuda)(rows)
    finished = TritonRows().packed(rows, None, 0, True, DataType.INT8)
    for _ in range(50):
        assert torch.equal(summing(LENGTHS, cuda)(rows), first)
        again = TritonRows().packed(rows, None, 0, True, DataType.INT8)
        assert torch.equal(again.values, finished.values)
        assert torch.equal(again.scales, finished.scales)
    for place, (length, own) in enumerate(zip(LENGTHS, rows.split(LENGTHS), strict=True)):
        assert torch.equal(summing([length], cuda)(own.clone())[0], first[place])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).to(cuda)
    turned = TritonRows().packed(rows, order, 0, True, DataType.INT8)
    assert torch.equal(turned.values, finished.values[order])


def test_rows_beyond_two_billion_numbers(cuda: torch.device) -> None:
    """Offsets have 64 bits, of what is read and of what is written."""
    count = 2**31 // 1024 + 100
    rows = torch.zeros(count, 1024, dtype=torch.bfloat16, device=cuda)
    last = some_rows(9, 1024, torch.bfloat16)
    rows[-9:] = last.to(cuda)
    found = TritonRows().packed(rows, None, 0, True, DataType.BFLOAT16)
    own = PackedRows(values=found.values[-9:], scales=None, finite=found.finite[-9:])
    near(own, PlainRows().packed(last, None, 0, True, DataType.BFLOAT16), DataType.BFLOAT16)
    upload, one = Upload(cuda), np.ones(1, dtype=np.int64)
    there = WeightedRanges(starts=one * (count - 9), lengths=one * 9, first=one, growth=0, divisors=one * 9.0)
    summed = TritonRows().weighted_sum(there, upload)
    upload.send()
    assert torch.allclose(summed(rows)[0].cpu(), last.float().mean(dim=0), rtol=1e-5, atol=1e-5)


def test_no_call_waits_or_compiles(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """After `warm`, whatever the widths, counts, dimensions, data types and texts; from pinned memory on."""
    kernels = TritonRows()
    kernels.warm(cuda)
    index = torch.tensor([5, 5, 0], device=cuda)
    given = [some_rows(40, width, dtype).to(cuda) for dtype in DTYPES for width in (1, 16, 50, 300, 1024)]
    long = torch.zeros(1000, 64, dtype=torch.bfloat16, device=cuda)
    compiled: list[object] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **given: compiled.append(given))
    request.getfixturevalue("without_waits")
    for rows in given:
        summing([0, 1, 39], cuda)(rows)
        kernels.finite(rows)
        for dimensions in (0, 1, min(16, rows.shape[1])):
            for chosen in (None, index):
                kernels.finished(rows, chosen, dimensions, True)
                for data_type in DataType:
                    kernels.packed(rows, chosen, dimensions, False, data_type)
    summing([1, 900, 99], cuda)(long)
    assert compiled == []
