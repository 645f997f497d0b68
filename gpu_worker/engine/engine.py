"""Launches steps: encoder, heads, scoring and packing over all sequences of all jobs at once.

A launch packs on the host, hands the step to the device's thread, and waits for nothing: lengths, offsets and indices
come from the host in one copy, and results come back in one. Knows no settings, no kinds of jobs and no gRPC.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

from gpu_worker.device.inline import Inline
from gpu_worker.device.memory import ran_out
from gpu_worker.engine.jobs.create import JobFactory
from gpu_worker.engine.jobs.texts import Deliver, Launch, StepJob
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import Member, Step
from gpu_worker.loop.interface import JobSlice, OutOfMemory
from gpu_worker.model.loading import Model
from gpu_worker.ragged.batch import Counts
from gpu_worker.ragged.upload import Upload
from shared.jobs import Job

DROPPED_ROLES = ("cls", "eos", "pad", "unk")
"""Special tokens that carry no lexical weight (BGE-M3)."""


@contextmanager
def _memory_told() -> Iterator[None]:
    """Raises OutOfMemory for whatever error means that."""
    try:
        yield
    except Exception as error:
        if ran_out(error):
            raise OutOfMemory from error
        raise


class ModelStepHandle:
    """A step under way; see `flight.Flight`."""

    def __init__(self, launched: "Future[tuple[StepDownload, list[Deliver]]]", arrived: "Future[Any]") -> None:
        self._launched, self.arrived = launched, arrived

    def collect(self) -> None:
        with _memory_told():
            self.arrived.result()  # whoever waits for it must be done: a shipment is unpacked once
            shipment, deliveries = self._launched.result()
            shipment.wait()
        for deliver in deliveries:
            deliver()


class ModelEngine:
    """The `Engine` of a loaded model."""

    def __init__(self, model: Model, device: Executor | None = None, arrivals: Executor | None = None) -> None:
        """`device`: the one thread that computes, or on an accelerator launches; without it that happens in the
        caller's thread. `arrivals`: the one that waits for what an accelerator ships; without it `collect` does.
        """
        self.model = model
        self._device, self._arrivals = device or Inline(), arrivals
        self._open = JobFactory(model)
        special = model.tokenizer.special_tokens
        self._dropped = np.array([special[role] for role in DROPPED_ROLES if role in special], dtype=np.int32)

    def open(self, job: Job) -> StepJob:
        """Raises InvalidInput and its kin for what this model cannot do."""
        return self._open(job)

    def reclaim(self) -> None:
        """See `flight.Engine`."""
        self.model.placement.reclaim()

    @_memory_told()
    def launch(self, parts: Sequence[JobSlice]) -> ModelStepHandle:
        """See `flight.Engine`."""
        placement, encoder = self.model.placement, self.model.encoder
        staging = Upload(placement.device)
        jobs = [cast(StepJob, part.job) for part in parts]
        chosen = [job.chosen(part.start, part.stop) for job, part in zip(jobs, parts, strict=True)]
        packed = [(job.sequences, numbers) for job, numbers in zip(jobs, chosen, strict=True) if len(numbers)]
        step = Step.pack(packed, placement.device, encoder.uncounted, encoder.token_types, staging) if packed else None
        batch = step.batch if step else None
        outputs = Outputs(batch, placement.device, self.model.heads, self._dropped, self.model.maxsim)
        members = iter(step.members if step else ())
        launches = [
            job.ask(part.start, part.stop, next(members) if len(numbers) else _none(job, numbers), outputs)
            for job, part, numbers in zip(jobs, parts, chosen, strict=True)
        ]
        outputs.stage(staging)
        launched = self._device.submit(self._compute, step, staging, outputs, launches)
        return ModelStepHandle(launched, self._arrivals.submit(_arrive, launched) if self._arrivals else launched)

    def _compute(
        self, step: Step | None, staging: Upload, outputs: Outputs, launches: list[Launch]
    ) -> tuple[StepDownload, list[Deliver]]:
        """In the device's thread."""
        shipment = StepDownload()
        with torch.inference_mode():
            staging.send()
            if step is not None:
                outputs.launch(self.model.encoder(step.batch), shipment)
            deliveries = [launch(shipment) for launch in launches]
            outputs.launch_comparisons(shipment)
            shipment.send()
        return shipment, deliveries


def _arrive(launched: "Future[tuple[StepDownload, list[Deliver]]]") -> None:
    shipment, _ = launched.result()
    shipment.wait()


def _none(job: StepJob, nothing: Counts) -> Member:
    return Member(sequences=job.sequences, chosen=nothing, places=nothing)
