"""Launches steps: encoder, heads, scoring and packing over all sequences of all jobs at once.

A launch packs on the host, hands the step to the device's thread, and waits for nothing: lengths, offsets and indices
are uploaded in one copy, and results are downloaded in one. Knows no settings, no kinds of jobs and no gRPC.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch

from gpu_worker.device.memory import ran_out
from gpu_worker.device.transfer import StepDownload, Upload
from gpu_worker.engine.jobs.comparing import ComparingJob
from gpu_worker.engine.jobs.create import JobFactory
from gpu_worker.engine.jobs.job import StepJob
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.outputs import Outputs, SliceRows
from gpu_worker.engine.step.sequences import Selection
from gpu_worker.engine.step.step import Step
from gpu_worker.model.model import Model
from gpu_worker.ragged.texts import Ids
from gpu_worker.schedule.interface import JobSlice, OutOfMemory
from shared.errors import WorkerUnavailable, clip
from shared.jobs import Job
from shared.offload import Inline

DROPPED_ROLES = ("cls", "eos", "pad", "unk")
"""Roles of special tokens that carry no lexical weight (BGE-M3)."""
NO_ADAPTERS: Mapping[str, Model] = MappingProxyType({})
Slices = list[tuple[StepJob, SliceRows]]
"""Jobs with the rows of their slices of a step."""
Computed = tuple[StepDownload, Slices]
"""A step's download, and the job slices that wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SideStep:
    """The part of a step that goes through one model: all of it, or one side of a Router."""

    model: Model
    step: Step
    upload: Upload
    outputs: Outputs
    slices: Slices


@contextmanager
def _out_of_memory() -> Iterator[None]:
    """Raises OutOfMemory in place of every error that means that."""
    try:
        yield
    except Exception as error:
        if ran_out(error):
            raise OutOfMemory from error
        raise


class ModelStepHandle:
    """A step that was launched; see `StepHandle`."""

    def __init__(
        self,
        computed: "Future[Computed]",
        arrived: "Future[Any]",
        selections: Sequence[tuple[StepJob, Selection]],
        shared_tokens: int,
    ) -> None:
        self.shared_tokens = shared_tokens
        self._computed, self.arrived, self._selections = computed, arrived, selections

    def collect(self) -> None:
        """Waits, and puts every job slice's rows into its job; see `StepHandle`."""
        with _out_of_memory():
            self.arrived.result()  # the thread that waits for the download must be done: it is unpacked once
            download, slices = self._computed.result()
            download.wait()
            for job, slice_rows in slices:
                job.put(slice_rows)
            for job, selection in self._selections:  # last: had a slice failed, all would be computed again
                job.drop_caches(selection)


class ModelEngine:
    """The `StepEngine` of a loaded model."""

    def __init__(
        self,
        model: Model,
        device: Executor | None = None,
        arrivals: Executor | None = None,
        limits: PieceLimits = WHOLE,
    ) -> None:
        """`device`: one thread that computes or, on an accelerator, launches; None: the caller's thread does.
        `arrivals`: one thread that waits for downloads from an accelerator; None: `collect` does. `limits`: how long
        texts are cut.
        """
        self.model = model
        self.pieces = 0
        """Number of pieces of texts that were computed so far. May be read from other threads."""
        self.shared_tokens = 0
        """Number of tokens that were not computed, since another text has them. May be read from other threads."""
        self._device, self._arrivals = device or Inline(), arrivals
        self.cut_texts(limits)
        self._sides = [(side, _dropped_ids(side)) for side in model.sides]

    def cut_texts(self, limits: PieceLimits, adapters: Mapping[str, Model] = NO_ADAPTERS) -> None:
        """Cuts the texts of further jobs so. `adapters`: the models over this one, by the fingerprints in jobs."""
        self.limits = limits
        self._factories = {name: JobFactory(model, limits) for name, model in {"": self.model, **adapters}.items()}

    def open(self, job: Job) -> StepJob:
        """Validates a job and opens it. Raises InvalidInput, or another error of the job's."""
        factory = self._factories.get(job.model)
        if factory is None:
            raise WorkerUnavailable(f"this worker has no model with the fingerprint {clip(job.model)}", retry_after=1.0)
        return factory.create(job)

    def reclaim(self) -> None:
        """Gives back memory that is kept for nothing; see `StepEngine`."""
        self.model.placement.reclaim()

    @_out_of_memory()
    def launch(self, job_slices: Sequence[JobSlice]) -> ModelStepHandle:
        """Packs a step of these job slices and hands it to the device's thread; see `StepEngine`."""
        jobs = [cast(StepJob, job_slice.job) for job_slice in job_slices]
        selections = [job.selection(part.start, part.stop) for job, part in zip(jobs, job_slices, strict=True)]
        # Queries come first: a Score compares documents with the rows of queries that it has by then.
        sides = [self._pack(*side, jobs, job_slices, selections) for side in self._sides]
        computed = self._device.submit(self._compute, sides)
        arrived = self._arrivals.submit(_arrive, computed) if self._arrivals else computed
        shared_tokens = sum(side.step.shared_tokens for side in sides)
        return ModelStepHandle(computed, arrived, list(zip(jobs, selections, strict=True)), shared_tokens)

    def _pack(
        self,
        model: Model,
        dropped: Ids,
        jobs: Sequence[StepJob],
        job_slices: Sequence[JobSlice],
        selections: Sequence[Selection],
    ) -> _SideStep:
        """Packs what goes through a model. `dropped`: special ids without a lexical weight."""
        device, query, chosen = model.placement.device, self.model.query, selections
        upload = Upload(device)
        if query is not None:
            chosen = [selection.side(queries=model is query) for selection in selections]
        encoder, shares = model.encoder, self.limits.shares and not model.unshared
        step = Step.pack(chosen, device, encoder.uncounted, encoder.token_types, upload, shares=shares)
        outputs = Outputs(step.texts, device, model.heads, dropped, model.maxsim)
        slices = [
            (job, outputs.slice_rows(job.wanted, packed, job_slice.start, job_slice.stop))
            for job, job_slice, selection, packed in zip(jobs, job_slices, selections, step.packed, strict=True)
            # No output is made of a piece whose text goes on. A slice without sequences runs once.
            if len(packed) or (model is self.model and not len(selection.numbers))
        ]
        outputs.plan(upload)
        return _SideStep(model=model, step=step, upload=upload, outputs=outputs, slices=slices)

    def _compute(self, sides: Sequence[_SideStep]) -> Computed:
        """Computes a step, in the device's thread."""
        download = StepDownload()
        with torch.inference_mode():
            for side in sides:
                self._compute_side(side, download)
            download.send()
        batches = [side.step.batch for side in sides if side.step.batch is not None]
        self.pieces += sum(len(batch.pieces) for batch in batches)
        self.shared_tokens += sum(side.step.shared_tokens for side in sides)
        return download, [entry for side in sides for entry in side.slices]

    def _compute_side(self, side: _SideStep, download: StepDownload) -> None:
        """Computes what goes through a model."""
        model, step, outputs = side.model, side.step, side.outputs
        side.upload.send()
        if step.batch is not None:
            hidden = step.hidden_of_texts(model.encoder(step.batch))
            if len(step.texts.lengths):
                outputs.compute(hidden, download)
        for job, slice_rows in side.slices:
            if isinstance(job, ComparingJob):
                slice_rows.compared = job.compare(slice_rows, outputs, download)
        outputs.compute_comparisons(download)


def _dropped_ids(model: Model) -> Ids:
    """Special ids that carry no lexical weight; a static table has a weight of its own for each."""
    special = {} if model.recipe.static else model.tokenizer.special_tokens
    return np.array([special[role] for role in DROPPED_ROLES if role in special], dtype=np.int32)


def _arrive(computed: "Future[Computed]") -> None:
    """Waits for a step's download, in a thread of its own."""
    download, _ = computed.result()
    download.wait()
