"""MaxSim: what is compared, all kernels but Triton's (`triton_maxsim`), the choice among them, explanations of scores.

Comparisons are described on the host: which rows of which tensors belong to which text. No I/O.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import to_device
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.ragged.texts import Counts
from shared.vectors import Layout

EMPTY_DOCUMENT = -1e9
"""Score of a document without rows, as sentence-transformers has it."""
COMPARED = 16_384 * 32
"""Limit for similarities in memory at once where PyTorch compares, whatever the lengths."""
EXPLAINED = 2_097_152
"""Limit for similarities in memory at once where PyTorch compares and explains scores."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Places of n texts in a tensor of rows: text i has rows starts[i] to starts[i] + lengths[i] - 1.

    A length may be 0. Texts may lie in any order, with other rows between them.
    """

    starts: Counts
    lengths: Counts

    @classmethod
    def end_to_end(cls, lengths: Counts) -> "Texts":
        """Places texts one after the other, from row 0 on."""
        return cls(starts=np.cumsum(lengths) - lengths, lengths=lengths)

    def part(self, start: int, stop: int) -> "Texts":
        """Selects texts `start` to `stop`."""
        return Texts(starts=self.starts[start:stop], lengths=self.lengths[start:stop])

    def counted(self, row_mask: Mask | None) -> Counts:
        """Counts the rows of each text [n] that the mask selects."""
        if row_mask is None:
            return self.lengths
        before = np.concatenate([[0], np.cumsum(row_mask)])
        counts: Counts = before[self.starts + self.lengths] - before[self.starts]
        return counts

    def __len__(self) -> int:
        """The number of texts."""
        return len(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Queries to score with documents: query i with document i (PAIRS), or every query with every document (MATRIX)."""

    queries: Texts
    documents: Texts
    layout: Layout

    @property
    def count(self) -> int:
        """The number of scores."""
        rows, columns = self.layout.shape(len(self.queries), len(self.documents))
        return rows * columns

    def part(self, start: int, stop: int) -> "Comparison":
        """Selects documents `start` to `stop`, of pairs also their queries."""
        queries = self.queries.part(start, stop) if self.layout is Layout.PAIRS else self.queries
        return Comparison(queries=queries, documents=self.documents.part(start, stop), layout=self.layout)


class MaxSimKernel(Protocol):
    """A kernel that computes scores; all of them agree with `PlainMaxSim`."""

    name: str

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes the scores of all comparisons, one after the other, each row-major: [sum of counts] float32.

        queries [N, D] and documents [M, D] hold rows of one dtype (float32, bfloat16 or float16) on one device;
        `row_mask` [M] selects the document rows that count; None selects all. A score is the sum over its query's rows
        of the largest dot product with a row of its document, products and sums in float32. A document without rows
        that count scores -1e9; otherwise a query without rows scores 0.
        """


def choose(device: torch.device, width: int) -> MaxSimKernel:
    """Returns the fastest kernel for token vectors of `width` dimensions, compiled where it needs to be.

    On a processor that is ours in C++ where it is built: it takes a third to a half of the others' time.
    """
    if device.type == "cpu":
        kernels = library.load()
        return NativeMaxSim(kernels) if torch.float32 in kernels.formats else PlainMaxSim()
    if device.type == "cuda":
        try:
            from gpu_worker.kernels.maxsim.triton_maxsim import TritonMaxSim
        except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
            return PlainMaxSim()
        kernel = TritonMaxSim()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            kernel.warm(device, dtype, width)
        return kernel
    return PlainMaxSim()


class NativeMaxSim:
    """The `MaxSimKernel` for processors whose library of kernels is built (`kernels/cpu`).

    A score has the same bits whatever else is compared. Rows in bfloat16 are multiplied as they are where the processor
    has such products; otherwise, and in float16, as float32.
    """

    def __init__(self, kernels: KernelLibrary) -> None:
        assert torch.float32 in kernels.formats
        self.name = f"native ({kernels.instructions})"

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes scores (see `MaxSimKernel`), in all threads of PyTorch."""
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
    """Finds the first rows and numbers of rows [n] int64 of all texts."""
    nothing = np.empty(0, np.int64)
    starts, lengths = [nothing, *(part.starts for part in texts)], [nothing, *(part.lengths for part in texts)]
    return torch.from_numpy(np.concatenate(starts)), torch.from_numpy(np.concatenate(lengths))


class PlainMaxSim:
    """MaxSim written out, one pair after the other: the twin that every faster kernel is compared with. It serves
    processors without our kernels, and devices without a kernel of theirs."""

    name = "plain (torch)"

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes scores (see `MaxSimKernel`); converts half precision to float32."""
        queries, documents = queries.float(), documents.float()
        scores = queries.new_empty(sum(comparison.count for comparison in comparisons))
        pairs = (
            (zip if comparison.layout is Layout.PAIRS else product)(
                _rows(queries, comparison.queries), _rows(documents, comparison.documents, row_mask)
            )
            for comparison in comparisons
        )
        for place, (query, document) in enumerate(chain.from_iterable(pairs)):
            scores[place] = score_of(query, document)
        return scores


def score_of(query: Tensor, document: Tensor) -> Tensor:
    """Computes the sum over a query's rows [q, D] of the largest product with a row of a document [d, D], all
    float32."""
    if not len(document):
        return query.new_full((), EMPTY_DOCUMENT)
    best = query.new_full((len(query),), float("-inf"))
    for part in document.split(max(1, COMPARED // max(1, len(query)))):
        torch.maximum(best, (query @ part.T).amax(dim=1), out=best)
    return best.sum()


def _rows(rows: Tensor, texts: Texts, row_mask: Mask | None = None) -> Iterator[Tensor]:
    """The rows of each text, those that count. Places are found on the host: nothing waits for the device."""
    for start, length in zip(texts.starts.tolist(), texts.lengths.tolist(), strict=True):
        text = slice(start, start + length)
        if row_mask is None:
            yield rows[text]
        else:
            places = torch.from_numpy(start + np.flatnonzero(row_mask[text]))
            yield rows.index_select(0, to_device(places, rows.device))


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
