"""Opens jobs, and launches steps: encoder, heads, scoring and packing over all sequences of all jobs at once.

A launch packs on the host, hands the step to the device's thread, and waits for nothing: lengths, offsets and indices
are uploaded in one copy, and results are downloaded in one. Knows no settings and no gRPC.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch

from gpu_worker.device.memory import ran_out
from gpu_worker.device.transfer import StepDownload, Upload
from gpu_worker.engine.jobs.job import ClassifyJob, ComparingJob, EncodeJob, LookUpJob, PoolingJob, StepJob
from gpu_worker.engine.jobs.max_sim import MaxSimJob, TextMaxSimJob
from gpu_worker.engine.jobs.pooled import PooledEncodeJob, PooledScoreJob, clustering_costs
from gpu_worker.engine.jobs.score import LookedUp, ScoreJob
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.outputs import Outputs, SliceRows
from gpu_worker.engine.step.sequences import Selection, Sequences
from gpu_worker.engine.step.step import Step
from gpu_worker.kernels.rows.token_pooling import one_thread
from gpu_worker.model.heads.pooling import Skiplist, instruction_ends
from gpu_worker.model.model import Abilities, Model
from gpu_worker.ragged.texts import Counts
from gpu_worker.schedule.interface import JobSlice, OutOfMemory
from shared.errors import InputTooLong, InvalidInput, WorkerUnavailable, clip
from shared.jobs import Classify, Encode, Job, MaxSim, RaggedTokens, Score
from shared.tasks import Inline
from shared.vectors import MOST_POOLED, InputType, OutputKind

DROPPED_ROLES = ("cls", "eos", "pad", "unk")
"""Roles of special tokens that carry no lexical weight (BGE-M3)."""
NO_ADAPTERS: Mapping[str, Model] = MappingProxyType({})
Slices = list[tuple[StepJob, SliceRows]]
"""Jobs with the rows of their slices of a step."""
Computed = tuple[StepDownload, Slices]
"""A step's download, and the job slices that wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """A step that is packed, with its upload, and what it makes for the slices of jobs."""

    step: Step
    upload: Upload
    outputs: Outputs
    slices: Slices


class JobFactory:
    """Opens the jobs of one model, and decides which tokens get a row and which pooling leaves out."""

    def __init__(self, model: Model, limits: PieceLimits = WHOLE) -> None:
        self._model, self._limits = model, limits
        self._abilities = Abilities(model)
        head = model.heads.multi_vector
        self._skiplist = Skiplist(model.late_interaction, skip_first=bool(head and head.skip_first))

    def create(self, job: Job) -> StepJob:
        """Opens a job. Raises InvalidInput, or another error of the job's, for what this model cannot do."""
        opened = self._opened(job)
        opened.sequences.adapter = self._model.adapter
        return opened

    def _opened(self, job: Job) -> StepJob:
        if job.ranges is not None:
            self._abilities.check_ranges(job.work)
        match job.work:
            case MaxSim(queries=None) as work:
                return self._text_max_sim(job, work)
            case MaxSim() as work:
                return self._max_sim(job, work)
            case Encode() as work:
                return self._encode(job, work)
            case Classify() as work:
                return self._classify(job, work)
            case Score() as work:
                return self._score(job, work)

    def _max_sim(self, job: Job, work: MaxSim) -> StepJob:
        # Kernels are compiled for rows like the model's, in half precision, and for all other rows in float32.
        on_cuda = self._model.placement.device.type == "cuda"
        half_width = self._abilities.widths[OutputKind.MULTI_VECTOR] if on_cuda else 0
        return MaxSimJob(job, work, self._model.flops_per_token, half_width)

    def _text_max_sim(self, job: Job, work: MaxSim) -> StepJob:
        self._check_tokens(job)
        width = self._abilities.check_max_sim()
        sequences = Sequences(job, select=partial(self._skiplist, side=InputType.QUERY))
        return TextMaxSimJob(sequences, work, width, self._model.flops_per_token, self._limits)

    def _encode(self, job: Job, work: Encode) -> StepJob:
        self._abilities.check_encode(work)
        if (queries := self._model.queries) is not None:
            kind = work.input_type or queries.default
            if not kind:
                raise InvalidInput("this model reads queries and documents differently: say which", field="input_type")
            if kind is InputType.QUERY:
                _check_tokens(job.tokens, queries.max_tokens, queries.token_ids)
                return LookUpJob(job, work, queries.table)
        self._check_tokens(job)
        skiplist = partial(self._skiplist, side=work.input_type) if OutputKind.MULTI_VECTOR in work.outputs else None
        sequences = Sequences(job, self._skipped(job), skiplist)
        heads, sparse_cost = self._model.heads, self._abilities.sparse_cost
        if work.pooling is None:
            return EncodeJob(sequences, work, heads, sparse_cost, self._limits)
        return PooledEncodeJob(sequences, work, heads, sparse_cost, self._clustering(sequences), self._limits)

    def _classify(self, job: Job, work: Classify) -> StepJob:
        self._check_tokens(job)
        labels, only = self._abilities.check_classify(work), work.token_id
        sequences = Sequences(job, select=None if only is None else lambda ids, _: ids == only)
        return ClassifyJob(sequences, work, labels, self._limits)

    def _score(self, job: Job, work: Score) -> StepJob:
        self._abilities.check_score(work, len(job.tokens))
        looked_up: LookedUp | None = None
        if (queries := self._model.queries) is not None:
            query_tokens, documents = job.tokens.part(0, work.queries), job.tokens.part(work.queries, len(job.tokens))
            _check_tokens(query_tokens, queries.max_tokens, queries.token_ids)
            looked_up = LookedUp(table=queries.table, tokens=query_tokens)
            per_sequence = ("prompt_lengths", "second_segments", "unattended_tails")
            job = replace(job, tokens=documents, **{name: getattr(job, name)[work.queries :] for name in per_sequence})
        self._check_tokens(job)
        model, compares = self._model, ScoreJob.compares_tokens(work)
        skiplist = partial(self._skiplist.of_scores, queries=work.queries) if compares else None
        sequences = Sequences(job, self._skipped(job), skiplist, queries=0 if looked_up else work.queries)
        if work.pooling is not None:
            clustering = self._clustering(sequences)
            return PooledScoreJob(sequences, work, model.heads, model.flops_per_token, clustering, self._limits)
        costs = model.flops_per_token, self._abilities.sparse_cost
        return ScoreJob(sequences, work, model.heads, *costs, self._limits, looked_up)

    def _clustering(self, sequences: Sequences) -> Counts:
        """Costs in tokens of pooling the rows of each document, [S]. Raises InputTooLong for a long document."""
        documents = sequences.lengths[sequences.queries :]
        if (longest := int(documents.max())) > MOST_POOLED:
            raise InputTooLong(f"a document has {longest} tokens, the rows of {MOST_POOLED} at most are pooled")
        model = self._model
        return clustering_costs(sequences.lengths, model.placement.device.type, model.flops_per_token)

    def _check_tokens(self, job: Job) -> None:
        """Raises InvalidInput for no sequence or an id outside of the vocabulary, InputTooLong for a long sequence."""
        _check_tokens(job.tokens, self._model.longest, self._model.vocabulary_size)

    def _skipped(self, job: Job) -> Counts | None:
        """Tokens [S] at the start of each sequence that pooling leaves out: a prompt, or up to an instruction mark.
        None where there are no such tokens."""
        prompts = np.array(job.prompt_lengths, dtype=np.int64) if job.prompt_lengths else None
        if not self._model.instruction_marks:
            return prompts
        ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        ends = instruction_ends(ids, np.array(job.tokens.offsets), self._model.instruction_marks)
        return ends if prompts is None else np.maximum(prompts, ends)


def _check_tokens(tokens: RaggedTokens, limit: int, vocabulary: int) -> None:
    """Checks sequences of at most `limit` tokens, with ids below `vocabulary`."""
    if not len(tokens):
        raise InvalidInput("a job has no sequences", field="jobs")
    longest = max(tokens.lengths)
    if longest > limit:
        raise InputTooLong(f"a sequence has {longest} tokens, the limit is {limit}")
    ids = np.frombuffer(tokens.ids, dtype="<u4")  # negative ids too, which are large then
    if len(ids) and ids.max() >= vocabulary:
        raise InvalidInput(f"a token id is outside 0 to {vocabulary - 1}")


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
        pooling: Executor | None = None,
    ) -> None:
        """`device`: one thread that computes or, on an accelerator, launches; None: the caller's thread does.
        `arrivals`: one thread that waits for downloads from an accelerator; None: `collect` does. `limits`: how long
        texts are cut. `pooling`: one thread that pools token rows; None: the caller's thread does.
        """
        self.model = model
        self.pieces = 0
        """Number of pieces of texts that were computed so far. May be read from other threads."""
        self.shared_tokens = 0
        """Number of tokens that were not computed, since another text has them. May be read from other threads."""
        self._device, self._arrivals, self._pooling = device or Inline(), arrivals, pooling or Inline()
        self.cut_texts(limits)
        special = model.tokenizer.special_tokens
        self._dropped = np.array([special[role] for role in DROPPED_ROLES if role in special], dtype=np.int32)

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
        selections = [job.selection(units.start, units.stop) for job, units in zip(jobs, job_slices, strict=True)]
        packed = self._pack(jobs, job_slices, selections)
        computed = self._device.submit(self._compute, packed)
        pools = any(isinstance(job, PoolingJob) for job in jobs)
        waiting = self._pooling if pools else self._arrivals
        arrived = waiting.submit(_arrive, computed) if waiting else computed
        return ModelStepHandle(computed, arrived, list(zip(jobs, selections, strict=True)), packed.step.shared_tokens)

    def _pack(
        self, jobs: Sequence[StepJob], job_slices: Sequence[JobSlice], selections: Sequence[Selection]
    ) -> _Packed:
        model, device, encoder = self.model, self.model.placement.device, self.model.encoder
        upload = Upload(device)
        shares = self.limits.shares and not model.unshared
        step = Step.pack(selections, device, encoder.uncounted, encoder.token_types, upload, shares=shares)
        outputs = Outputs(step.texts, device, model.heads, self._dropped, model.maxsim)
        slices = [
            (job, outputs.slice_rows(job.wanted, packed, job_slice.start, job_slice.stop))
            for job, job_slice, selection, packed in zip(jobs, job_slices, selections, step.packed, strict=True)
            # No output is made of a piece whose text goes on.
            if len(packed) or not len(selection.numbers)
        ]
        outputs.plan(upload)
        return _Packed(step=step, upload=upload, outputs=outputs, slices=slices)

    def _compute(self, packed: _Packed) -> Computed:
        """Computes a step, in the device's thread."""
        download, step, outputs = StepDownload(), packed.step, packed.outputs
        with torch.inference_mode():
            packed.upload.send()
            if step.batch is not None:
                hidden = step.hidden_of_texts(self.model.encoder(step.batch))
                if len(step.texts.lengths):
                    outputs.compute(hidden, download)
            for job, slice_rows in packed.slices:
                if isinstance(job, ComparingJob):
                    slice_rows.compared = job.compare(slice_rows, outputs, download)
            outputs.compute_comparisons(download)
            download.send()
        if step.batch is not None:
            self.pieces += len(step.batch.pieces)
        self.shared_tokens += step.shared_tokens
        return download, packed.slices


def _arrive(computed: "Future[Computed]") -> None:
    """Waits for a step's download, in a thread of its own, and pools token rows."""
    download, slices = computed.result()
    download.wait()
    pooled = [(job, slice_rows) for job, slice_rows in slices if isinstance(job, PoolingJob)]
    if pooled:
        with one_thread():
            for job, slice_rows in pooled:
                job.pool(slice_rows)
