"""Classify jobs: logits of every sequence, of every token, or of the tokens with one id."""

import numpy as np

from gpu_worker.engine.jobs.table import byte_view
from gpu_worker.engine.jobs.texts import TextJob, by_length
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import PackedSequences, Sequences
from gpu_worker.schedule.interface import JobSlice
from shared.jobs import Classify, JobResult


class ClassifyJob(TextJob):
    """An open Classify: `logits` are [S, labels], or [selected tokens, labels]."""

    def __init__(self, sequences: Sequences, work: Classify, labels: int, limits: PieceLimits = WHOLE) -> None:
        """`sequences`: where tokens are classified, those tokens are selected."""
        super().__init__(sequences, by_length(sequences), limits)
        self.work = work
        rows = int(sequences.selected.sum()) if work.tokens else len(sequences)
        self.logits = np.empty((rows, labels), dtype=np.float32)

    def step_slice(self, job_slice: JobSlice, packed: PackedSequences) -> "ClassifySlice":
        """Creates a slice of this job for a step."""
        return ClassifySlice(self, packed)

    def result(self) -> JobResult:
        """Logits of all sequences. Raises Internal where a number is not finite."""
        self.finite &= bool(np.isfinite(self.logits).all())
        self.check_finite()
        counts = tuple(self.sequences.selected_counts.tolist()) if self.work.tokens else ()
        return JobResult(scores=byte_view(self.logits), row_lengths=counts)


class ClassifySlice:
    """A slice of a Classify in a step; see `StepSlice`."""

    def __init__(self, job: ClassifyJob, packed: PackedSequences) -> None:
        self._job, self._packed = job, packed

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests logits of the sequences, or of their selected tokens."""
        self._outputs = outputs
        request = outputs.request_token_logits if self._job.work.tokens else outputs.request_logits
        self._logits = request(self._packed)

    def on_device(self, download: StepDownload) -> None:
        """Computes nothing: the logits are an output of the step."""

    def on_host(self) -> None:
        """Puts the logits into the job's table."""
        job, packed = self._job, self._packed
        job.note_finite(packed, self._outputs)
        places = job.sequences.selected_places(packed.numbers) if job.work.tokens else packed.numbers
        job.logits[places] = self._logits.values
