"""The link to a worker that comes, goes and changes, over a real channel; the worker is a fake."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fakes
import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from frontend_service.worker.link import WorkerLink
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared import codec, request_id, result_codec
from shared.errors import Overloaded, SelvageError, WorkerUnavailable
from shared.jobs import Classify, Job, JobResult
from shared.ragged import RaggedTokens
from shared.services import WORKER_SERVICES

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
JOB = Job(id=7, work=Classify(), tokens=RaggedTokens.of([[1, 2]]), remaining=60)


class Servicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers each job with the bytes of a score, with `fails`, or never."""

    def __init__(self) -> None:
        self.card = fakes.card()
        self.tokenizer = fakes.tokenizer_json()
        self.fetched = 0
        self.fails: SelvageError | None = None
        self.hangs = False
        self.reached, self.dropped = asyncio.Event(), asyncio.Event()
        self.metadata: dict[str, Any] = {}

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        return pb.DescribeResponse(card=codec.card_to_pb(self.card), queued_tokens=1000)

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        self.fetched += 1
        half = len(self.tokenizer) // 2
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=self.tokenizer[:half])
        yield pb.GetTokenizerResponse(name="another.json", data=b"not for us")
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=self.tokenizer[half:])

    async def Execute(self, request: pb.ExecuteRequest, context: Any) -> AsyncIterator[pb.ExecuteResponse]:
        (job,) = request.jobs
        self.metadata = dict(context.invocation_metadata())
        self.reached.set()
        try:
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.dropped.set()
        if self.fails is not None:
            yield codec.error_to_pb(job.id, self.fails)
            return
        for part in result_codec.result_to_pb(job.id, JobResult(scores=b"1234")):
            yield part


class World:
    """A worker, a link to it, and what the link told of it."""

    def __init__(self) -> None:
        self.servicer = Servicer()
        self.server = grpc.aio.server()
        self.health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self.servicer, self.server)
        self.told: asyncio.Queue[bool] = asyncio.Queue()
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.link = WorkerLink(f"127.0.0.1:{port}", ThreadPoolExecutor(1), self.told.put)

    async def set(self, status: int) -> None:
        await self.health.set(WORKER_SERVICES[0], status)

    async def until(self, ready: bool) -> None:
        """Returns when the link tells so."""
        while await self.told.get() is not ready:
            pass


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """The worker loads its model still."""
    made = World()
    await made.set(NOT_SERVING)
    await made.server.start()
    supervising = asyncio.create_task(made.link.supervise())
    yield made
    supervising.cancel()
    await made.link.close()
    await made.server.stop(0)


async def test_before_it_has_looked_a_link_has_no_model() -> None:
    """And says so."""
    world = World()
    with pytest.raises(WorkerUnavailable, match="no worker has answered yet"):
        _ = world.link.model
    await world.link.close()


async def test_a_worker_that_loads_is_waited_for(world: World) -> None:
    """Until then the link says why it has no model; then it has card, tokenizer and limit."""
    await world.until(False)
    with pytest.raises(WorkerUnavailable, match="it reports NOT_SERVING") as raised:
        _ = world.link.model
    assert raised.value.retry_after == 1.0
    await world.set(SERVING)
    await world.until(True)
    model = world.link.model
    assert (model.card, model.queued_tokens) == (world.servicer.card, 1000)
    assert model.tokenization.tokenizer.get_vocab_size() == len(fakes.WORDS)


async def test_a_worker_that_comes_back_is_found_again(world: World) -> None:
    """It is described anew, and its tokenizer is fetched once."""
    await world.set(SERVING)
    await world.until(True)
    before = world.link.model
    await world.set(NOT_SERVING)
    await world.until(False)
    await world.set(SERVING)
    await world.until(True)
    assert world.link.model.tokenization is before.tokenization
    assert world.servicer.fetched == 1


async def test_another_model_is_never_served_instead(world: World) -> None:
    """The link says so as long as it lasts, and serves the first one again."""
    await world.set(SERVING)
    await world.until(True)
    await world.set(NOT_SERVING)
    await world.until(False)
    world.servicer.card = fakes.card(fingerprint="another")
    await world.set(SERVING)
    await world.until(False)
    with pytest.raises(WorkerUnavailable, match="another model"):
        _ = world.link.model
    world.servicer.card = fakes.card()
    await world.until(True)
    assert world.link.model.card.fingerprint == "f"


async def test_a_tokenizer_that_is_none_ends_nothing(world: World) -> None:
    """The link goes on trying, and serves when it is one."""
    await world.until(False)
    world.servicer.tokenizer = b"{}"
    await world.set(SERVING)
    await world.until(False)
    with pytest.raises(WorkerUnavailable, match="not understood"):
        _ = world.link.model
    world.servicer.tokenizer = fakes.tokenizer_json()
    await world.until(True)


async def test_a_job_is_answered_under_its_request_id(world: World) -> None:
    """The parts of its answer are put together; the id goes along."""
    request_id.bind("mine-7")
    assert (await world.link.run(JOB)).scores == b"1234"
    assert world.servicer.metadata["x-request-id"] == "mine-7"


async def test_a_jobs_own_error_comes_back(world: World) -> None:
    """As what it is, with its wait."""
    world.servicer.fails = Overloaded("full", retry_after=2.5)
    with pytest.raises(Overloaded, match="full") as raised:
        await world.link.run(JOB)
    assert raised.value.retry_after == 2.5


async def test_a_worker_that_dies_under_a_job_is_unavailable(world: World) -> None:
    """By name, and not as what the transport calls it."""
    world.servicer.hangs = True
    running = asyncio.ensure_future(world.link.run(JOB))
    await world.servicer.reached.wait()
    await world.server.stop(0)
    with pytest.raises(WorkerUnavailable, match="connection to the worker failed"):
        await running


async def test_cancelling_a_run_cancels_its_job(world: World) -> None:
    """The worker hears of it."""
    world.servicer.hangs = True
    running = asyncio.ensure_future(world.link.run(JOB))
    await world.servicer.reached.wait()
    assert not world.servicer.dropped.is_set()
    running.cancel()
    await world.servicer.dropped.wait()
    await asyncio.wait([running])
