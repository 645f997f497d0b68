"""Classify jobs: logits of every sequence, of every token, or of the tokens with one id."""

import numpy as np

from gpu_worker.engine.jobs.job import TextJob, by_length
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.outputs import SliceRows, Wanted
from gpu_worker.engine.step.rows import byte_view
from gpu_worker.engine.step.sequences import Sequences
from shared.jobs import Classify, JobResult


class ClassifyJob(TextJob):
    """An open Classify: `logits` are [S, labels], or [selected tokens, labels]."""

    def __init__(self, sequences: Sequences, work: Classify, labels: int, limits: PieceLimits = WHOLE) -> None:
        """`sequences`: where tokens are classified, those tokens are selected."""
        super().__init__(sequences, by_length(sequences), limits)
        self.work = work
        self.wanted = Wanted(logits=not work.tokens, token_logits=work.tokens)
        rows = int(sequences.selected.sum()) if work.tokens else len(sequences)
        self.logits = np.empty((rows, labels), dtype=np.float32)

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the logits into the table."""
        numbers = slice_rows.packed.numbers
        self.finite &= slice_rows.finite
        self.logits[self.sequences.selected_places(numbers) if self.work.tokens else numbers] = slice_rows.logits.values

    def result(self) -> JobResult:
        """Logits of all sequences. Raises Internal where a number is not finite."""
        self.finite &= bool(np.isfinite(self.logits).all())
        self.check_finite()
        counts = tuple(self.sequences.selected_counts.tolist()) if self.work.tokens else ()
        return JobResult(scores=byte_view(self.logits), row_lengths=counts)
