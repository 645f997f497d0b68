"""What jobs have in common that compare rows on the device, in the second stage of a step.

Rows of queries are kept until a job's last document; rows of documents are not kept.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import StepDownload
from gpu_worker.engine.step.outputs import Compared, Outputs, SliceRows
from gpu_worker.ragged.texts import Counts
from shared.vectors import Layout

Scores = npt.NDArray[np.float32]


class ComparingJob:
    """A job that compares rows on the device."""

    def compare(self, slice_rows: SliceRows, outputs: Outputs, download: StepDownload) -> Sequence[Compared]:
        """On the device's thread, once the rows of a step are made: compares what they are for, and downloads it.

        Nothing may wait for the device here. Slices of a job come in the order of their steps. Comparisons that are
        added to `outputs` are computed after those of all jobs were, at once: their scores are read on the host.
        """
        raise NotImplementedError


class QueryRows:
    """Rows of the queries that were encoded so far, on the device."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}
        self._joined: tuple[Counts, Tensor] | None = None

    def add_queries(self, numbers: Counts, rows: Sequence[Tensor]) -> None:
        """Keeps the rows [q, W] of each query. Those of a query that came before are replaced: a step that went on with
        a text whose earlier piece failed made them of nothing, and is run again."""
        self._rows |= dict(zip(numbers.tolist(), rows, strict=True))
        self._joined = None

    def joined(self) -> tuple[Counts, Tensor]:
        """Numbers of the queries, ascending, and their rows end to end; joined again only after queries came."""
        if self._joined is None:
            numbers = np.array(sorted(self._rows))
            self._joined = (numbers, self.rows_of(numbers))
        return self._joined

    def compared_with(self, documents: Counts, layout: Layout) -> tuple[Counts, Tensor]:
        """Numbers and rows, end to end, of the queries that documents are compared with: all so far, or the own query
        of each."""
        return (documents, self.rows_of(documents)) if layout is Layout.PAIRS else self.joined()

    def rows_of(self, numbers: Counts) -> Tensor:
        """Rows of these queries end to end."""
        return torch.cat([self._rows[number] for number in numbers.tolist()])


def averaged(scores: Scores, query_rows: Counts, document_rows: Counts, layout: Layout) -> Scores:
    """Divides scores [Q, S], or [P, 1] for pairs, by the rows of their query; documents without rows keep theirs."""
    empty = document_rows[:, None] == 0 if layout is Layout.PAIRS else document_rows == 0
    divisors = np.where(empty, 1, np.maximum(query_rows[:, None], 1)).astype(np.float32)
    means: Scores = np.divide(scores, divisors, dtype=np.float32)
    return means


def comparing_flops(width: int, explain: bool = False) -> int:
    """Operations of one similarity, as an estimate.

    They are the product and a maximum. The maximum takes as long as about a hundred operations, with the place of the
    winner five hundred more: seen by hand on two processors, no result file has it.
    """
    return 2 * width + (600 if explain else 100)
