"""Encode jobs in parts: token rows of one sequence, which leave as they are computed."""

from dataclasses import dataclass, replace

import numpy as np

from gpu_worker.engine.jobs.table import byte_view
from gpu_worker.engine.jobs.texts import TextJob
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.row_outputs import RowFormat, RowOutput
from gpu_worker.engine.step.sequences import PackedSequences, Selection, Sequences
from gpu_worker.model.heads.heads import Heads
from gpu_worker.ragged.token_types import Counts, Ids
from gpu_worker.schedule.interface import JobSlice
from shared.jobs import Encode, JobResult, Rows
from shared.vectors import OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """The rows [n, B] of the selected tokens of a piece, and the ids [n] of these."""

    rows: RowOutput
    ids: Ids


class EncodePartsJob(TextJob):
    """An open Encode of one sequence. It holds the rows of the pieces that did not leave yet, and no hidden states."""

    def __init__(self, sequences: Sequences, work: Encode, heads: Heads, limits: PieceLimits = WHOLE) -> None:
        super().__init__(sequences, [(0,)], limits)
        assert heads.multi_vector is not None
        self.work, self._width = work, work.dimensions or heads.multi_vector.width
        self._pieces: dict[int, _Piece] = {}  # by their first tokens

    @staticmethod
    def serves(work: Encode, sequences: int) -> bool:
        """Whether a job of so many sequences leaves in parts: other outputs need all hidden states of a text."""
        return work.in_parts and sequences == 1 and work.outputs == {OutputKind.MULTI_VECTOR}

    def selection(self, start: int, stop: int) -> Selection:
        """What units `start` to `stop` have of the sequence; rows are made of a piece in its own step."""
        return replace(super().selection(start, stop), at_once=True)

    def step_slice(self, job_slice: JobSlice, packed: PackedSequences) -> "EncodePartsSlice":
        """Creates a slice of this job for a step."""
        return EncodePartsSlice(self, packed)

    def put_rows(self, tokens: Counts, rows: RowOutput) -> None:
        """Puts the rows of the piece with these tokens [n]. Those of an earlier try, which began there, go."""
        selected = tokens[self.sequences.selected[tokens]]
        self._pieces[int(tokens[0])] = _Piece(rows=rows, ids=self.sequences.ids[selected])

    def take_part(self) -> JobResult | None:
        """The rows that were computed since the last part; None for none. Raises Internal for rows that are not finite
        numbers."""
        pieces = [self._pieces.pop(start) for start in sorted(self._pieces)]
        self.finite &= all(piece.rows.finite for piece in pieces)
        self.check_finite()
        return self._result(pieces) if pieces else None

    def result(self) -> JobResult:
        """The rows of the last part, with the number of all rows. Raises Internal as `take_part` does."""
        rest = self.take_part()
        assert rest is not None
        return replace(rest, row_lengths=tuple(self.sequences.selected_counts.tolist()))

    def _result(self, pieces: list[_Piece]) -> JobResult:
        values = [piece.rows.values for piece in pieces]
        scales = [scales for piece in pieces if (scales := piece.rows.scales) is not None]
        rows = Rows(
            dimensions=self._width,
            data=byte_view(values[0] if len(values) == 1 else np.concatenate(values)),
            scales=byte_view(np.concatenate(scales)) if scales else b"",
        )
        ids = b"".join(piece.ids.astype("<i4").tobytes() for piece in pieces) if self.work.token_ids else b""
        return JobResult(tokens=rows, token_ids=ids)


class EncodePartsSlice:
    """A slice of an Encode in parts in a step; see `StepSlice`."""

    def __init__(self, job: EncodePartsJob, packed: PackedSequences) -> None:
        self._job, self._packed = job, packed

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests the rows of the piece."""
        work = self._job.work
        row_format = RowFormat(dimensions=work.dimensions, unit=work.normalize_tokens, data_type=work.data_type)
        self._outputs = outputs
        self._rows = outputs.request_token_rows(self._packed, row_format)

    def on_device(self, download: StepDownload) -> None:
        """Computes nothing: rows are outputs of the step."""

    def on_host(self) -> None:
        """Puts the rows into the job."""
        self._job.note_finite(self._packed, self._outputs)
        self._job.put_rows(self._packed.token_places, self._rows)
