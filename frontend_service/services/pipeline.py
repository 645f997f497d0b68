"""What all rpcs have in common: find the model, tokenise, ask the worker, keep to limits and turns. Knows no door.

Embedding, ranking, classification and models are built on it, in files of their own.
"""

import itertools
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from frontend_service.domain.answer import Answer
from frontend_service.domain.limits import FEWER_WEIGHTS, Limits
from frontend_service.domain.results import result_bytes
from frontend_service.postprocess import ranking as postprocess
from frontend_service.services import job_options as settling
from frontend_service.services.deduplicate import without_repeats
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_threads import FairThreads, Slices, finished, once
from frontend_service.tokenizing.pairs.pairs import PairTexts
from frontend_service.tokenizing.panics import panics_as
from frontend_service.workers.interface import ServedModel, Workers
from shared.card import ModelCard
from shared.errors import Internal
from shared.jobs import Classify, Job, MaxSim, Work
from shared.offload import offload
from shared.terms import RequestTerms

INLINE_LETTERS = 2048
"""Of texts that are tokenised on the event loop: half a millisecond, about what a thread and back take when busy."""

LOGGED_LETTERS = 200
"""Of a panic: it may quote the text."""

log = structlog.get_logger("service")
T = TypeVar("T")
A = TypeVar("A")


def unreserved(size: int) -> None:
    """Refuses nothing."""


def _bytes(work: Work, tokenized: TokenizedBatch) -> int:
    """Of ids and given vectors."""
    given = (work.queries, work.documents) if isinstance(work, MaxSim) else ()
    return len(tokenized.tokens.ids) + sum(len(each.data) for each in given if each is not None)


class Pipeline:
    """One worker behind one set of limits and threads."""

    def __init__(
        self,
        worker: Workers,
        limits: Limits,
        threads: Executor,
        messages: Executor,
        clock: Callable[[], float] = time.monotonic,
        reserve: Callable[[int], None] = unreserved,
    ) -> None:
        """`threads`: where texts are tokenised and results finished. `messages`: where large messages are made.

        `reserve` is told how many bytes a result will have before it is asked for, and may refuse; see `Admission`.
        """
        self._worker = worker
        self._turns = FairThreads(threads)
        self._messages = messages
        self._ids = itertools.count(random.getrandbits(62))
        self.limits = limits
        self.clock = clock
        self._reserve = reserve

    def model(self, name: str) -> ServedModel:
        """The model of that name; empty means the only one. Raises UnknownModel, WorkerUnavailable."""
        return self._worker.model(name)

    def models(self) -> tuple[ServedModel, ...]:
        """All that are served. Raises WorkerUnavailable where there is none."""
        return self._worker.models()

    async def classify_pairs(
        self, model: ServedModel, texts: PairTexts, normalize: bool | None, terms: RequestTerms
    ) -> Answer:
        """Scores of pairs, row-major, activated; one token count a pair."""
        start = self.clock()
        tokenized = await self.tokenising(model.tokenization.pairs(texts))
        answer = await self.answer(model, Classify(), tokenized, self.clock() - start, terms)
        return await self.activated(answer, model.card, normalize)

    async def activated(self, answer: Answer, card: ModelCard, normalize: bool | None) -> Answer:
        """The same with scores instead of logits."""
        activation, labels = settling.activation_of(card, normalize), len(card.labels)
        scores = await self.in_thread(lambda: postprocess.activate(answer.result.scores, labels, activation))
        return replace(answer, result=replace(answer.result, scores=scores))

    async def answer(
        self,
        model: ServedModel,
        work: Work,
        tokenized: TokenizedBatch,
        tokenize: float,
        terms: RequestTerms,
    ) -> Answer:
        """Runs one job. Raises the job's own error."""
        self.limits.check_tokens(tokenized.tokens.total)
        once, kept, repeat = await self.offload(
            _bytes(work, tokenized), lambda _: without_repeats(work, tokenized), None
        )
        job = Job(
            id=next(self._ids),
            work=once,
            tokens=kept.tokens,
            prompt_lengths=kept.prompt_lengths if any(kept.prompt_lengths) else (),
            second_segments=kept.second_segments if any(kept.second_segments) else (),
            unattended_tails=kept.tails if any(kept.tails) else (),
            remaining=terms.deadline.remaining(),
            priority=terms.priority,
            key=terms.key,
            request_id=terms.request_id,
            traceparent=terms.traceparent,
        )
        self._reserve(result_bytes(work, tokenized.tokens, model.card))  # repeats included
        sent = self.clock()
        result = await self._worker.run(model, job)
        answered = self.clock()
        if repeat is not None:
            result = await self.in_thread(
                partial(repeat, result, partial(self.limits.check_reply, remedy=FEWER_WEIGHTS))
            )
        return Answer(
            model=model.card.id,
            result=result,
            tokens=tokenized.tokens,
            truncated=tokenized.truncated,
            tokenize=tokenize,
            transfer=max(0.0, answered - sent - result.queue - result.compute),
            answered=answered,
        )

    async def offload(self, size: int, work: Callable[[A], T], argument: A) -> T:
        """Runs `work(argument)`, in a thread where it handles many bytes."""
        return await offload(self._messages, size, work, argument)

    async def tokenising(self, slices: Slices[T], letters: int | None = None) -> T:
        """What `slices` returns: at once where few `letters` are to be tokenised, else in turns with other requests.

        Raises LimitExceeded over the limit of tokens, and Internal where the tokenizer fails. When cancelled, it stops
        after its running slice.
        """
        limited = self._limited(slices)
        if letters is not None and letters <= INLINE_LETTERS:
            return finished(limited)
        return await self._turns.run(limited)

    def _limited(self, slices: Slices[T]) -> Slices[T]:
        """The same, held against the limit of tokens after each slice."""
        with panics_as(_broken):
            while True:
                try:
                    tokens = next(slices)
                except StopIteration as end:
                    result: T = end.value
                    return result
                self.limits.check_tokens(tokens)
                yield tokens

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns, in a thread: a slice in turns with tokenising, before what has had more time."""
        return await self._turns.run(once(work))

    def close(self) -> None:
        """Ends what is tokenised or finished."""
        self._turns.close()


def _broken(why: str) -> Internal:
    log.error("the tokenizer panicked", why=why[:LOGGED_LETTERS])
    return Internal("the tokenizer failed on this request; the log of the service has it under this request id")
