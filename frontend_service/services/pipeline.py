"""The steps that all requests go through: texts are tokenised, one job is sent to a worker, its result awaited, and the
reply written.

A service calls them one after the other, checks sizes between them, and makes its answer of the result. Knows no API,
and no transport to the workers.
"""

import asyncio
import itertools
import operator
import random
import re
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Protocol, TypeVar

import numpy as np
import structlog

from frontend_service import postprocess
from frontend_service.domain.limits import ExpectedReply, Limits, expected_reply
from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.services.repeats import Distinct, Places, take_sequences
from frontend_service.tokenizing.tokenizer import ModelTexts, ModelTokenizer
from frontend_service.tokenizing.tokens import Chunks, PanicsAs, TokenizedBatch
from shared.caller import RequestTerms
from shared.card import ModelCard
from shared.errors import Internal, InvalidInput, UnsupportedTask, WorkerUnavailable, clip
from shared.jobs import Job, JobResult, PackedBytes, RaggedTokens, Work
from shared.query_table import QueryTable
from shared.tasks import offload
from shared.vectors import Activation, InputType, Task

INLINE_LETTERS = 2048
"""Most letters that are tokenised on the event loop: half a millisecond, about the cost of a busy thread and back."""

PLACE_BYTES = 256
"""Bytes that are copied in the time that putting a text in its place takes."""

LOGGED_LETTERS = 200
"""Most letters of a tokenizer panic that are logged, because it may quote the text."""

SIDE = re.compile(r"[._](query|passage|document)$")
"""End of a task of Jina's that says what the texts are; `input_type` has it already."""

log = structlog.get_logger("service")
T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model behind a ready worker.

    `texts` reads its texts. The worker refuses jobs that would make its queue longer than `queued_tokens`, or would
    stand in it for longer than `queue_seconds`. `adapter`: it is an adapter over the worker's own
    model, which serves beside it.
    """

    card: ModelCard
    texts: ModelTexts
    queued_tokens: int
    queue_seconds: float = inf
    adapter: bool = False

    def job(self, job: Job) -> Job:
        """The job as this model's worker wants it."""
        return replace(job, model=self.card.fingerprint) if self.adapter else job

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The tokenizer of texts whose kind is not told, and of documents."""
        return self.texts.tokenizer

    def tokenizer_of(self, input_type: InputType) -> ModelTokenizer:
        """The tokenizer of texts of a kind. Raises InvalidInput where the model wants the kind and it is not told."""
        return (self._is_query(input_type) and self.texts.query) or self.texts.tokenizer

    def writers_of(self, input_type: InputType) -> tuple[ModelTokenizer, ...]:
        """The tokenizers that ids of a kind may be of: both where the model wants the kind and it is not told."""
        route = self.card.query_route
        if route is None or self.texts.query is None or input_type or route.default_input_type:
            return (self.tokenizer_of(input_type),)
        return (self.texts.tokenizer, self.texts.query)

    def table_of(self, input_type: InputType) -> QueryTable | None:
        """The table in which texts of a kind are looked up; None where a worker computes them. Raises as above."""
        return self.texts.query_table if self._is_query(input_type) else None

    def _is_query(self, input_type: InputType) -> bool:
        route = self.card.query_route
        if route is None:
            return False
        kind = input_type or route.default_input_type
        if not kind:
            raise InvalidInput("the model reads queries and documents differently: say which", field="input_type")
        return kind is InputType.QUERY


class Workers(Protocol):
    """All workers together: the models that they serve, and the jobs that they compute."""

    def model(self, name: str) -> ServedModel:
        """The model of that name; empty: the only one that is no adapter. Raises UnknownModel, WorkerUnavailable."""

    def models(self) -> tuple[ServedModel, ...]:
        """All models that are served, sorted by name. Raises WorkerUnavailable where there is none."""

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        """Has a worker with this model compute a job, whose reply must be as `expected`. Cancelling it cancels the job.

        Raises the job's own error, WorkerUnavailable, Overloaded or DeadlineExceeded.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds that the parts of a request took. Reading the request counts in none of them.

    `tokenize`: until the token ids were there. `queue`: from the job's arrival at the worker to its first step.
    `compute`: from there to the end of its last step. `transfer`: the round trip to the worker without these two.
    `postprocess`: from the worker's result to the finished reply.
    """

    tokenize: float
    queue: float
    compute: float
    transfer: float
    postprocess: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A job's result with what the frontend knows of its texts.

    `tokens`: the token ids of all texts in the order of the request, equal ones as often as they were sent, with
    special tokens; of documents in windows, those of each window, and of a listwise reranker those of each block,
    whose counts are still those of texts. `token_counts`: the tokens of each text or, of a late
    chunking, of each chunk; `truncated`: whether each was cut. `tokenize` and `transfer` (the round trip to the worker
    without its queue and compute) in seconds. `answered`: the time at which the worker's result was there, by the
    pipeline's clock. `ranked_by`: what results are sorted by: the scores, in their shape, before an activation, which
    in float32 makes one number of many.
    """

    model: str
    result: JobResult
    ranked_by: PackedBytes
    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    token_counts: tuple[int, ...]
    tokenize: float
    transfer: float
    answered: float

    def with_result(self, result: JobResult) -> "Answer":
        """The same answer with another result, whose scores it is ranked by."""
        return replace(self, result=result, ranked_by=result.scores)

    @property
    def size(self) -> int:
        """Approximate bytes of the reply: those of vectors, scores and winners, without scales, ids and counts."""
        rows, sparse = (self.result.dense, self.result.tokens), self.result.sparse
        weights = len(sparse.indices) + len(sparse.values) if sparse is not None else 0
        explained = len(self.result.winners) + len(self.result.similarities)
        return (
            len(self.result.scores)
            + explained
            + weights
            + sum(len(vectors.data) for vectors in rows if vectors is not None)
        )

    def timing(self, finished: float) -> Timing:
        """The times of this request, whose reply was `finished` at that time of the pipeline's clock."""
        return Timing(
            tokenize=self.tokenize,
            queue=self.result.queue,
            compute=self.result.compute,
            transfer=self.transfer,
            postprocess=finished - self.answered,
        )


class Pipeline:
    """The workers, the limits and the threads that all services share."""

    def __init__(
        self,
        workers: Workers,
        limits: Limits,
        text_threads: Executor,
        message_threads: Executor,
        clock: Callable[[], float] = time.monotonic,
        reserve: Callable[[int], None] | None = None,
        tell_times: "Sequence[Callable[[Timing], None]]" = (),
    ) -> None:
        """`text_threads`: where texts are tokenised and results finished, a chunk of each request in turn.

        `message_threads`: where large messages are made and read. `reserve` is called with the bytes that a result will
        have before its job is sent, and may refuse it (see `Admission`); None: results may have any size. `tell_times`:
        called with the times of each request.
        """
        self.workers = workers
        self.limits = limits
        self.clock = clock
        self._text_threads = text_threads
        self._message_threads = message_threads
        self._ids = itertools.count(random.getrandbits(62))
        self._reserve, self._tell_times = reserve, tell_times

    def model(self, name: str, task: str | None = None) -> ServedModel:
        """The model that computes a request: the one of that name or, where that has an adapter for each task, the one
        of the task.

        Raises UnknownModel, WorkerUnavailable, and there UnsupportedTask for a task that it lacks, and for none.
        """
        model = self.workers.model(name)
        models = model.card.task_models
        if not models or (task is None and model.card.id in models.values()):
            return model
        tasks = ", ".join(sorted(models))
        if task is None:
            raise UnsupportedTask(
                f"{model.card.id} has an adapter for each task, and no default: give a task ({tasks}) where the API "
                f"has that field, or name the model of a task: {', '.join(sorted(models.values()))}",
                field="model",
            )
        chosen = next((name for name in (task, SIDE.sub("", task)) if name in models), None)
        if chosen is None:
            raise UnsupportedTask(f"the model has no task {clip(task)}; it has {tasks}", field="task")
        return self.workers.model(models[chosen])

    async def tokenize(
        self,
        model: ServedModel,
        texts: Sequence[str],
        entry: str,
        *,
        choice: PromptChoice,
        cut: Truncation,
        sequence_cut: Truncation | None = None,
        most: int | None = None,
        prompt_field: str = "prompt",
    ) -> tuple[TokenizedBatch, Places | None]:
        """Tokenises texts within the limits, equal ones once: with the place of each text in the batch, None where all
        differ.

        `entry`: what errors call one of the texts, such as `texts[{}]`. `choice`: the prompt before each, and whether
        they are queries or documents. `sequence_cut`, if there is one, holds beside `cut`. `most`: the most texts, None
        for `limits.texts`. Raises what `text_options` and `in_chunks` raise, and InputTooLong.
        """
        input_type = choice.input_type
        tokenizer, prompt, cut, letters = self.text_options(
            model, texts, entry, choice, cut, sequence_cut, most, prompt_field
        )
        places, numbers = None, None
        if len(texts) > 1 and (distinct := await self.distinct(texts, letters)).has_repeats:
            texts, numbers, places = distinct.once(texts), distinct.first, distinct.inverse
        if letters > INLINE_LETTERS:
            chunks = tokenizer.text_chunks(texts, prompt, cut, entry, input_type, numbers)
            return await self.in_chunks(chunks), places
        with PanicsAs(_tokenizer_failed):
            return tokenizer.texts(texts, prompt, cut, entry, input_type, numbers), places

    def text_options(
        self,
        model: ServedModel,
        texts: Sequence[str],
        entry: str,
        choice: PromptChoice,
        cut: Truncation,
        sequence_cut: Truncation | None = None,
        most: int | None = None,
        prompt_field: str = "prompt",
    ) -> tuple[ModelTokenizer, str, Truncation, int]:
        """The tokenizer of texts, the prompt before each, how each is cut, and what tokenising them costs in letters.

        Raises UnsupportedTask for an unknown prompt and for a text that the model has no vectors of, InvalidInput where
        the model wants an input type and there is none, and LimitExceeded.
        """
        check_side(model.card, choice.input_type, "input_type")
        limits, tokenizer = self.limits, model.tokenizer_of(choice.input_type)
        prompt = tokenizer.prompt(choice)
        if prompt and not tokenizer.takes_prompts:
            raise UnsupportedTask("the model's chat template has no place for a prompt", field=prompt_field)
        # First what each says or leaves to the setting, then both at once: a text is cut where either cuts it. In the
        # other order a `sequence_cut` that says no would also answer for a `cut` that says nothing, against
        # --auto-truncate: test_one_limit_that_says_no_leaves_the_other_to_the_setting (test_auto_truncate.py).
        cut = limits.with_default(cut)
        if sequence_cut is not None:
            cut = cut.within(limits.with_default(sequence_cut))
        letters = limits.check_texts(texts, entry, limits.texts if most is None else most, prompt, prompt_field)
        return tokenizer, prompt, cut, letters

    async def in_chunks(self, chunks: Chunks[T], letters: float = inf) -> T:
        """Runs chunks of tokenising in a text thread, or on the event loop where they have few `letters`; returns their
        result.

        A request has one chunk in the queue of the threads, so requests take turns, and a cancelled one ends with its
        chunk. Raises LimitExceeded over the limit of tokens, and Internal where the tokenizer fails.
        """
        run_chunk = partial(_next_chunk, chunks)
        while True:
            tokens, result = run_chunk() if letters <= INLINE_LETTERS else await self.in_thread(run_chunk)
            if result:
                return result[0]
            self.limits.check_tokens(tokens)

    async def run(
        self,
        model: ServedModel,
        work: Work,
        batch: TokenizedBatch,
        terms: RequestTerms,
        *,
        began: float,
        sent: TokenizedBatch | None = None,
        sent_work: Work | None = None,
    ) -> Answer:
        """Has a worker compute the texts of a job, and returns its result with the times that this took.

        `began`: when tokenising them began. `sent`: the texts as the request has them, where the job has equal ones
        once, and `sent_work` the work that it asks for, where that names their number. Cancelling it cancels the job.
        Raises LimitExceeded for too many tokens; Overloaded where `reserve` or all workers refuse the job;
        WorkerUnavailable, DeadlineExceeded, and the job's own error.
        """
        texts = sent or batch
        expected = expected_reply(work, batch.tokens, model.card, batch.ranges)
        whole = expected
        if texts is not batch:
            whole = expected_reply(sent_work or work, texts.tokens, model.card, texts.ranges)
        self.reserve(texts, whole)
        job = Job(
            id=next(self._ids),
            work=work,
            tokens=batch.tokens,
            prompt_lengths=batch.prompt_lengths if any(batch.prompt_lengths) else (),
            second_segments=batch.second_segments if any(batch.second_segments) else (),
            unattended_tails=batch.unattended_tails if any(batch.unattended_tails) else (),
            ranges=batch.ranges,
            remaining=terms.deadline.remaining(),
            priority=terms.priority,
            key=terms.key,
            request_id=terms.request_id,
            traceparent=terms.traceparent,
        )
        left = self.clock()
        result = await self.workers.run(model, job, expected)
        return self.answer(model, result, texts, began=began, left=left)

    async def distinct(self, keys: Sequence[Hashable], letters: int) -> Distinct:
        """The distinct ones of texts, or of what has texts, with so many `letters` in all."""
        return await offload(self._message_threads, letters, Distinct.among, keys)

    async def sent(self, batch: TokenizedBatch, places: Places | None) -> TokenizedBatch:
        """The texts as often as they were sent: at these `places` of a batch, None where none is repeated.

        Raises LimitExceeded for too many tokens.
        """
        if places is None:
            return batch
        tokens = int(np.array(batch.tokens.lengths, dtype=np.int64)[places].sum())
        self.limits.check_tokens(tokens)
        size = 4 * tokens + PLACE_BYTES * len(places)
        return await offload(self._message_threads, size, lambda batch: batch.at(places.tolist()), batch)

    async def as_sent(self, answer: Answer, places: Places | None) -> Answer:
        """The answer for all texts, as often as they were sent; see `sent`. Raises ResultTooLarge."""
        if places is None:
            return answer
        return answer.with_result(await self.in_thread(partial(take_sequences, answer.result, places, self.limits)))

    def reserve(self, texts: TokenizedBatch, expected: ExpectedReply) -> None:
        """Counts the bytes of the result for these texts before it is there. Raises LimitExceeded for too many tokens,
        and Overloaded where there is no room."""
        self.limits.check_tokens(texts.tokens.total)
        self.reserve_bytes(expected.known_bytes)

    def reserve_bytes(self, size: int) -> None:
        """Counts the bytes of a reply before it is written. Raises Overloaded where there is no room."""
        if self._reserve is not None:
            self._reserve(size)

    def answer(
        self, model: ServedModel, result: JobResult, texts: TokenizedBatch, *, began: float, left: float
    ) -> Answer:
        """A result that has just come, whose job left at `left`, with what is known of its texts."""
        answered = self.clock()
        return Answer(
            model=model.card.id,
            result=result,
            ranked_by=result.scores,
            tokens=texts.tokens,
            truncated=texts.truncated,
            token_counts=texts.token_counts or texts.tokens.lengths,
            tokenize=left - began,
            transfer=max(0.0, answered - left - result.queue - result.compute),
            answered=answered,
        )

    async def activate(self, answer: Answer, card: ModelCard, wanted: bool | None) -> Answer:
        """The answer with scores instead of logits, ranked by these still. `wanted`: see `activation_of`."""
        activation = postprocess.activation_of(card, wanted)
        if activation in (Activation.NONE, Activation.IDENTITY):
            return answer
        activate = partial(postprocess.activate, answer.result.scores, len(card.labels), activation)
        return replace(answer, result=replace(answer.result, scores=await self.in_thread(activate)))

    async def reply(self, answer: Answer, size: int, write: Callable[[], T]) -> tuple[T, Timing]:
        """Writes the reply to a request, in a message thread where `size` is many bytes. Returns it with the times of
        the request, and reports these."""
        reply = await self.offload(size, operator.call, write)
        timing = answer.timing(self.clock())
        for tell in self._tell_times:
            tell(timing)
        return reply, timing

    def offload(self, size: int, work: Callable[[A], T], argument: A) -> Coroutine[Any, Any, T]:
        """Runs `work(argument)`, in a message thread where `size` is many bytes."""
        return offload(self._message_threads, size, work, argument)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` in a text thread, after the chunks of requests that wait there already.

        Raises WorkerUnavailable where the threads have ended.
        """
        try:
            running = asyncio.get_running_loop().run_in_executor(self._text_threads, work)
        except RuntimeError:
            raise WorkerUnavailable("the service is draining", retry_after=1.0) from None
        return await running


def check_side(card: ModelCard, input_type: InputType, field: str) -> None:
    """Raises UnsupportedTask for texts that are no queries, where the model's documents are images."""
    if card.queries_only and input_type is not InputType.QUERY:
        why = "documents of this model are images, which are not served: only queries are, by input_type query"
        raise UnsupportedTask(why, field=field)


def check_task(card: ModelCard, task: Task) -> None:
    """Raises UnsupportedTask where the model is not for that task."""
    if task not in card.tasks:
        tasks = ", ".join(served.name for served in card.tasks)
        raise UnsupportedTask(f"the model is not for {task.name}; it is for {tasks}", field="model")


def _next_chunk(chunks: Chunks[T]) -> tuple[int, tuple[T] | None]:
    """Runs a chunk: the tokens so far, or in the end the result."""
    with PanicsAs(_tokenizer_failed):
        try:
            return next(chunks), None
        except StopIteration as end:
            return 0, (end.value,)


def _tokenizer_failed(why: str) -> Internal:
    log.error("the tokenizer panicked", why=why[:LOGGED_LETTERS])
    return Internal("the tokenizer failed on this request; the log of the service has it under this request id")
