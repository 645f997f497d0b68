"""The path of a request: a service prepares it, the pipeline runs it, the service finishes the answer. Knows no API.

`PreparedRequest` is what a service hands over: the model, the work, and the texts as slices of tokenising.
`Pipeline.run` tokenises within the limits, computes equal inputs once, sends one job to a worker and waits for it.
"""

import itertools
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from frontend_service.domain.answer import Answer
from frontend_service.domain.limits import FEWER_WEIGHTS, Limits
from frontend_service.domain.results import result_bytes
from frontend_service.services.deduplicate import Repeat, without_repeats
from frontend_service.tokenizing.batch import NOTHING, TokenizedBatch
from frontend_service.tokenizing.fair_thread_pool import FairThreadPool, TimeSlices, run_to_end, single_slice
from frontend_service.tokenizing.panics import panics_as
from frontend_service.workers.interface import ServedModel, Workers
from shared.errors import Internal
from shared.jobs import Job, JobResult, MaxSim, Work
from shared.ragged import RaggedTokens
from shared.tasks import offload
from shared.terms import RequestTerms

INLINE_LETTERS = 2048
"""Most letters that are tokenised on the event loop: half a millisecond, about the cost of a busy thread and back."""

INLINE_TOKENS = 8192
"""Most tokens that are looked up in a table on the event loop: a millisecond or two."""

LOGGED_LETTERS = 200
"""Most letters of a tokenizer panic that are logged, because it may quote the text."""

log = structlog.get_logger("service")
T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that a service has checked against the model's card and the limits, ready to run.

    `slices` tokenise its texts; None for a request that brings vectors only. `letters`: the cost of tokenising, in
    letters of text; None for pairs, blocks and texts in windows: a thread always tokenises these. Functions are None
    where there is nothing to do. `check_tokens` raises where the tokens show that the request, or its reply, is too
    large. `check_values` raises for wrong numbers in the request, and runs in a thread. `finish` turns the worker's
    result into that of the answer, also in a thread. `look_up`: makes the result of the tokens here, so that no worker
    is asked; None: a worker computes it.
    """

    model: ServedModel
    work: Work
    slices: TimeSlices[TokenizedBatch] | None
    letters: int | None = None
    check_tokens: Callable[[RaggedTokens], None] | None = None
    check_values: Callable[[], None] | None = None
    finish: Callable[[JobResult], JobResult] | None = None
    look_up: Callable[[RaggedTokens], JobResult] | None = None


class Pipeline:
    """Runs prepared requests: from texts to a worker's result, finished. All services share one.

    It also lends its threads: the fair thread pool for slices of texts and work on numbers, and the message threads for
    large messages.
    """

    def __init__(
        self,
        workers: Workers,
        limits: Limits,
        text_threads: Executor,
        message_threads: Executor,
        clock: Callable[[], float] = time.monotonic,
        reserve: Callable[[int], None] | None = None,
    ) -> None:
        """`text_threads`: where texts are tokenised and results finished, shared fairly by requests.

        `message_threads`: where large messages are made and read. `reserve` is called with the bytes that a result will
        have before its job is sent, and may refuse it (see `Admission`); None: results may have any size.
        """
        self.workers = workers
        self.limits = limits
        self.clock = clock
        self._pool = FairThreadPool(text_threads)
        self._message_threads = message_threads
        self._ids = itertools.count(random.getrandbits(62))
        self._reserve = reserve

    async def run(self, prepared: PreparedRequest, terms: RequestTerms) -> Answer:
        """Tokenises a request, has a worker compute it, and returns its result with the times that this took.

        Cancelling it cancels the job. Raises InvalidInput, InputTooLong and Internal where the tokenizer refuses or
        fails; LimitExceeded and ResultTooLarge; Overloaded where `reserve` or all workers refuse the job;
        WorkerUnavailable, DeadlineExceeded, and the job's own error.
        """
        start = self.clock()
        tokenized = NOTHING
        if prepared.slices is not None:
            tokenized = await self.run_slices(prepared.slices, prepared.letters)
        tokenize = self.clock() - start
        if prepared.check_tokens is not None:
            prepared.check_tokens(tokenized.tokens)
        if prepared.check_values is not None:
            await self.in_thread(prepared.check_values)
        self.limits.check_tokens(tokenized.tokens.total)

        job, repeat = await self._job(prepared.work, tokenized, terms)
        if self._reserve is not None:
            card, tokens = prepared.model.card, tokenized.tokens
            self._reserve(result_bytes(prepared.work, tokens, card, tokenized.ranges))  # repeats included
        sent = self.clock()
        if prepared.look_up is not None:
            look_up = partial(prepared.look_up, job.tokens)
            result = look_up() if job.tokens.total <= INLINE_TOKENS else await self.in_thread(look_up)
            result = replace(result, compute=self.clock() - sent)
        else:
            result = await self.workers.run(prepared.model, job)
        answered = self.clock()
        transfer = max(0.0, answered - sent - result.queue - result.compute)

        if repeat is not None:
            check_size = partial(self.limits.check_reply, remedy=FEWER_WEIGHTS)
            result = await self.in_thread(partial(repeat, result, check_size))
        computed = result
        if prepared.finish is not None:
            result = await self.in_thread(partial(prepared.finish, result))
        return Answer(
            model=prepared.model.card.id,
            result=result,
            ranked_by=computed.scores or result.scores,
            tokens=tokenized.tokens,
            truncated=tokenized.truncated,
            token_counts=tokenized.token_counts or tokenized.tokens.lengths,
            tokenize=tokenize,
            transfer=transfer,
            answered=answered,
        )

    async def _job(self, work: Work, tokenized: TokenizedBatch, terms: RequestTerms) -> tuple[Job, Repeat | None]:
        """The job with each input once, and the function that repeats its results, None where no input is repeated."""
        size = _input_bytes(work, tokenized)
        work, batch, repeat = await self.offload(size, partial(without_repeats, work), tokenized)
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
        return job, repeat

    async def offload(self, size: int, work: Callable[[A], T], argument: A) -> T:
        """Runs `work(argument)`, in a message thread where `size` is many bytes."""
        return await offload(self._message_threads, size, work, argument)

    async def run_slices(self, slices: TimeSlices[T], letters: int | None = None) -> T:
        """Runs slices of tokenising and returns their result: at once for few `letters`, else in the fair thread pool.

        Raises LimitExceeded over the limit of tokens, and Internal where the tokenizer fails. When cancelled, it stops
        after the running slice.
        """
        limited = self._limited(slices)
        if letters is not None and letters <= INLINE_LETTERS:
            return run_to_end(limited)
        return await self._pool.run(limited)

    def _limited(self, slices: TimeSlices[T]) -> TimeSlices[T]:
        """The same slices, with the limit of tokens checked after each."""
        with panics_as(_tokenizer_failed):
            while True:
                try:
                    tokens = next(slices)
                except StopIteration as end:
                    result: T = end.value
                    return result
                self.limits.check_tokens(tokens)
                yield tokens

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` in the fair thread pool, as a single slice: before requests that have had more time."""
        return await self._pool.run(single_slice(work))

    def close(self) -> None:
        """Ends what is being tokenised or finished."""
        self._pool.close()


def _input_bytes(work: Work, tokenized: TokenizedBatch) -> int:
    """Bytes of the token ids, and of the vectors in the request."""
    sides = (work.queries, work.documents) if isinstance(work, MaxSim) else ()
    return len(tokenized.tokens.ids) + sum(len(vectors.data) for vectors in sides if vectors is not None)


def _tokenizer_failed(why: str) -> Internal:
    log.error("the tokenizer panicked", why=why[:LOGGED_LETTERS])
    return Internal("the tokenizer failed on this request; the log of the service has it under this request id")
