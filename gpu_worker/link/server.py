"""The worker's gRPC service: it describes the worker, and serves the link of each frontend. Knows no torch."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

import grpc
import structlog

from gpu_worker.link.attachment import Attachment, FrontendLog, another_model
from gpu_worker.link.outbox import Outboxes
from gpu_worker.link.request_check import JobCheck, JobLimits
from gpu_worker.schedule.driver import Driver
from gpu_worker.schedule.interface import ObserveJob, WorkerFigures
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared import value_codec as codec
from shared.card import ModelCard
from shared.errors import InvalidInput, WorkerUnavailable, clip
from shared.link_codec import load_to_pb
from shared.server.options import LINK_VERSION
from shared.tasks import either
from shared.value_codec import MESSAGE_BYTES

TOKENIZER_PIECE_BYTES = 1024 * 1024
"""Most bytes of a tokenizer's file in one message."""
HELLO_SECONDS = 10.0
"""Seconds that a frontend has for its first message."""
UNSENT_BYTES = 256 * 1024 * 1024
"""Most bytes of answers that all frontends together have not read. Above it nothing more is computed for those with
more than an even share, until they read."""
LIMITS = JobLimits()
Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger("link")


class AttachRequests(Protocol):
    """The messages of a frontend, as the interceptor gives them. `size`: bytes of the last one."""

    size: int

    def __aiter__(self) -> "AttachRequests": ...

    async def __anext__(self) -> pb.AttachRequest: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the service needs to serve a model.

    `adapters`: the cards of those over it. `queue_seconds`: longest wait of a job, `inf` for no limit. `files`: what
    frontends read texts with, by the names in worker.proto.
    """

    card: ModelCard
    adapters: tuple[ModelCard, ...] = ()
    files: Mapping[str, bytes]
    driver: Driver
    queued_tokens: int
    queue_seconds: float


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers UNAVAILABLE until `ready` is set."""

    def __init__(
        self,
        threads: Executor,
        *,
        limits: JobLimits = LIMITS,
        on_job: Sequence[ObserveJob] = (),
    ) -> None:
        """`threads`, `on_job`: see `Attachment`. `limits`: those of single jobs."""
        self._threads, self._on_job = threads, on_job
        self._limits, self._log, self._outboxes = limits, FrontendLog(), Outboxes(UNSENT_BYTES)
        self._instance = uuid.uuid4().hex
        self._attached: set[Attachment] = set()
        self.ready: Ready | None = None

    def _ready(self) -> Ready:
        if self.ready is None:
            raise WorkerUnavailable("the worker is loading its model")
        return self.ready

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        ready = self._ready()
        return pb.DescribeResponse(
            card=codec.card_to_pb(ready.card),
            adapters=[codec.card_to_pb(card) for card in ready.adapters],
            message_bytes=MESSAGE_BYTES,
            queued_tokens=ready.queued_tokens,
            queue_seconds=0.0 if ready.queue_seconds == inf else ready.queue_seconds,
        )

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        for name, content in self._ready().files.items():
            for start in range(0, len(content), TOKENIZER_PIECE_BYTES):
                yield pb.GetTokenizerResponse(name=name, data=content[start : start + TOKENIZER_PIECE_BYTES])

    async def Attach(self, requests: AttachRequests, context: Context) -> None:
        """Serves a frontend until it goes. Writes bytes, since `Interceptor` serves streams raw."""
        ready = self._ready()
        name = f"the frontend at {context.peer().rpartition(':')[0]}"  # the port is another one each time
        try:
            hello = await _hello(requests, ready.card.fingerprint)
            name = f"the frontend {hello} at {context.peer().rpartition(':')[0]}"
            await self._serve(name, ready, requests, context)
        except InvalidInput as error:
            self._log.expelled(name, error)
            raise type(error)(f"{name}: {error.message}", field=error.field) from None
        except BaseException:
            self._log.detached(name)
            raise
        self._log.detached(name)

    async def _serve(self, name: str, ready: Ready, requests: AttachRequests, context: Context) -> None:
        """Serves a frontend that has said who it is. Raises InvalidInput for a message that makes no sense."""
        fingerprint = ready.card.fingerprint
        attachment = Attachment(
            ready.driver,
            fingerprint,
            self._threads,
            self._outboxes,
            self._log,
            name,
            JobCheck(ready.card, self._limits, ready.driver.step_tokens),
            on_job=self._on_job,
        )
        welcome = pb.Welcome(version=LINK_VERSION, instance=self._instance, fingerprint=fingerprint)
        self._attached.add(attachment)
        first_message = pb.AttachResponse(welcome=welcome, load=load_to_pb(attachment.load))
        self._log.attached(name)
        try:
            await context.write(first_message.SerializeToString())
            await either(_read(attachment, requests), attachment.send(context.write), attachment.check_is_read())
        finally:
            self._attached.discard(attachment)
            attachment.close()

    @property
    def figures(self) -> WorkerFigures:
        """Figures for metrics, once there is a model. May be read from other threads."""
        return replace(self._ready().driver.figures, unsent=self._outboxes.unsent, frontends=len(self._attached))

    async def wait_until_idle(self, seconds: float) -> None:
        """Waits until every attached frontend has its answers, at most so long."""
        end = time.monotonic() + seconds
        while any(not attachment.idle for attachment in self._attached):
            if time.monotonic() > end:
                log.warning("drain cut short")
                return
            await asyncio.sleep(0.02)


async def _read(attachment: Attachment, requests: AttachRequests) -> None:
    async for request in requests:
        await attachment.receive(request, requests.size)


async def _hello(requests: AttachRequests, fingerprint: str) -> str:
    """Waits for a frontend's hello, and returns its name. Raises InvalidInput, WorkerUnavailable for another model."""
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            first = await anext(requests, pb.AttachRequest())
    except TimeoutError:
        raise InvalidInput(f"no hello came within {HELLO_SECONDS:g} s", field="hello") from None
    hello = first.hello
    if not first.HasField("hello"):
        raise InvalidInput("the first message must be a hello", field="hello")
    if hello.version != LINK_VERSION:
        versions = f"the frontend speaks version {hello.version} of the link, this worker version {LINK_VERSION}"
        raise InvalidInput(f"{versions}: run both in one version of Selvage", field="hello.version")
    if hello.fingerprint not in ("", fingerprint):
        raise another_model(hello.fingerprint, fingerprint)
    return clip(hello.name)
