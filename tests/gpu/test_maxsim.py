"""The kernel of MaxSim on CUDA against the twin on the CPU: numbers, bits, waits and compilations."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.maxsim.maxsim_kernels import Comparison, Mask, PlainMaxSim, Texts
from shared.vectors import Layout
from support.tiny import unit_rows

pytest.importorskip("triton", reason="Triton is published for Linux on x86-64")

import triton

from gpu_worker.kernels.maxsim.triton_maxsim import TritonMaxSim

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-3, torch.float16: 1e-3}
QUERIES, DOCUMENTS = [0, 1, 31, 32, 33, 1024], [0, 1, 15, 16, 17, 300, 1025, 8192]


def texts(lengths: list[int]) -> Texts:
    return Texts.end_to_end(np.array(lengths, dtype=np.int64))


def everything(width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, list[Comparison], Mask]:
    """All lengths, both layouts, and a mask that leaves one document without rows; on the CPU."""
    comparisons = [
        Comparison(queries=texts(QUERIES), documents=texts(DOCUMENTS), layout=Layout.MATRIX),
        Comparison(queries=texts(QUERIES), documents=texts(DOCUMENTS[:6]), layout=Layout.PAIRS),
    ]
    kept = np.random.default_rng(0).random(sum(DOCUMENTS)) < 0.8
    kept[1:16] = False
    rows = unit_rows(sum(QUERIES), width, dtype, 0), unit_rows(sum(DOCUMENTS), width, dtype, 1)
    return *rows, comparisons, kept


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 48, 50, 64, 96, 128, 200, 768, 1024])
def test_it_equals_the_twin(cuda: torch.device, width: int, dtype: torch.dtype, masked: bool) -> None:
    """Every length, both layouts; a query of 1,024 rows within the tolerance of one of 32, for its score's size."""
    queries, documents, comparisons, mask = everything(width, dtype)
    kept = mask if masked else None
    expected = PlainMaxSim()(queries, documents, comparisons, kept)
    scores = TritonMaxSim()(queries.to(cuda), documents.to(cuda), comparisons, kept).cpu()
    assert ((scores - expected).abs() <= TOLERANCE[dtype] * (expected.abs() / 32).clamp(min=1)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_negative_maxima(cuda: torch.device, dtype: torch.dtype) -> None:
    queries, documents = unit_rows(33, 128, dtype, 0).abs(), -unit_rows(170, 128, dtype, 1).abs()
    compared = [Comparison(queries=texts([33]), documents=texts([1, 15, 17, 137]), layout=Layout.MATRIX)]
    scores = TritonMaxSim()(queries.to(cuda), documents.to(cuda), compared).cpu()
    assert (scores - PlainMaxSim()(queries, documents, compared)).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_every_time(cuda: torch.device, dtype: torch.dtype) -> None:
    """Chunks of split documents arrive in another order each time; how documents are split shows in rounding only."""
    queries, documents, comparisons, kept = everything(128, dtype)
    rows = queries.to(cuda), documents.to(cuda)
    first = TritonMaxSim(64)(*rows, comparisons, kept)
    for _ in range(50):
        assert torch.equal(TritonMaxSim(64)(*rows, comparisons, kept), first)
    whole = TritonMaxSim(10_000)(*rows, comparisons, kept)
    assert torch.allclose(first, whole, rtol=1e-6, atol=1e-6)


def test_rows_beyond_two_billion_numbers(cuda: torch.device) -> None:
    count = 2**31 // 128 + 1000
    documents = torch.empty(count, 128, dtype=torch.bfloat16, device=cuda)
    rows = unit_rows(300, 128, torch.bfloat16, 1)
    documents[-300:] = rows.to(cuda)
    queries = unit_rows(32, 128, torch.bfloat16, 0)
    there = Texts(starts=np.array([count - 300]), lengths=np.array([300]))
    compared = Comparison(queries=texts([32]), documents=there, layout=Layout.PAIRS)
    near = Comparison(queries=texts([32]), documents=texts([300]), layout=Layout.PAIRS)
    scores = TritonMaxSim()(queries.to(cuda), documents, [compared]).cpu()
    assert (scores - PlainMaxSim()(queries, rows, [near])).abs().max() <= 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [48, 128, 768])
def test_a_call_neither_waits_nor_compiles(
    cuda: torch.device, dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `warm`, whatever the lengths, counts and chunks; CUDA's own debug mode raises where something waits."""
    kernel = TritonMaxSim()
    kernel.warm(cuda, dtype, width)
    queries, documents, comparisons, kept = everything(width, dtype)
    rows = queries.to(cuda), documents.to(cuda)
    compiled: list[object] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **given: compiled.append(given))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for some, mask, chunk in product((comparisons, comparisons[1:]), (None, kept), (64, 1024)):
            TritonMaxSim(chunk)(*rows, some, mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert compiled == []
