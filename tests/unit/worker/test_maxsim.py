"""MaxSim on a processor equals the twin written out, whatever the lengths and wherever the rows lie."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.kernels.maxsim import maxsim_kernels
from gpu_worker.kernels.maxsim.maxsim_kernels import (
    EMPTY_DOCUMENT,
    Comparison,
    Mask,
    MaxSimKernel,
    NativeMaxSim,
    PlainMaxSim,
    Texts,
    winners,
)
from shared.vectors import Layout
from support.native import LIBRARY, needs_kernels
from support.peak_memory import peak_growth
from support.tiny import unit_rows

LAYOUTS = st.sampled_from(Layout)
KERNELS = ["plain", pytest.param("native", marks=needs_kernels)]


def kernel_of(name: str) -> MaxSimKernel:
    """The processor's kernel, or that of every device."""
    return NativeMaxSim(LIBRARY) if name == "native" else PlainMaxSim()


def scattered(lengths: Sequence[int], order: Any, gaps: bool) -> tuple[Texts, int]:
    """Texts of these lengths in another order, with or without other rows between them; and all rows there are."""
    starts, place = np.zeros(len(lengths), dtype=np.int64), 0
    for text in order.permutation(len(lengths)):
        place += int(order.integers(0, 3)) if gaps else 0
        starts[text] = place
        place += lengths[text]
    return Texts(starts=starts, lengths=np.array(lengths, dtype=np.int64)), place


def rows(count: int, width: int = 5, shift: float = 0.0) -> torch.Tensor:
    """Of negative products with unshifted ones, where `shift` is large."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)) - shift


def written_out(
    queries: torch.Tensor, documents: torch.Tensor, comparisons: Sequence[Comparison], kept: Mask | None = None
) -> torch.Tensor:
    """The formula of each pair, by numpy."""
    asked, found, scores = queries.float().numpy(), documents.float().numpy(), list[float]()
    kept = np.ones(len(found), dtype=np.bool_) if kept is None else kept
    for each in comparisons:
        all_pairs = itertools.product(range(len(each.queries)), range(len(each.documents)))
        pairs = all_pairs if each.layout is Layout.MATRIX else zip(*[range(len(each.queries))] * 2, strict=True)
        for q, d in pairs:
            rows_of_query = asked[each.queries.starts[q] :][: each.queries.lengths[q]]
            begin, length = each.documents.starts[d], each.documents.lengths[d]
            rows_of_document = found[begin:][:length][kept[begin:][:length]]
            best = (rows_of_query @ rows_of_document.T).max(axis=1) if len(rows_of_document) else [EMPTY_DOCUMENT]
            scores.append(float(np.sum(best)))
    return torch.tensor(scores)


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.data(), LAYOUTS, st.sampled_from([4, 24, 16_384 * 32]), st.booleans())
def test_equals_the_twin_written_out(
    kernel: str, data: st.DataObject, layout: Layout, block: int, masked: bool
) -> None:
    """Several comparisons at once, empty texts, any order and gaps, masked rows, blocks of any size."""
    order = np.random.default_rng(data.draw(st.integers(0, 99)))
    asked_lengths, found_lengths, cuts = [], [], []
    for _ in range(data.draw(st.integers(1, 3))):
        documents = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
        size = len(documents) if layout is Layout.PAIRS else data.draw(st.integers(1, 4))
        asked_lengths += data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
        found_lengths += documents
        cuts.append((size, len(documents)))
    asked, query_rows = scattered(asked_lengths, order, gaps=True)
    found, document_rows = scattered(found_lengths, order, gaps=data.draw(st.booleans()))
    comparisons, q, d = [], 0, 0
    for queries, documents_count in cuts:
        sides = [
            Texts(starts=each.starts[start : start + count], lengths=each.lengths[start : start + count])
            for each, start, count in ((asked, q, queries), (found, d, documents_count))
        ]
        comparisons.append(Comparison(queries=sides[0], documents=sides[1], layout=layout))
        q, d = q + queries, d + documents_count
    kept: Mask | None = order.random(document_rows) < 0.6 if masked else None
    width = data.draw(st.sampled_from([1, 5, 32, 50, 96, 1030]))
    vectors = rows(query_rows, width), rows(document_rows, width, shift=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maxsim_kernels, "COMPARED", block)
        ours = kernel_of(kernel)(*vectors, comparisons, kept)
    assert torch.allclose(ours, written_out(*vectors, comparisons, kept), rtol=1e-5, atol=2e-6 * max(width, 5))
    assert len(ours) == sum(each.count for each in comparisons)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    "kernel",
    [
        PlainMaxSim(),
        *([NativeMaxSim(LIBRARY)] if torch.float32 in LIBRARY.formats else []),
    ],
    ids=lambda kernel: str(kernel.name),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("query", [1, 31, 32, 33, 1024])
def test_lengths_that_kernels_fail_at(layout: Layout, kernel: MaxSimKernel, dtype: torch.dtype, query: int) -> None:
    """Of queries and documents, in every number format, within 1e-3; the same input twice gives the same bits."""
    lengths = np.array([1, 15, 16, 17, 8192, 0])
    asked = Texts.end_to_end(np.full(len(lengths), query))
    found = Texts.end_to_end(lengths)
    vectors = [unit_rows(int(each.lengths.sum()), 48, dtype, query + side) for side, each in enumerate((asked, found))]
    comparison = [Comparison(queries=asked, documents=found, layout=layout)]
    if layout is Layout.MATRIX:
        one = Texts(starts=asked.starts[:1], lengths=asked.lengths[:1])
        comparison = [Comparison(queries=one, documents=found, layout=layout)]
    ours = kernel(vectors[0], vectors[1], comparison)
    assert torch.allclose(ours, written_out(vectors[0], vectors[1], comparison), atol=1e-3)
    assert torch.equal(ours, kernel(vectors[0], vectors[1], comparison))


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_many_query_rows_equal_the_twin_and_themselves_alone(dtype: torch.dtype) -> None:
    """More than are multiplied at once, queries cut among them. A score has the same bits alone, in any order."""
    asked, found = (
        Texts.end_to_end(np.array(lengths)) for lengths in ([300, 300, 0, 1100, 1, 512, 40], [37, 0, 1, 150])
    )
    vectors = [unit_rows(int(each.lengths.sum()), 64, dtype, side) for side, each in enumerate((asked, found))]
    kernel = NativeMaxSim(LIBRARY)
    whole = [Comparison(queries=asked, documents=found, layout=Layout.MATRIX)]
    table = kernel(*vectors, whole).view(len(asked), len(found))
    assert torch.allclose(table.flatten(), written_out(*vectors, whole), rtol=1e-5, atol=1e-3)
    turned = slice(None, None, -1)
    others = Texts(starts=asked.starts[turned], lengths=asked.lengths[turned])
    other = kernel(*vectors, [Comparison(queries=others, documents=found, layout=Layout.MATRIX)])
    assert torch.equal(other.view(table.shape).flip(0), table)
    for query in range(len(asked)):
        for document in range(len(found)):
            sides = (asked.part(query, query + 1), found.part(document, document + 1))
            alone = kernel(*vectors, [Comparison(queries=sides[0], documents=sides[1], layout=Layout.PAIRS)])
            assert torch.equal(alone[0], table[query, document])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("row", [[1e30, 1e30], [1e30, -1e30]], ids=["infinity", "no number"])
def test_what_overflows_is_not_hidden(kernel: str, row: list[float]) -> None:
    """No finite product of another row takes its place: the caller is told."""
    queries = torch.full((3, 32), 1e30)
    documents = torch.cat([torch.zeros(40, 32), torch.tensor(row).repeat(1, 16), torch.zeros(40, 32)])
    comparison = Comparison(
        queries=Texts.end_to_end(np.array([3])), documents=Texts.end_to_end(np.array([81])), layout=Layout.MATRIX
    )
    assert not kernel_of(kernel)(queries, documents, [comparison]).isfinite().any()


@needs_kernels
def test_the_operator_refuses_what_lies_outside() -> None:
    """Texts beyond the rows, masks of another length, pairs that are none, rows of other widths."""
    places = torch.tensor([0]), torch.tensor([3])
    rows_of = torch.randn(3, 8)
    maxsim = torch.ops.selvage.maxsim
    assert maxsim(rows_of, rows_of, *places, *places, [1, 1, 0], None, 0.0).shape == (1,)
    beyond = torch.tensor([1]), torch.tensor([3])
    for arguments, reason in (
        ((rows_of, rows_of, *places, *beyond, [1, 1, 0], None), "outside of the rows"),
        ((rows_of, rows_of, *beyond, *places, [1, 1, 0], None), "outside of the rows"),
        ((rows_of, rows_of, *places, *places, [2, 1, 0], None), "fewer texts"),
        ((rows_of, rows_of, *places, *places, [-1, 1, 0], None), "fewer texts"),
        ((rows_of, rows_of, *places, *places, [], None), "more texts"),
        ((rows_of, rows_of, *places, *places, [1, 0, 1], None), "pairs need"),
        ((rows_of, rows_of, *places, *places, [1, 1, 0], torch.ones(2, dtype=torch.bool)), "mask"),
        ((rows_of, torch.randn(3, 9), *places, *places, [1, 1, 0], None), "number format"),
        ((rows_of.double(), rows_of.double(), *places, *places, [1, 1, 0], None), "float32, bfloat16 or float16"),
        ((rows_of[:, :0].clone(), rows_of[:, :0].clone(), *places, *places, [1, 1, 0], None), "rows have 0 numbers"),
        ((torch.randn(3, 16_385), torch.randn(3, 16_385), *places, *places, [1, 1, 0], None), "at most 16384"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            maxsim(*arguments, 0.0)


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=7),
    st.integers(0, 6),
    st.sampled_from([1, 12, 2_097_152]),
    st.booleans(),
)
def test_winners_are_the_rows_that_make_the_score(
    lengths: list[int], query_rows: int, block: int, masked: bool
) -> None:
    """Against argmax a document; their similarities add up to the score; the first of equal ones wins."""
    order = np.random.default_rng(sum(lengths))
    texts, total = scattered(lengths, order, gaps=True)
    queries, documents = rows(query_rows).round(), rows(total).round()
    kept: Mask | None = order.random(total) < 0.6 if masked else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maxsim_kernels, "EXPLAINED", block)
        similarities, places = winners(queries, documents, texts, kept)
    for text, (start, length) in enumerate(zip(texts.starts, lengths, strict=True)):
        counted = np.ones(length, bool) if kept is None else kept[start : start + length]
        products = (queries @ documents[start : start + length].T).numpy()
        if not counted.any():
            assert (places[text] == -1).all()
            assert (similarities[text] == 0).all()
            continue
        products[:, ~counted] = -np.inf
        assert places[text].tolist() == products.argmax(axis=1).tolist()
        assert similarities[text].tolist() == products.max(axis=1).tolist()


EMPTY = np.zeros(2048, dtype=np.int64)
SIZES: dict[str, tuple[list[int], Any, Layout]] = {
    "many rows of both": ([50] * 40, np.full(2500, 20), Layout.MATRIX),
    "one long document": ([2000], np.array([100_000]), Layout.MATRIX),
    "a long query and empty documents": ([100_000, *[1] * 2047], EMPTY, Layout.PAIRS),
    "pairs of very different queries": ([100_000, *[1] * 2047], EMPTY + 3, Layout.PAIRS),
    "a long pair": ([2000], np.array([100_000]), Layout.PAIRS),
}


BOUND = 96 * 1024 * 1024
"""Bytes. All similarities would take 400 MB and more; a fresh process was seen to take 66 to 72 MiB for the
first size, its libraries' own beginnings among them, and one that has worked before less."""


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", SIZES)
def test_memory_is_bounded_whatever_the_size(size: str, kernel: str) -> None:
    """Far from what all similarities would take, scores and explanations alike, beside rows and results."""
    asked, found, layout = SIZES[size]
    queries, documents = rows(sum(asked), 2), rows(int(found.sum()), 2)
    comparison = Comparison(queries=Texts.end_to_end(np.array(asked)), documents=Texts.end_to_end(found), layout=layout)
    assert peak_growth(lambda: kernel_of(kernel)(queries, documents, [comparison])) < BOUND
    if layout is Layout.MATRIX:
        result = 8 * len(queries) * len(found)
        grown = peak_growth(lambda: winners(queries, documents, comparison.documents))
        assert grown < BOUND + 3 * result
