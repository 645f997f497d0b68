"""Fake workers over real channels, and a fleet of links to them."""

import asyncio
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import fakes
import grpc
import pytest

from frontend_service.domain.limits import expected_reply
from frontend_service.workers import fleet as fleet_module
from frontend_service.workers.fleet import Fleet
from frontend_service.workers.job_stream import JobStream
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared import value_codec as codec
from shared.card import ModelCard
from shared.errors import SelvageError, WorkerUnavailable
from shared.jobs import Classify, Job, JobResult, Priority, RaggedTokens
from shared.link_codec import UnsentOutcome, load_to_pb
from shared.load import Load
from shared.server.options import LINK_VERSION
from shared.server.status import abort

TOKENS = RaggedTokens.of([[1, 2]])
JOB = Job(id=7, work=Classify(), tokens=TOKENS, remaining=60, request_id="mine-7", key="k", priority=Priority.BULK)


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Answers each sequence of a job with four bytes of its own, the job with `fails`, or never."""

    def __init__(self, scores: bytes = b"1234", **card: object) -> None:
        self.card, self.scores = fakes.card(**{"labels": ("score",)} | card), scores
        self.adapters: list[ModelCard] = []
        self.tokenizer = fakes.tokenizer_json()
        self.more_files: list[tuple[str, bytes]] = []
        self.fetched = 0
        self.fails: SelvageError | None = None
        self.loading = self.hangs = self.silent = False
        self.holds: asyncio.Event | None = None
        self.load, self.queue_seconds = Load(), 0.0
        self.version = LINK_VERSION
        self.reached, self.cancelled = asyncio.Event(), asyncio.Event()
        self.messages: list[pb.AttachRequest] = []
        self.server = grpc.aio.server()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        if self.loading:
            await abort(context, WorkerUnavailable("it loads"), "id")
        return pb.DescribeResponse(
            card=codec.card_to_pb(self.card),
            adapters=map(codec.card_to_pb, self.adapters),
            queued_tokens=1000,
            queue_seconds=self.queue_seconds,
        )

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        self.fetched += 1
        half = len(self.tokenizer) // 2
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=self.tokenizer[:half])
        yield pb.GetTokenizerResponse(name="another.json", data=b"not for us")
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=self.tokenizer[half:])
        for name, content in self.more_files:
            yield pb.GetTokenizerResponse(name=name, data=content)

    async def Attach(self, requests: AsyncIterator[pb.AttachRequest], context: Any) -> None:
        hello = (await anext(requests)).hello
        assert hello.fingerprint == self.card.fingerprint
        await context.write(
            pb.AttachResponse(welcome=pb.Welcome(version=self.version, instance="one", fingerprint=hello.fingerprint))
        )
        writing = asyncio.Lock()
        beating = asyncio.create_task(self._beat(context, writing))
        try:
            async for request in requests:
                self.messages.append(request)
                self.reached.set()
                if request.cancels:
                    self.cancelled.set()
                if self.holds is not None:
                    await self.holds.wait()
                for job in [] if self.hangs else request.jobs:
                    answer = pb.AttachResponse()
                    UnsentOutcome(job.id, self.fails or JobResult(scores=self.scores * job.sequences)).add_part(
                        answer, 1000
                    )
                    async with writing:
                        await context.write(answer)
        finally:
            beating.cancel()

    async def _beat(self, context: Any, writing: asyncio.Lock) -> None:
        while True:
            async with writing:
                if not self.silent:
                    await context.write(pb.AttachResponse(load=load_to_pb(self.load)))
            await asyncio.sleep(0.02)


class World:
    """Workers, a fleet of links to them, and what it told of itself."""

    def __init__(self, *workers: FakeWorker, pins: Collection[str] = ()) -> None:
        self.workers = workers
        self.changes: asyncio.Queue[bool] = asyncio.Queue()
        self.patch = pytest.MonkeyPatch()
        self.fleet = Fleet([worker.address for worker in workers], ThreadPoolExecutor(1), self.changes.put, pins=pins)

    def retarget(self, *workers: FakeWorker) -> None:
        """From now on names stand for the addresses of these."""
        self.fleet._targets = [worker.address for worker in workers]

    @property
    def addresses(self) -> set[str]:
        """The addresses that there are links to."""
        return {*self.fleet._links}

    async def until(self, ready: bool) -> None:
        """Returns when the fleet tells so."""
        while await self.changes.get() is not ready:
            pass

    async def until_scores(self, scores: bytes) -> None:
        """Returns when a worker answers with these."""
        while True:
            with suppress(WorkerUnavailable):
                if (await self.run()).scores == scores:
                    return
            await asyncio.sleep(0.02)

    async def run(self, job: Job = JOB, name: str = "") -> JobResult:
        model = self.fleet.model(name)
        return await self.fleet.run(model, job, expected_reply(job.work, job.tokens, model.card))

    async def __aenter__(self) -> "World":
        self.patch.setattr(fleet_module, "REFRESH_SECONDS", 0.02)
        for worker in self.workers:
            await worker.server.start()
        self.supervising = asyncio.create_task(self.fleet.supervise())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.patch.undo()
        self.supervising.cancel()
        for worker in self.workers:
            await worker.server.stop(0)


def streams(fleet: Fleet) -> list[JobStream]:
    """Those that are open."""
    return [link._stream for link in fleet._links.values() if link._stream is not None]
