"""MaxSim on a processor equals the twin written out, whatever the lengths and wherever the rows lie."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.kernels.maxsim import choice, packed, reference
from gpu_worker.kernels.maxsim import winners as explaining
from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, Texts
from gpu_worker.kernels.maxsim.packed import PackedMaxSim
from gpu_worker.kernels.maxsim.winners import winners
from shared.vectors import Layout
from support.onednn import needs_packed_layers

LAYOUTS = st.sampled_from(Layout)


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


@settings(deadline=None, max_examples=150)
@given(st.data(), LAYOUTS, st.sampled_from([4, 24, 16_384 * 32]), st.sampled_from([0, 256]), st.booleans())
def test_packed_equals_the_reference(data: st.DataObject, layout: Layout, block: int, span: int, masked: bool) -> None:
    """Several comparisons at once, empty texts, any order and gaps, masked rows, blocks and spans of any size."""
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
    vectors = rows(query_rows), rows(document_rows, shift=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "BLOCK_ELEMENTS", block)
        patch.setattr(packed, "SPAN_ROWS", span)
        patch.setattr(packed, "BEST_ELEMENTS", 8)
        ours = PackedMaxSim()(*vectors, comparisons, kept)
    assert torch.allclose(ours, reference.compare(*vectors, comparisons, kept), atol=1e-5)
    assert len(ours) == sum(each.count for each in comparisons)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("product", [packed.plain, pytest.param(packed.onednn, marks=needs_packed_layers)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("query", [1, 31, 32, 33, 1024])
def test_lengths_that_kernels_fail_at(layout: Layout, product: Any, dtype: torch.dtype, query: int) -> None:
    """Of queries and documents, in every number format, within 1e-3; the same input twice gives the same bits."""
    lengths = np.array([1, 15, 16, 17, 8192, 0])
    asked = Texts.end_to_end(np.full(len(lengths), query))
    found = Texts.end_to_end(lengths)
    generator = torch.Generator().manual_seed(query)
    vectors = [
        torch.nn.functional.normalize(torch.randn(int(each.lengths.sum()), 48, generator=generator), dim=1).to(dtype)
        for each in (asked, found)
    ]
    comparison = [Comparison(queries=asked, documents=found, layout=layout)]
    if layout is Layout.MATRIX:
        one = Texts(starts=asked.starts[:1], lengths=asked.lengths[:1])
        comparison = [Comparison(queries=one, documents=found, layout=layout)]
    ours = PackedMaxSim(product)(vectors[0], vectors[1], comparison)
    assert torch.allclose(ours, reference.compare(vectors[0], vectors[1], comparison), atol=1e-3)
    assert torch.equal(ours, PackedMaxSim(product)(vectors[0], vectors[1], comparison))


def test_an_absent_row_is_minus_infinity() -> None:
    """Zero padding would raise the score of a short document whose products are all negative."""
    queries, documents = torch.ones(2, 4), -torch.ones(5, 4)
    texts = Texts.end_to_end(np.array([1, 4]))
    for layout, asked in ((Layout.MATRIX, [2]), (Layout.PAIRS, [1, 1])):
        comparison = Comparison(queries=Texts.end_to_end(np.array(asked)), documents=texts, layout=layout)
        scores = PackedMaxSim()(queries, documents, [comparison], np.array([True, False, True, False, False]))
        assert scores.tolist() == [-8.0, -8.0] if layout is Layout.MATRIX else [-4.0, -4.0]


def test_a_document_of_skipped_rows_alone_has_the_lowest_score() -> None:
    """All punctuation: not NaN, not infinity."""
    texts = Texts.end_to_end(np.array([2, 2]))
    comparison = Comparison(queries=Texts.end_to_end(np.array([3])), documents=texts, layout=Layout.MATRIX)
    scores = PackedMaxSim()(rows(3), rows(4), [comparison], np.array([False, False, True, False]))
    assert scores[0] == reference.EMPTY_DOCUMENT
    assert scores[1] > -100


@settings(deadline=None, max_examples=80)
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
        patch.setattr(explaining, "BLOCK_ELEMENTS", block)
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


def test_the_product_that_is_chosen_agrees() -> None:
    """Whichever it is; a build without oneDNN takes PyTorch's."""
    queries, documents = rows(33, 128), rows(500, 128)
    assert torch.allclose(choice.faster_product(128)(documents, queries), documents @ queries.T, atol=1e-4)

    def missing(*_: object) -> torch.Tensor:
        raise AttributeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "onednn", missing)
        assert choice.faster_product.__wrapped__(128) is packed.plain


EMPTY = np.zeros(2048, dtype=np.int64)
SIZES: dict[str, tuple[list[int], Any, Layout]] = {
    "many rows of both": ([50] * 40, np.full(5000, 20), Layout.MATRIX),
    "one long document": ([2000], np.array([100_000]), Layout.MATRIX),
    "a long query and empty documents": ([100_000, *[1] * 2047], EMPTY, Layout.PAIRS),
    "pairs of very different queries": ([100_000, *[1] * 2047], EMPTY + 3, Layout.PAIRS),
    "a long pair": ([2000], np.array([100_000]), Layout.PAIRS),
}


BOUND = 96 * 1024 * 1024
"""Bytes. All similarities would take 800 MB; a fresh process was seen to take 66 to 72 MiB for the first size, its
libraries' own beginnings among them, and one that has worked before less."""


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_bounded_whatever_the_size(size: str) -> None:
    """Far from what all similarities would take, scores and explanations alike, beside rows and results."""
    asked, found, layout = SIZES[size]
    queries, documents = rows(sum(asked), 2), rows(int(found.sum()), 2)
    comparison = Comparison(queries=Texts.end_to_end(np.array(asked)), documents=Texts.end_to_end(found), layout=layout)
    assert peak_growth(lambda: PackedMaxSim()(queries, documents, [comparison])) < BOUND
    if layout is Layout.MATRIX:
        result = 8 * len(queries) * len(found)
        grown = peak_growth(lambda: winners(queries, documents, comparison.documents))
        assert grown < BOUND + 3 * result


def peak_growth(work: Callable[[], object]) -> int:
    """Bytes that the process grew by at most while `work` ran."""

    def memory(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before
