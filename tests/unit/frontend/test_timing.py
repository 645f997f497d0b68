"""Where the time of a request went, as every reply tells it. A clock of our own: no test waits or has thresholds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import FakeWorker, card, pipeline_of

from frontend_service.api.selvage_v1.servicers import ClassificationServicer, EmbeddingServicer, RankingServicer
from frontend_service.domain.limits import ExpectedReply
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Pipeline, ServedModel
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from selvage.v1 import classification_pb2, embedding_pb2, ranking_pb2, vectors_pb2
from shared.caller import Caller
from shared.jobs import Job, JobResult, Rows
from shared.server.calls import Calls
from shared.vectors import Activation, OutputKind, ScoringMethod, Task

PARTS = ("tokenize", "queue", "compute", "transfer", "postprocess")
TASKS = (Task.EMBED, Task.RERANK, Task.CLASSIFY, Task.CLASSIFY_TOKENS)


class Clock:
    """Stands still but for what is told to take time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any, **options: Any) -> Any:
            self.now += seconds
            return work(*args, **options)

        return slow


class SlowWorker(FakeWorker):
    """Its round trip takes 16 seconds on the clock; `seconds` of them are queue and compute."""

    clock: Clock
    seconds = (1.0, 4.0)

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        result = await super().run(model, job, expected)
        self.clock.now += 16
        tokens = Rows(dimensions=8, data=np.ones((job.tokens.total, 8), dtype="<f4").tobytes())
        queue, compute = self.seconds
        return replace(result, tokens=tokens, row_lengths=job.tokens.lengths, queue=queue, compute=compute)


SCORING = {"methods": tuple(ScoringMethod), "activation": Activation.SIGMOID}


def made(clock: Callable[[], float]) -> tuple[Pipeline, SlowWorker]:
    worker = SlowWorker(card(tasks=TASKS, labels=("label",), max_tokens=100, **SCORING))
    return pipeline_of(worker, clock=clock), worker


VECTORS = vectors_pb2.MultiVectors(data_type=1, dimensions=8, lengths=[1], data=bytes(32))
EMBED = embedding_pb2.EmbedRequest(texts=["a b", "c d"], outputs=[OutputKind.MULTI_VECTOR.value])
CALLS: dict[str, tuple[Any, Any]] = {
    "Embed": (EmbeddingServicer, EMBED),
    "Rerank": (RankingServicer, ranking_pb2.RerankRequest(query="a", documents=["b", "c"])),
    "Score": (RankingServicer, ranking_pb2.ScoreRequest(queries=["a"], documents=["b", "c"])),
    "MaxSim": (RankingServicer, ranking_pb2.MaxSimRequest(query_texts=["a"], documents=VECTORS)),
    "Classify": (ClassificationServicer, classification_pb2.ClassifyRequest(texts=["a"])),
    "ClassifyTokens": (ClassificationServicer, classification_pb2.ClassifyTokensRequest(texts=["a"])),
}


async def times(service: Pipeline, name: str) -> dict[str, float]:
    servicer, message = CALLS[name]
    frontend = Frontend(service, Calls(timeout=60))
    with frontend.calls.running(Caller(method=name, request_id="mine")):
        reply = await getattr(servicer(frontend), name)(message, None)
    return {part: getattr(reply.timing, part).ToNanoseconds() / 1e9 for part in PARTS}


@pytest.mark.parametrize("name", CALLS)
async def test_every_reply_tells_what_went_beside_queue_and_compute(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenising a side takes 2 s, the round trip 16 of which the worker tells 5; reading and making a message 32."""
    clock = Clock()
    service, worker = made(clock)
    worker.clock = clock
    offload = service.offload

    async def slow_offload(size: int, work: Callable[..., Any], argument: Any) -> Any:
        return await offload(size, clock.taking(32, work), argument)

    for method in ("texts", "shown_chunks"):
        monkeypatch.setattr(ModelTokenizer, method, clock.taking(2, getattr(ModelTokenizer, method)))
    monkeypatch.setattr(service, "offload", slow_offload)
    assert await times(service, name) == {
        "tokenize": 4 if name in ("Rerank", "Score") else 2,
        "queue": 1,
        "compute": 4,
        "transfer": 11,
        "postprocess": 32,  # reading the request is in no part
    }


async def test_no_time_is_negative() -> None:
    """The worker measures by its own clock, and may tell more than the round trip took."""
    service, worker = made(clock := Clock())
    worker.clock, worker.seconds = clock, (10.0, 7.0)
    assert (await times(service, "Embed"))["transfer"] == 0
