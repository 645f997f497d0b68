"""What is to be compared, told on the host: which rows of which tensors belong to which text."""

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
    """Where the rows of n texts lie in a tensor of rows: text i has rows starts[i] to starts[i] + lengths[i] - 1.

    A length may be 0. Texts may lie in any order, with other rows between them.
    """

    starts: Counts
    lengths: Counts

    @classmethod
    def end_to_end(cls, lengths: Counts) -> "Texts":
        """Texts that lie one after the other from row 0 on."""
        return cls(starts=np.cumsum(lengths) - lengths, lengths=lengths)

    def part(self, start: int, stop: int) -> "Texts":
        """Texts `start` to `stop`."""
        return Texts(starts=self.starts[start:stop], lengths=self.lengths[start:stop])

    def counted(self, kept: Mask | None) -> Counts:
        """[n] how many rows of each text count."""
        if kept is None:
            return self.lengths
        before = np.concatenate([[0], np.cumsum(kept)])
        found: Counts = before[self.starts + self.lengths] - before[self.starts]
        return found

    def __len__(self) -> int:
        """n."""
        return len(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Queries that meet documents: query i with document i (PAIRS), or every query with every document (MATRIX)."""

    queries: Texts
    documents: Texts
    layout: Layout

    @property
    def count(self) -> int:
        """How many scores it has."""
        rows, columns = self.layout.shape(len(self.queries), len(self.documents))
        return rows * columns

    def part(self, start: int, stop: int) -> "Comparison":
        """The same for documents `start` to `stop`; of pairs with their queries only."""
        queries = self.queries.part(start, stop) if self.layout is Layout.PAIRS else self.queries
        return Comparison(queries=queries, documents=self.documents.part(start, stop), layout=self.layout)


class MaxSimKernel(Protocol):
    """A way to compute scores; all of them agree with `reference.compare`."""

    name: str

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], kept: Mask | None = None
    ) -> Tensor:
        """The scores of all comparisons, one after the other, each row-major: [sum of counts] float32.

        queries [N, D] and documents [M, D] hold rows of one dtype (float32, bfloat16 or float16) on one device;
        `kept` [M] tells which document rows count, None all. A score is the sum over its query's rows of the largest
        dot product with a row of its document, products and sums in float32. A document without rows that count
        scores -1e9, else a query without rows 0.
        """
