"""What the methods of scoring queries with documents have in common.

Rows of queries are kept until a job's last document; rows of documents are not kept.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.engine.jobs.interface import StepSlice
from gpu_worker.engine.step.sequences import PackedSequences
from gpu_worker.ragged.batch import Counts
from shared.vectors import Layout

Scores = npt.NDArray[np.float32]


class Scoring(Protocol):
    """The scores of one job by one method: [Q, S], or [P, 1] for pairs, filled step by step."""

    scores: Scores

    def step_slice(self, packed: PackedSequences) -> StepSlice:
        """Creates the three phases in which a step scores these sequences of the job."""


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
