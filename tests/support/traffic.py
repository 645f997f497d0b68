"""Steady traffic of mixed calls whose right answers are known, and what became of each."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
import numpy as np

from selvage.v1 import embedding_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from support.references import Calls, dense, multi_vectors

ASK_SECONDS, HUNG_SECONDS = 240.0, 300.0
"""The deadline of a call, tries included; and when one that should have ended by it counts as hung."""
TOLERANCE = 1e-5
REST = 0.01
"""Seconds between two calls of a caller: two cores also start processes meanwhile."""


def texts(number: int, words: int, seed: int) -> list[str]:
    """Texts of the tiny models' words."""
    generator = np.random.default_rng(seed)
    return [" ".join(f"w{each}" for each in generator.integers(800, size=words)) for _ in range(number)]


def given(rows: Sequence[int], seed: int) -> v.MultiVectors:
    """Token vectors of so many rows a text, four wide."""
    data = np.random.default_rng(seed).standard_normal(4 * sum(rows)).astype("<f4").tobytes()
    return v.MultiVectors(data_type=v.DATA_TYPE_FLOAT32, dimensions=4, lengths=rows, data=data)


def embedded(reply: Any) -> np.ndarray:
    """Every number of an Embed."""
    rows = multi_vectors(reply) if reply.multi_vector.data else []
    return np.concatenate([dense(reply).ravel(), *(each.ravel() for each in rows)])


def ranked(reply: Any) -> np.ndarray:
    """Scores by document."""
    return np.array([each.score for each in sorted(reply.results, key=lambda each: each.index)])


def scored(reply: Any) -> np.ndarray:
    """Scores of a matrix."""
    return np.array(reply.scores)


def differs(ours: np.ndarray, right: np.ndarray) -> bool:
    """By more than rounding; NaN differs from everything."""
    return ours.shape != right.shape or not np.abs(ours - right).max() <= TOLERANCE * max(1.0, np.abs(right).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request, where to ask it, and how its answer is read as numbers."""

    ask: Callable[[Calls], Any]
    request: Any
    numbers: Callable[[Any], np.ndarray]


EMBED, RERANK, MAX_SIM = (
    lambda calls: calls.embedding.Embed,
    lambda calls: calls.ranking.Rerank,
    lambda calls: calls.ranking.MaxSim,
)
BOTH = [v.OUTPUT_KIND_DENSE, v.OUTPUT_KIND_MULTI_VECTOR]
QUESTIONS = [
    *(
        Question(ask=EMBED, request=embedding_pb2.EmbedRequest(texts=texts(size, 20, size)), numbers=embedded)
        for size in (1, 3, 16)
    ),
    Question(ask=EMBED, request=embedding_pb2.EmbedRequest(texts=texts(4, 30, 4), outputs=BOTH), numbers=embedded),
    *(
        Question(
            ask=RERANK,
            request=ranking_pb2.RerankRequest(query="w7 w8 w9", documents=texts(size, 40, 50 + size), method=method),
            numbers=ranked,
        )
        for size, method in ((5, v.SCORING_METHOD_DENSE), (30, v.SCORING_METHOD_LATE_INTERACTION))
    ),
    Question(
        ask=MAX_SIM,
        request=ranking_pb2.MaxSimRequest(queries=given([3, 5], 1), documents=given([4, 1, 7], 2)),
        numbers=scored,
    ),
]
"""Embed, Rerank and MaxSim, small and middling."""


class Traffic:
    """Callers that ask without end. `outcomes` counts statuses; `wrong` and `hung` say which questions were."""

    def __init__(self, expected: Sequence[np.ndarray]) -> None:
        self._expected = expected
        self._numbers = count()
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.hung: list[str] = []

    @property
    def ended(self) -> int:
        """Calls, however they ended."""
        return self.outcomes.total()

    async def more(self, answers: int) -> None:
        """Returns after so many more right answers."""
        target = self.outcomes["OK"] + answers
        async with asyncio.timeout(HUNG_SECONDS):
            while self.outcomes["OK"] < target:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def ask(self, calls: Calls) -> None:
        """The next question, once; whatever comes of it is counted."""
        place = next(self._numbers) % len(QUESTIONS)
        question = QUESTIONS[place]
        try:
            async with asyncio.timeout(HUNG_SECONDS):
                reply = await question.ask(calls)(question.request, timeout=ASK_SECONDS)
        except TimeoutError:
            self.hung.append(f"question {place}")
        except grpc.aio.AioRpcError as error:
            self.outcomes[error.code().name] += 1
        else:
            numbers, right = question.numbers(reply), self._expected[place]
            if differs(numbers, right):
                self.wrong.append(f"question {place}: {numbers[:4]} for {right[:4]}")
            self.outcomes["OK"] += 1


@asynccontextmanager
async def traffic(channel: grpc.aio.Channel, callers: int = 4) -> AsyncIterator[Traffic]:
    """Learns the right answers, and asks until the end of the block; there every call that has begun ends."""
    calls = Calls(channel)
    running = Traffic([each.numbers(await each.ask(calls)(each.request)) for each in QUESTIONS])
    stopped = asyncio.Event()

    async def caller() -> None:
        while not stopped.is_set():
            await running.ask(calls)
            await asyncio.sleep(REST)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
        try:
            yield running
        finally:
            stopped.set()
