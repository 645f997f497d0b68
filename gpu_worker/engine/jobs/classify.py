"""Logits of every sequence, of every token, or of the tokens of one id."""

import numpy as np

from gpu_worker.engine.jobs.table import view
from gpu_worker.engine.jobs.texts import Launch, TextJob, by_length
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import Member, Sequences
from shared.jobs import Classify, JobResult


class ClassifyJob(TextJob):
    """A Classify on its way."""

    def __init__(self, sequences: Sequences, work: Classify, labels: int) -> None:
        """`sequences` keep the tokens that are classified, where tokens are."""
        super().__init__(sequences, by_length(sequences))
        self._tokens = work.tokens
        rows = int(sequences.kept.sum()) if work.tokens else len(sequences)
        self._logits = np.empty((rows, labels), dtype=np.float32)

    def ask(self, start: int, stop: int, member: Member, outputs: Outputs) -> Launch:
        if self._tokens:
            share, places = outputs.token_logits(member), member.sequences.kept_places(member.chosen)
        else:
            share, places = outputs.logits(member), member.chosen

        def deliver() -> None:
            self.heed(member, outputs)
            self._logits[places] = share.values

        return lambda _: deliver

    def result(self) -> JobResult:
        self.finite &= bool(np.isfinite(self._logits).all())
        self.check()
        counts = tuple(self.sequences.kept_counts.tolist()) if self._tokens else ()
        return JobResult(scores=view(self._logits), row_lengths=counts)
