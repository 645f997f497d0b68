"""The worker with an engine that answers every job at once, with made-up rows of 1,024 dimensions.

Takes the worker's flags. All but the engine is the worker's own; `wire.py` runs it on any checkout.
"""

import runpy
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any
from unittest.mock import patch

import numpy as np

from shared.jobs import Encode, Job, JobResult, Rows
from shared.vectors import OutputKind

WIDTH = 1024
MADE = memoryview(np.random.default_rng(1).bytes(96 * 1024 * 1024))
"""More than a processor's cache holds: rows that come from a device are in no cache either."""


class MadeUpJob:
    """See `gpu_worker.step.flight.Progress`. Rows of the next job follow those of the last."""

    place = 0

    def __init__(self, job: Job) -> None:
        self._work = job.work
        self.costs = list(job.tokens.lengths) or [1]

    def result(self) -> JobResult:
        if not isinstance(self._work, Encode):  # of the rehearsal
            return JobResult()
        if OutputKind.DENSE in self._work.outputs:
            return JobResult(dense=self._rows(len(self.costs), self._work))
        return JobResult(tokens=self._rows(sum(self.costs), self._work), row_lengths=tuple(self.costs))

    def _rows(self, rows: int, work: Encode) -> Rows:
        size = rows * work.data_type.row_bytes(WIDTH)
        start = MadeUpJob.place if MadeUpJob.place + size <= len(MADE) else 0
        MadeUpJob.place = start + size
        return Rows(dimensions=WIDTH, data=MADE[start : start + size])


class MadeUpEngine:
    """See `gpu_worker.step.flight.Engine`; its own flight, which has arrived."""

    open = MadeUpJob

    def __init__(self, model: Any, *_: object) -> None:
        model.heads.dense.width = model.heads.multi_vector.width = WIDTH  # as the card tells it
        self.model = model
        self.arrived: Future[None] = Future()
        self.arrived.set_result(None)

    def launch(self, parts: Sequence[object]) -> "MadeUpEngine":
        return self

    def collect(self) -> None:
        """Nothing was computed."""


if __name__ == "__main__":
    with patch("gpu_worker.engine.ModelEngine", MadeUpEngine):
        runpy.run_module("gpu_worker", run_name="__main__")
