"""Validates a job and opens it, or raises the error that says why this model cannot do it."""

from dataclasses import replace
from functools import partial

import numpy as np

from gpu_worker.engine.jobs.job import ClassifyJob, EncodeJob, LookUpJob, StepJob
from gpu_worker.engine.jobs.max_sim import MaxSimJob, TextMaxSimJob
from gpu_worker.engine.jobs.score import LookedUp, ScoreJob
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.sequences import Sequences
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.heads.pooling import Skiplist, instruction_ends
from gpu_worker.model.model import Model
from gpu_worker.ragged.texts import Counts
from shared.errors import InputTooLong, InvalidInput
from shared.jobs import Classify, Encode, Job, MaxSim, RaggedTokens, Score
from shared.vectors import InputType, OutputKind


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
        return EncodeJob(sequences, work, self._model.heads, self._abilities.sparse_cost, self._limits)

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
        costs = model.flops_per_token, self._abilities.sparse_cost
        return ScoreJob(sequences, work, model.heads, *costs, self._limits, looked_up)

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
