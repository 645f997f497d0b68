"""The kernel of MaxSim in Triton's interpreter against the twin.

It runs one program after the other: what they do at the same time is proven by tests/gpu only.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.kernels.maxsim.maxsim_kernels import Comparison, Mask, PlainMaxSim, Texts
from gpu_worker.kernels.maxsim.triton_maxsim import PairTable
from shared.vectors import Layout
from support.tiny import unit_rows

pytest.importorskip("triton", reason="Triton is published for Linux on x86-64")

from support.interpreted import interpreted  # Triton first

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-3, torch.float16: 1e-3}
WIDTHS = [1, 3, 16, 48, 50, 72, 128, 136, 200, 768, 1024]
"""Rows that fill a block, that do not, that need several and that begin at odd addresses."""
ROWS = 90


@pytest.fixture(scope="module")
def modules() -> Iterator[list[ModuleType]]:
    with interpreted("gpu_worker.kernels.maxsim.maxsim_tiles", "gpu_worker.kernels.maxsim.triton_maxsim") as found:
        yield found


@pytest.fixture(scope="module")
def tiles(modules: list[ModuleType]) -> ModuleType:
    """What runs on the device."""
    return modules[0]


@pytest.fixture(scope="module")
def kernel(modules: list[ModuleType]) -> ModuleType:
    return modules[1]


def texts(*lengths: int) -> Texts:
    return Texts.end_to_end(np.array(lengths, dtype=np.int64))


def matrix(queries: Texts, documents: Texts) -> Comparison:
    return Comparison(queries=queries, documents=documents, layout=Layout.MATRIX)


def agree(kernel: ModuleType, *arguments: Any, chunk_rows: int = 1024) -> Tensor:
    """The kernel's scores, which equal the twin's within the tolerance of the type."""
    expected = PlainMaxSim()(*arguments)
    scores: Tensor = kernel.TritonMaxSim(chunk_rows)(*arguments)
    assert scores.dtype == torch.float32
    assert scores.shape == expected.shape
    assert ((scores - expected).abs() <= TOLERANCE[arguments[0].dtype]).all()
    return scores


@st.composite
def some_texts(draw: st.DrawFn, count: int) -> Texts:
    """In any order, with gaps, overlapping, empty."""
    lengths = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    starts = [draw(st.integers(0, ROWS - length)) for length in lengths]
    return Texts(starts=np.array(starts, dtype=np.int64), lengths=np.array(lengths, dtype=np.int64))


@st.composite
def some_comparison(draw: st.DrawFn) -> Comparison:
    layout = draw(st.sampled_from(Layout))
    queries = draw(st.integers(0, 3))
    documents = queries if layout is Layout.PAIRS else draw(st.integers(0, 4))
    return Comparison(queries=draw(some_texts(queries)), documents=draw(some_texts(documents)), layout=layout)


MASKS = st.none() | st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(np.array)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(some_comparison(), max_size=3),
    MASKS,
    st.sampled_from(DTYPES),
    st.sampled_from(WIDTHS),
    st.sampled_from([5, 16, 1024]),
)
def test_it_equals_the_twin(
    kernel: ModuleType, comparisons: list[Comparison], kept: Mask | None, dtype: torch.dtype, width: int, chunk: int
) -> None:
    """Texts anywhere, both layouts, several comparisons, masks, number formats, widths, chunks."""
    queries, documents = unit_rows(ROWS, width, dtype), unit_rows(ROWS, width, dtype, seed=1)
    agree(kernel, queries, documents, comparisons, kept, chunk_rows=chunk)


@pytest.mark.parametrize(
    ("dtype", "longest"), [(DTYPES[0], 2048), *(pytest.param(each, 8192, marks=pytest.mark.slow) for each in DTYPES)]
)
def test_every_length(kernel: ModuleType, dtype: torch.dtype, longest: int) -> None:
    """At the edges of blocks and tiles, and far beyond them: 2,048 rows are two chunks, 8,192 eight."""
    queries, documents = texts(1, 31, 32, 33), texts(1, 15, 16, 17, longest)
    rows = unit_rows(1024, 32, dtype), unit_rows(49 + longest, 32, dtype, seed=1)
    comparisons = [matrix(queries, documents), matrix(texts(longest // 8), texts(1, 15, 16, 17, 100))]
    assert PairTable.of(comparisons, kernel.CHUNK_ROWS).scratch > 0
    agree(kernel, *rows, comparisons)


def test_views_at_odd_addresses_and_with_strides(kernel: ModuleType) -> None:
    queries, documents = unit_rows(40, 70, torch.bfloat16)[:, :64], unit_rows(41, 8, torch.bfloat16).flatten()[3:]
    documents = documents[: 5 * 64].reshape(5, 64)
    assert documents.data_ptr() % 16
    agree(kernel, queries, documents, [matrix(texts(32, 8), texts(2, 3))])


@pytest.mark.parametrize("length", [1, 17, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_absent_row_is_not_a_zero(kernel: ModuleType, dtype: torch.dtype, length: int) -> None:
    """All products are negative, so one row of zeros would win everywhere; where it is really there, it does."""
    documents = torch.zeros(length + 20, 48, dtype=dtype)
    documents[:length] = -unit_rows(length, 48).abs().to(dtype)
    rows = unit_rows(31, 48).abs().to(dtype), documents
    scores = agree(kernel, *rows, [matrix(texts(31), texts(length))])
    assert scores.item() < -1
    padded = [matrix(texts(31), texts(length + 20))]
    assert agree(kernel, *rows, padded).tolist() == [0]
    assert torch.equal(agree(kernel, *rows, padded, np.arange(length + 20) < length), scores)


def many(dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, list[Comparison], Mask]:
    """Something of everything, half of it long enough to be split into chunks of 64."""
    generator = np.random.default_rng(0)
    pairs = Comparison(queries=texts(40, 3), documents=texts(65, 64), layout=Layout.PAIRS)
    comparisons = [matrix(texts(33, 0, 5), texts(200, 63, 0, 130)), pairs]
    return unit_rows(43, 96, dtype), unit_rows(393, 96, dtype, seed=1), comparisons, generator.random(393) < 0.9


@pytest.mark.parametrize(
    "dtype", [pytest.param(each, marks=() if each is torch.bfloat16 else pytest.mark.slow) for each in DTYPES]
)
def test_the_same_bits_twice_and_however_documents_are_split(kernel: ModuleType, dtype: torch.dtype) -> None:
    """Chunks of whole tiles change no bit; others only how the processor's library multiplies."""
    whole = agree(kernel, *many(dtype))
    assert torch.equal(agree(kernel, *many(dtype)), whole)
    for chunk in (64, 128):
        assert torch.equal(agree(kernel, *many(dtype), chunk_rows=chunk), whole)
    for chunk in (7, 100):
        assert torch.allclose(agree(kernel, *many(dtype), chunk_rows=chunk), whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("programs", [1, 2, 1000])
def test_programs_may_do_the_work_in_any_order(
    kernel: ModuleType, tiles: ModuleType, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever chunk of a document comes last sums up, and no other; not a bit changes."""
    scores = agree(kernel, *many(), chunk_rows=64)

    class Shuffled(PairTable):
        @classmethod
        def of(cls, comparisons: Any, chunk_rows: int, kept: Mask | None = None) -> PairTable:
            table = PairTable.of(comparisons, chunk_rows, kept)
            return replace(table, items=np.random.default_rng(programs).permutation(table.items))

    monkeypatch.setattr(kernel, "PairTable", Shuffled)
    monkeypatch.setattr(kernel, "_programs", lambda device: programs)
    sum_up, summed = tiles._sum_up, []
    monkeypatch.setattr(tiles, "_sum_up", lambda *given: (summed.append(given), sum_up(*given))[1])
    assert torch.equal(agree(kernel, *many(), chunk_rows=64), scores)
    assert len(summed) == 7  # three queries with the documents of 200 and 130 rows, one with that of 65


@settings(deadline=None, max_examples=4)
@given(st.permutations(range(4)), st.permutations(range(3)))
def test_a_score_does_not_depend_on_its_company(kernel: ModuleType, columns: list[int], rows: list[int]) -> None:
    """Nor on the order of queries and documents. Not in one bit."""
    queries, documents, (comparison, _), kept = many()
    scores = kernel.TritonMaxSim(64)(queries, documents, [comparison], kept).reshape(3, 4)
    asked, found = comparison.queries, comparison.documents
    turned = matrix(
        Texts(starts=asked.starts[rows], lengths=asked.lengths[rows]),
        Texts(starts=found.starts[columns], lengths=found.lengths[columns]),
    )
    again = kernel.TritonMaxSim(64)(queries, documents, [turned], kept).reshape(3, 4)
    assert torch.equal(again, scores[rows][:, columns])
    alone = matrix(texts(33), Texts(starts=found.starts[columns[:1]], lengths=found.lengths[columns[:1]]))
    assert torch.equal(kernel.TritonMaxSim(64)(queries, documents, [alone], kept)[0], scores[0, columns[0]])


@settings(deadline=None, max_examples=8)
@given(st.lists(some_comparison(), min_size=1, max_size=3), MASKS)
def test_more_pairs_than_one_table_holds_take_several(
    kernel: ModuleType, comparisons: list[Comparison], kept: Mask | None
) -> None:
    queries, documents = unit_rows(ROWS, 16), unit_rows(ROWS, 16, seed=1)
    whole = kernel.TritonMaxSim()(queries, documents, comparisons, kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "MOST_PAIRS", 2)
        assert torch.equal(kernel.TritonMaxSim()(queries, documents, comparisons, kept), whole)
