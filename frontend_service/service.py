"""What the frontend does: validate, tokenise, ask the worker, finish. Knows no protobuf and no gRPC.

Ranking and classifying are built on it, in files of their own.
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from frontend_service import postprocess, settling
from frontend_service.distinct import without_repeats
from frontend_service.limits import FEWER_WEIGHTS, Limits
from frontend_service.pairs import PairTexts
from frontend_service.requests import TokenizeRequest
from frontend_service.tokenization import Tokenization, TokenizedText
from frontend_service.tokenized import Tokenized, Watch
from shared.card import ModelCard
from shared.deadline import Deadline
from shared.errors import InvalidInput, UnknownModel, clip
from shared.jobs import Classify, Job, JobResult, MaxSim, Work
from shared.offload import offload
from shared.ragged import RaggedTokens

SHOWN_TOKEN_BYTES = 48
"""Of a token in a Tokenize reply: id, text, offsets; long tokens are rare."""

INLINE_LETTERS = 2048
"""Of texts that are tokenised on the event loop: half a millisecond, about what a thread and back take when busy."""

T = TypeVar("T")
A = TypeVar("A")


class Abandoned(Exception):
    """Nobody waits for these tokens any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model behind a ready worker, which refuses jobs over `queued_tokens` waiting tokens."""

    card: ModelCard
    tokenization: Tokenization
    queued_tokens: int


class Worker(Protocol):
    """Whoever computes."""

    @property
    def model(self) -> ServedModel:
        """Raises WorkerUnavailable until a worker is ready."""

    async def run(self, job: Job) -> JobResult:
        """Raises the job's own error, or WorkerUnavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A job's result with what the frontend knows of its texts.

    `tokenize` and `transfer` (the round trip to the worker without its queue and compute) in seconds; `answered`: when
    the worker's answer was there, by the service's clock.
    """

    model: str
    result: JobResult
    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    tokenize: float
    transfer: float
    answered: float

    @property
    def size(self) -> int:
        """Bytes of vectors and scores."""
        rows, sparse = (self.result.dense, self.result.tokens), self.result.sparse
        pairs = len(sparse.indices) + len(sparse.values) if sparse is not None else 0
        explained = len(self.result.winners) + len(self.result.similarities)
        return len(self.result.scores) + explained + pairs + sum(len(each.data) for each in rows if each is not None)


def _bytes(work: Work, tokenized: Tokenized) -> int:
    """Of ids and given vectors."""
    given = (work.queries, work.documents) if isinstance(work, MaxSim) else ()
    return len(tokenized.tokens.ids) + sum(len(each.data) for each in given if each is not None)


class Service:
    """Models and tokens, and what all rpcs of the public contract have in common, on domain types."""

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

    async def tokenize(self, request: TokenizeRequest) -> list[TokenizedText]:
        model = self.model(request.model)
        prompt = model.tokenization.prompt(request.prompt)
        letters = self.limits.check_texts(request.texts, "texts[{}]", self.limits.texts, prompt)

        def work(watch: Watch) -> list[TokenizedText]:
            def watch_reply(tokens: int) -> None:
                watch(tokens)
                self.limits.check_reply(tokens * SHOWN_TOKEN_BYTES, "ask for fewer texts")

            side = request.prompt.input_type
            return list(model.tokenization.each(request.texts, prompt, request.cut, "texts[{}]", watch_reply, side))

        return await self.tokenising(work, letters)

    async def detokenize(self, name: str, tokenized: tuple[tuple[int, ...], ...], skip_special: bool) -> list[str]:
        model = self.model(name)
        self.limits.check_count(len(tokenized), "tokenized", self.limits.texts)
        if not tokenized:
            raise InvalidInput("tokenized is empty", field="tokenized")

        def work() -> list[str]:
            for index, ids in enumerate(tokenized):
                if ids and not (min(ids) >= 0 and max(ids) < model.card.vocabulary_size):
                    raise InvalidInput(
                        f"tokenized[{index}] has an id outside 0 to {model.card.vocabulary_size - 1}",
                        field=f"tokenized[{index}]",
                    )
            return model.tokenization.detokenize(tokenized, skip_special)

        return await self.in_thread(work)

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
