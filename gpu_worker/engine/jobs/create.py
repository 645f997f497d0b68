"""Validates a job and opens it, or raises the error that says why this model cannot do it."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from gpu_worker.engine.jobs.classify import ClassifyJob
from gpu_worker.engine.jobs.encode import EncodeJob
from gpu_worker.engine.jobs.job import StepJob
from gpu_worker.engine.jobs.max_sim import MaxSimJob, TextMaxSimJob
from gpu_worker.engine.jobs.score import ScoreJob
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.sequences import Sequences
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.heads.pooling import Skiplist, instruction_ends
from gpu_worker.model.model import Model
from gpu_worker.ragged.token_types import Counts, Ids
from shared.errors import InputTooLong, InvalidInput
from shared.jobs import Classify, Encode, Job, MaxSim, Score
from shared.vectors import InputType, OutputKind


class JobFactory:
    """Opens the jobs of one model, and decides which tokens get a row and which pooling leaves out."""

    def __init__(self, model: Model, limits: PieceLimits = WHOLE) -> None:
        self._model, self._limits = model, limits
        self._abilities = Abilities(model)
        self._of_queries = self._abilities if model.query is None else Abilities(model.query)
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
        if self._model.query is not None and not (work.input_type or self._model.recipe.default_route):
            raise InvalidInput("this model reads queries and documents differently: say which", field="input_type")
        side, count = self._model.side(work.input_type), len(job.tokens)
        queries = count if side is self._model.query else 0
        self._check_tokens(job, queries)
        self._abilities.check_encode(work)
        skiplist = partial(self._skiplist, side=work.input_type) if OutputKind.MULTI_VECTOR in work.outputs else None
        sequences = Sequences(job, self._skipped(job), skiplist, queries=queries)
        abilities = self._abilities if side is self._model else self._of_queries
        return EncodeJob(sequences, work, side.heads, abilities.sparse_cost, self._limits)

    def _classify(self, job: Job, work: Classify) -> StepJob:
        self._check_tokens(job)
        labels, only = self._abilities.check_classify(work), work.token_id
        sequences = Sequences(job, select=None if only is None else lambda ids, _: ids == only)
        return ClassifyJob(sequences, work, labels, self._limits)

    def _score(self, job: Job, work: Score) -> StepJob:
        self._check_tokens(job, work.queries)
        self._abilities.check_score(work, len(job.tokens))
        model = self._model
        skiplist = partial(self._skiplist.of_scores, queries=work.queries) if ScoreJob.compares_tokens(work) else None
        sequences = Sequences(job, self._skipped(job), skiplist, queries=work.queries)
        costs = model.flops_per_token, self._abilities.sparse_cost
        return ScoreJob(sequences, work, model.heads, *costs, self._limits)

    def _check_tokens(self, job: Job, queries: int = 0) -> None:
        """Raises InvalidInput for no sequence or an id outside of the vocabulary, InputTooLong for a long sequence.

        The first `queries` sequences go the way of queries, where there is one.
        """
        tokens = job.tokens
        if not len(tokens):
            raise InvalidInput("a job has no sequences", field="jobs")
        ids = np.frombuffer(tokens.ids, dtype="<i4")
        if self._model.query is None:
            _check_side(self._model, tokens.lengths, ids)
            return
        middle = tokens.offsets[min(max(queries, 0), len(tokens))]
        _check_side(self._model.query, tokens.lengths[:queries], ids[:middle])
        _check_side(self._model, tokens.lengths[queries:], ids[middle:])

    def _skipped(self, job: Job) -> Counts | None:
        """Tokens [S] at the start of each sequence that pooling leaves out: a prompt, or up to an instruction mark.
        None where there are no such tokens."""
        prompts = np.array(job.prompt_lengths, dtype=np.int64) if job.prompt_lengths else None
        if not self._model.instruction_marks:
            return prompts
        ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        ends = instruction_ends(ids, np.array(job.tokens.offsets), self._model.instruction_marks)
        return ends if prompts is None else np.maximum(prompts, ends)


def _check_side(model: Model, lengths: Sequence[int], ids: Ids) -> None:
    """Checks the sequences of these `lengths`, with all their `ids`, that go through a model."""
    longest = max(lengths, default=0)
    if longest > model.longest:
        raise InputTooLong(f"a sequence has {longest} tokens, the limit is {model.longest}")
    if len(ids) and ids.view("<u4").max() >= model.vocabulary_size:  # negative ids too, which are large then
        raise InvalidInput(f"a token id is outside 0 to {model.vocabulary_size - 1}")
