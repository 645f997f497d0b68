"""WorkerService: messages -> jobs -> futures -> messages. Knows no torch."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import grpc

from gpu_worker.scheduler import Scheduler
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared import codec, job_codec, result_codec
from shared.card import ModelCard
from shared.errors import SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult
from shared.offload import offload
from shared.rpc import MESSAGE_BYTES

PIECE_BYTES = 1024 * 1024
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What there is once the model is loaded."""

    card: ModelCard
    tokenizer: bytes
    scheduler: Scheduler
    queued_tokens: int


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers UNAVAILABLE until `ready` is set."""

    def __init__(self, threads: Executor) -> None:
        """`threads`: where large requests are taken apart."""
        self._threads = threads
        self.ready: Ready | None = None

    def _ready(self) -> Ready:
        if self.ready is None:
            raise WorkerUnavailable("the worker is loading its model")
        return self.ready

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        ready = self._ready()
        return pb.DescribeResponse(
            card=codec.card_to_pb(ready.card), message_bytes=MESSAGE_BYTES, queued_tokens=ready.queued_tokens
        )

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        content = self._ready().tokenizer
        for start in range(0, len(content), PIECE_BYTES):
            yield pb.GetTokenizerResponse(name="tokenizer.json", data=content[start : start + PIECE_BYTES])

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> AsyncIterator[pb.ExecuteResponse]:
        scheduler = self._ready().scheduler
        waiting: dict[asyncio.Future[JobResult], Job] = {}
        done: asyncio.Queue[asyncio.Future[JobResult]] = asyncio.Queue()
        try:
            for job in await offload(self._threads, request.ByteSize(), job_codec.jobs_from_pb, request):
                try:
                    future = scheduler.submit(job)
                except SelvageError as error:
                    yield codec.error_to_pb(job.id, error)
                else:
                    waiting[future] = job
                    future.add_done_callback(done.put_nowait)
            while waiting:
                future = await done.get()
                for message in _answer(waiting.pop(future).id, future):
                    yield message
        finally:
            scheduler.cancel([job.id for job in waiting.values()])

    async def CancelJobs(self, request: pb.CancelJobsRequest, context: Context) -> pb.CancelJobsResponse:
        return pb.CancelJobsResponse(cancelled=self._ready().scheduler.cancel(request.ids))

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        load = self._ready().scheduler.load
        return pb.GetLoadResponse(
            queued_tokens=load.queued_tokens, queued_jobs=load.queued_jobs, tokens_per_second=load.tokens_per_second
        )


def _answer(job_id: int, future: asyncio.Future[JobResult]) -> Iterator[pb.ExecuteResponse]:
    if future.cancelled():
        yield codec.error_to_pb(job_id, WorkerUnavailable("the job was cancelled"))
        return
    error = future.exception()
    if isinstance(error, SelvageError):
        yield codec.error_to_pb(job_id, error)
    else:
        yield from result_codec.result_to_pb(job_id, future.result())
