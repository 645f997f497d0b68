"""What all rpcs have in common: find the model, tokenise, ask the worker, keep to limits and threads. Knows no door.

Embedding, ranking, classification and models are built on it, in files of their own.
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from frontend_service import postprocess, settling
from frontend_service.answer import Answer
from frontend_service.distinct import without_repeats
from frontend_service.limits import FEWER_WEIGHTS, Limits
from frontend_service.pairs import PairTexts
from frontend_service.tokenized import Tokenized, Watch
from frontend_service.worker.protocol import ServedModel, Worker
from shared.card import ModelCard
from shared.deadline import Deadline
from shared.errors import UnknownModel, clip
from shared.jobs import Classify, Job, MaxSim, Work
from shared.offload import offload

INLINE_LETTERS = 2048
"""Of texts that are tokenised on the event loop: half a millisecond, about what a thread and back take when busy."""

T = TypeVar("T")
A = TypeVar("A")


class Abandoned(Exception):
    """Nobody waits for these tokens any more."""


def _bytes(work: Work, tokenized: Tokenized) -> int:
    """Of ids and given vectors."""
    given = (work.queries, work.documents) if isinstance(work, MaxSim) else ()
    return len(tokenized.tokens.ids) + sum(len(each.data) for each in given if each is not None)


class Service:
    """One worker behind one set of limits and threads."""

    def __init__(
        self,
        worker: Worker,
        limits: Limits,
        threads: Executor,
        messages: Executor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`threads`: where texts are tokenised. `messages`: where large messages are read and made."""
        self._worker = worker
        self._threads = threads
        self._messages = messages
        self._ids = itertools.count(random.getrandbits(62))
        self.limits = limits
        self.clock = clock

    def model(self, name: str) -> ServedModel:
        """The model of that name; empty means the only one."""
        model = self._worker.model
        if name not in ("", model.card.id):
            raise UnknownModel(f"no model is called {clip(name)}; there is {model.card.id}", field="model")
        return model

    async def classify_pairs(
        self, model: ServedModel, texts: PairTexts, normalize: bool | None, deadline: Deadline
    ) -> Answer:
        """Scores of pairs, row-major, activated; one token count a pair."""
        start = self.clock()
        tokenized = await self.tokenising(partial(model.tokenization.pairs, texts))
        answer = await self.answer(model, Classify(), tokenized, self.clock() - start, deadline)
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
        tokenized: Tokenized,
        tokenize: float,
        deadline: Deadline,
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
            remaining=deadline.remaining(),
        )
        sent = self.clock()
        result = await self._worker.run(job)
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

    async def tokenising(self, work: Callable[[Watch], T], letters: int | None = None) -> T:
        """Runs `work`, at once where few `letters` are to be tokenised, else in a thread.

        There it stops after its next slice when nobody waits any more.
        """
        if letters is not None and letters <= INLINE_LETTERS:
            return work(self.limits.check_tokens)
        abandoned = threading.Event()

        def watch(tokens: int) -> None:
            self.limits.check_tokens(tokens)
            if abandoned.is_set():
                raise Abandoned

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, watch)
        except asyncio.CancelledError:
            abandoned.set()
            raise

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
