"""The engine's view of an open job of any kind, and the three phases of a job slice in a step."""

from typing import Protocol

from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import PackedSequences, Selection, Sequences
from gpu_worker.schedule.interface import JobSlice, OpenJob


class StepSlice(Protocol):
    """A job slice in a step: what it computes, of which sequences, and where the batch has them.

    The engine calls the three phases in this order. Slices of a job are served in the order of their steps.
    """

    def request_outputs(self, outputs: Outputs) -> None:
        """On the host, while the step is packed: requests the outputs that the job needs of this step."""

    def on_device(self, download: StepDownload) -> None:
        """On the device's thread, once the outputs are made: computes what the job needs of its own, and downloads it.

        Nothing may wait for the device here. Comparisons that are added to the step here are computed after the
        `on_device` of all its slices, all at once: their scores can be read in `on_host`.
        """

    def on_host(self) -> None:
        """On the host, once the download arrived: puts the slice's rows into the job's table. Twice does no harm."""


class StepJob(OpenJob, Protocol):
    """An open job as the engine sees it."""

    sequences: Sequences

    def selection(self, start: int, stop: int) -> Selection:
        """What units `start` to `stop` have of the job's sequences; there may be none."""

    def drop_caches(self, selection: Selection) -> None:
        """Gives back what was kept for the selection, which was collected, and for no later piece."""

    def step_slice(self, job_slice: JobSlice, packed: PackedSequences) -> StepSlice:
        """Creates a slice of this job for a step that makes outputs of `packed`, sequences of the slice's units."""
