"""Comparisons of texts, described on the host: which rows of which tensors belong to which text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gpu_worker.ragged.batch import Counts
from shared.vectors import Layout

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
    """A kernel that computes scores; all of them agree with `reference.compare`."""

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
