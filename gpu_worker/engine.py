"""Runs steps: trunk, heads, scoring and packing over all sequences of all jobs at once.

Launches and never waits: lengths, offsets and indices come from the host, and results come back in one copy.
Knows no settings and no gRPC.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.flight import OutOfMemory, Part, Progress
from gpu_worker.heads import instruction
from gpu_worker.heads.skiplist import Keeping
from gpu_worker.jobs.classify import ClassifyProgress
from gpu_worker.jobs.encode import EncodeProgress
from gpu_worker.jobs.max_sim import MaxSimProgress, MixedProgress
from gpu_worker.jobs.score import ScoreProgress
from gpu_worker.jobs.texts import Delivery, TextProgress
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.loading import Model
from gpu_worker.ragged.batch import Counts
from gpu_worker.step.outputs import Rows
from gpu_worker.step.sequences import Step
from gpu_worker.step.shipment import Array, Outbox
from shared.errors import InputTooLong, InvalidInput
from shared.jobs import Classify, Encode, Job, MaxSim
from shared.vectors import OutputKind

DROPPED_ROLES = ("cls", "eos", "pad", "unk")
"""Special tokens that carry no lexical weight (BGE-M3)."""


class ModelEngine:
    """The `Engine` of a loaded model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._device = model.placement.device
        self._abilities = Abilities(model)
        head = model.heads.multi_vector
        self._keeping = Keeping(model.late_interaction, skip_first=bool(head and head.skip_first))
        special = model.tokenizer.special_tokens
        self._dropped = np.array([special[role] for role in DROPPED_ROLES if role in special], dtype=np.int32)

    def open(self, job: Job) -> Progress:
        """Raises InvalidInput and its kin for what this model cannot do."""
        model, work = self.model, job.work
        if isinstance(work, MaxSim) and work.queries is not None:
            # A kernel is compiled for the model's own rows and, for all others, in float32.
            half_width = self._abilities.widths[OutputKind.MULTI_VECTOR] if self._device.type == "cuda" else 0
            return MaxSimProgress(work, model.flops_per_token, half_width)
        self._check_tokens(job)
        if isinstance(work, MaxSim):
            width = self._abilities.check_max_sim()
            return MixedProgress(job, work, width, model.flops_per_token, self._keeping)
        if isinstance(work, Encode):
            self._abilities.check_encode(work)
            return EncodeProgress(
                job, work, model.heads, self._keeping, self._abilities.sparse_cost, self._left_out(job)
            )
        if isinstance(work, Classify):
            return ClassifyProgress(job, work, self._abilities.check_classify(work))
        self._abilities.check_score(work, len(job.tokens))
        return ScoreProgress(job, work, model, self._keeping, self._abilities.sparse_cost, self._left_out(job))

    def _check_tokens(self, job: Job) -> None:
        if not len(job.tokens):
            raise InvalidInput("a job has no sequences", field="jobs")
        longest = max(job.tokens.lengths)
        if longest > self.model.longest:
            raise InputTooLong(f"a sequence has {longest} tokens, the limit is {self.model.longest}")
        ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        if ids.min() < 0 or ids.max() >= self.model.vocabulary_size:
            raise InvalidInput(f"a token id is outside 0 to {self.model.vocabulary_size - 1}")

    def _left_out(self, job: Job) -> Counts:
        """[S] tokens at the start of each sequence that pooling leaves out: a prompt, or all up to a mark."""
        lengths = job.tokens.lengths
        prompts = np.array(job.prompt_lengths or [0] * len(lengths), dtype=np.int64)
        if not self.model.instruction_marks:
            return prompts
        ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        found = instruction.ends(ids, np.array(job.tokens.offsets), self.model.instruction_marks)
        return np.maximum(prompts, found)

    def step(self, parts: Sequence[Part]) -> None:
        """See `computing.Engine`. Raises OutOfMemory.

        Nothing is delivered before everything was computed, and delivering twice does no harm.
        """
        outbox = Outbox()
        try:
            with torch.inference_mode():
                deliveries = self._texts(parts, outbox)
                for part in parts:
                    if isinstance(part.progress, MaxSimProgress | MixedProgress):
                        maxsim = self.model.maxsim
                        deliveries += part.progress.compare(part.start, part.stop, self._device, maxsim, outbox)
                arrays = outbox.ship()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise OutOfMemory from error
            raise
        for deliver in deliveries:
            deliver(arrays)
        for part in parts:
            progress = part.progress
            assert isinstance(progress, TextProgress | MaxSimProgress)
            progress.served = part.stop  # parts come in order; set, not counted, so that a second try does no harm
            if progress.served == len(progress.costs):
                progress.complete()

    def _texts(self, parts: Sequence[Part], outbox: Outbox) -> list[Delivery]:
        trunk = self.model.trunk
        texts = [part for part in parts if isinstance(part.progress, TextProgress) and part.progress.has_texts(part)]
        if not texts:
            return []
        step = Step.of(texts, self._device, trunk.uncounted, trunk.token_types)
        hidden = trunk(step.batch)
        rows = Rows(hidden, step, self.model.heads, self._dropped, self.model.maxsim)
        deliveries = [_finite(step, hidden, outbox)]
        for progress, member in step.members:
            deliveries += progress.compute(member, rows, outbox)
        rows.launch(outbox)
        return deliveries


def _finite(step: Step, hidden: Tensor, outbox: Outbox) -> Delivery:
    """Notes, a sequence, whether the model gave numbers; told on the host with the results."""
    slot = outbox.add(torch.isfinite(hidden.float().sum(dim=1)))

    def deliver(arrays: list[Array]) -> None:
        whole = np.logical_and.reduceat(arrays[slot], step.batch.offsets[:-1])
        for progress, member in step.members:
            progress.finite &= bool(whole[member.places].all())

    return deliver
