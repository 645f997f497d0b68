"""Logits of every sequence, of every token, or of the tokens of one id."""

import numpy as np

from gpu_worker.jobs.texts import Delivery, Member, TextProgress
from gpu_worker.step.outputs import Rows
from gpu_worker.step.shipment import Array, Outbox
from shared.jobs import Classify, Job, JobResult


class ClassifyProgress(TextProgress):
    """A Classify on its way."""

    def __init__(self, job: Job, work: Classify, labels: int) -> None:
        order = np.argsort(job.tokens.lengths, kind="stable").tolist()
        super().__init__(job, [(index,) for index in order])
        self.work = work
        if work.token_id is not None:
            self.kept = self.ids == work.token_id
        rows = int(self.kept.sum()) if work.tokens else len(self.lengths)
        self._logits = np.empty((rows, labels), dtype=np.float32)

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        if not self.work.tokens:
            logits, places = rows.logits(member.places), member.sequences
        else:
            logits, places = rows.token_logits(rows.kept_rows(self, member)), self.kept_places(member)
        slot = outbox.add(logits)

        def deliver(arrays: list[Array]) -> None:
            self._logits[places] = arrays[slot]

        return [deliver]

    def result(self) -> JobResult:
        self.finite &= bool(np.isfinite(self._logits).all())
        self.check()
        counts = tuple(self.kept_counts().tolist()) if self.work.tokens else ()
        return JobResult(scores=self._logits.astype("<f4").tobytes(), row_lengths=counts)
