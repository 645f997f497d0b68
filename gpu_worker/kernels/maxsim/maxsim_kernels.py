"""Kernels of MaxSim but Triton's (`kernel`): ours in C++, PyTorch's products; the choice; the explanation of a score.

No I/O.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.transfer import to_device
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, MaxSimKernel, Texts
from gpu_worker.kernels.maxsim.reference import EMPTY_DOCUMENT
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.ragged.texts import row_ranges
from shared.vectors import Layout

COMPARED = 16_384 * 32
"""Limit for similarities in memory at once where PyTorch compares, whatever the lengths."""
EXPLAINED = 2_097_152
"""The same where scores are explained."""


def choose(device: torch.device, width: int) -> MaxSimKernel:
    """Returns the fastest kernel for token vectors of `width` dimensions, compiled where it needs to be.

    On a processor that is ours in C++ where it is built: it takes a third to a half of the others' time.
    """
    if device.type == "cpu":
        kernels = library.load()
        return NativeMaxSim(kernels) if torch.float32 in kernels.formats else PlainMaxSim()
    if device.type == "cuda":
        try:
            from gpu_worker.kernels.maxsim.kernel import TritonMaxSim
        except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
            return PlainMaxSim()
        kernel = TritonMaxSim()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            kernel.warm(device, dtype, width)
        return kernel
    return PlainMaxSim()


class NativeMaxSim:
    """The `comparison.MaxSimKernel` for processors whose library of kernels is built (`kernels/cpu`).

    A score has the same bits whatever else is compared. Rows in bfloat16 are multiplied as they are where the processor
    has such products; otherwise, and in float16, as float32.
    """

    def __init__(self, kernels: KernelLibrary) -> None:
        assert torch.float32 in kernels.formats
        self.name = f"native ({kernels.instructions})"

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes scores (see `comparison.MaxSimKernel`), in all threads of PyTorch."""
        sizes = [(len(part.queries), len(part.documents), int(part.layout is Layout.PAIRS)) for part in comparisons]
        scores: Tensor = torch.ops.selvage.maxsim(
            queries.contiguous(),
            documents.contiguous(),
            *_places([part.queries for part in comparisons]),
            *_places([part.documents for part in comparisons]),
            [number for size in sizes for number in size],
            None if row_mask is None else torch.from_numpy(np.ascontiguousarray(row_mask)),
            EMPTY_DOCUMENT,
        )
        return scores


def _places(texts: Sequence[Texts]) -> tuple[Tensor, Tensor]:
    """First rows and numbers of rows [n] int64 of all texts."""
    nothing = np.empty(0, np.int64)
    starts, lengths = [nothing, *(part.starts for part in texts)], [nothing, *(part.lengths for part in texts)]
    return torch.from_numpy(np.concatenate(starts)), torch.from_numpy(np.concatenate(lengths))


class PlainMaxSim:
    """The `comparison.MaxSimKernel` of processors without our kernels, and of devices without a kernel of theirs."""

    name = "plain (torch)"

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes scores (see `comparison.MaxSimKernel`); converts half precision to float32."""
        queries, documents = queries.float(), documents.float()
        scores = [queries.new_empty(0)]
        for comparison in comparisons:
            rows_of = [
                _rows(documents, start, length, row_mask)
                for start, length in zip(comparison.documents.starts, comparison.documents.lengths, strict=True)
            ]
            if comparison.layout is Layout.PAIRS:
                for pair, rows in enumerate(rows_of):
                    scores.append(
                        _scores(*_gathered(queries, comparison.queries.part(pair, pair + 1)), [rows]).flatten()
                    )
            else:
                scores.append(_scores(*_gathered(queries, comparison.queries), rows_of).flatten())
        return torch.cat(scores)


def _rows(documents: Tensor, start: int, length: int, row_mask: Mask | None) -> Tensor:
    """The rows of a document that count."""
    rows = documents[start : start + length]
    if row_mask is None:
        return rows
    return rows.index_select(
        0, to_device(torch.from_numpy(np.flatnonzero(row_mask[start : start + length])), rows.device)
    )


def _gathered(queries: Tensor, texts: Texts) -> tuple[Tensor, Tensor, int]:
    """All rows of the queries, the number of each row's query, and the number of queries."""
    rows, text_of = row_ranges(texts.starts, texts.lengths), np.repeat(np.arange(len(texts)), texts.lengths)
    places, texts_of_rows = (to_device(torch.from_numpy(numbers), queries.device) for numbers in (rows, text_of))
    return queries.index_select(0, places), texts_of_rows, len(texts)


def _scores(rows: Tensor, text_of: Tensor, count: int, documents: Sequence[Tensor]) -> Tensor:
    """Scores [count, documents] of queries' rows [R, D], of which row r belongs to query `text_of`[r]."""
    scores = rows.new_zeros(count, len(documents))
    for number, document in enumerate(documents):
        if len(document) == 0:
            scores[:, number] = EMPTY_DOCUMENT
            continue
        best = rows.new_full((len(rows),), float("-inf"))
        for part in document.split(max(1, COMPARED // max(1, len(rows)))):
            torch.maximum(best, (rows @ part.T).amax(dim=1), out=best)
        scores[:, number] = rows.new_zeros(count).index_add_(0, text_of, best)
    return scores


def winners(queries: Tensor, documents: Tensor, texts: Texts, row_mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Finds the largest similarity [S, q] float32 of every document and query row, and its row [S, q] int32.

    queries [q, D], documents [N, D] with its `texts`; `row_mask` [N] selects the rows that count. Of equal similarities
    the first wins. A document without rows that count has the similarity 0 and the row -1. Documents are computed one
    after the other: explanations are few, and memory then does not depend on the number or the lengths of documents.
    """
    best = queries.new_full((len(texts), len(queries)), float("-inf"), dtype=torch.float32)
    places = torch.full(best.shape, -1, dtype=torch.int32, device=queries.device)
    query_rows, step = queries.float(), max(1, EXPLAINED // max(1, len(queries)))
    kernels = row_kernels.choose(queries.device)
    counted = None if row_mask is None else to_device(torch.from_numpy(row_mask), queries.device)
    for text, (first, length) in enumerate(zip(texts.starts.tolist(), texts.lengths.tolist(), strict=True)):
        for start in range(first, first + length, step):
            rows = slice(start, min(start + step, first + length))
            products = kernels.products(query_rows, documents[rows].float())
            if counted is not None:
                products.masked_fill_(~counted[rows], float("-inf"))
            largest, where = products.max(dim=1)  # of equal ones the first
            better = largest > best[text]
            places[text] = torch.where(better, (where + (start - first)).int(), places[text])
            best[text] = torch.where(better, largest, best[text])
    return best.masked_fill_(places < 0, 0.0), places
