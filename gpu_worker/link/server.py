"""WorkerService: what the worker is, and the link that frontends attach to. Knows no torch."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import grpc
import structlog

from gpu_worker.link.attachment import Attachment, another_model
from gpu_worker.link.unread import Unread
from gpu_worker.loop.async_loop import AsyncLoop
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared.card import ModelCard
from shared.codec import fields as codec
from shared.codec.load import load_to_pb
from shared.errors import InvalidInput, WorkerUnavailable, clip
from shared.server.rpc import LINK_VERSION, MESSAGE_BYTES
from shared.telemetry.figures import TellJob, WorkerFigures
from shared.together import either

PIECE_BYTES = 1024 * 1024
HELLO_SECONDS = 10.0
"""For whoever attaches to say who it is."""
Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger("link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What there is once the model is loaded. `queue_seconds`: 0 for no bound."""

    card: ModelCard
    tokenizer: bytes
    scheduler: AsyncLoop
    queued_tokens: int
    queue_seconds: float


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers UNAVAILABLE until `ready` is set."""

    def __init__(self, threads: Executor, unread: Unread, *, log_jobs: bool, tell_job: Sequence[TellJob] = ()) -> None:
        """`threads`, `unread`, `tell_job`: see `Attachment`."""
        self._threads, self._unread, self._log_jobs, self._tell_job = threads, unread, log_jobs, tell_job
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
            message_bytes=MESSAGE_BYTES,
            queued_tokens=ready.queued_tokens,
            queue_seconds=ready.queue_seconds,
        )

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        content = self._ready().tokenizer
        for start in range(0, len(content), PIECE_BYTES):
            yield pb.GetTokenizerResponse(name="tokenizer.json", data=content[start : start + PIECE_BYTES])

    async def Attach(self, requests: AsyncIterator[pb.AttachRequest], context: Context) -> None:
        """Until the frontend goes. Writes bytes: `Interceptor` serves streams raw."""
        ready = self._ready()
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                first = await anext(requests, pb.AttachRequest())
        except TimeoutError:
            raise InvalidInput(f"no hello came within {HELLO_SECONDS:g} s", field="hello") from None
        fingerprint = ready.card.fingerprint
        name = _welcomed(first, fingerprint)
        attachment = Attachment(
            ready.scheduler,
            fingerprint,
            self._threads,
            self._unread,
            log_jobs=self._log_jobs,
            tell_job=self._tell_job,
        )
        welcome = pb.Welcome(version=LINK_VERSION, instance=self._instance, fingerprint=fingerprint)
        first_word = pb.AttachResponse(welcome=welcome, load=load_to_pb(ready.scheduler.load))
        log.info("frontend attached", name=name)
        self._attached.add(attachment)
        try:
            await context.write(first_word.SerializeToString())
            await either(_read(attachment, requests), attachment.send(context.write))
        finally:
            self._attached.discard(attachment)
            attachment.close()
            log.info("frontend detached", name=name)

    @property
    def figures(self) -> WorkerFigures:
        """For metrics, once there is a model; other threads may ask."""
        return replace(self._ready().scheduler.figures, unsent=self._unread.total, frontends=len(self._attached))

    async def drained(self, seconds: float) -> None:
        """Returns when every attached frontend has its answers, or after so many seconds."""
        end = time.monotonic() + seconds
        while any(not each.idle for each in self._attached):
            if time.monotonic() > end:
                log.warning("drain cut short")
                return
            await asyncio.sleep(0.02)


async def _read(attachment: Attachment, requests: AsyncIterator[pb.AttachRequest]) -> None:
    async for request in requests:
        await attachment.take(request)


def _welcomed(first: pb.AttachRequest, fingerprint: str) -> str:
    """The name of who attaches. Raises InvalidInput, and WorkerUnavailable for another model."""
    hello = first.hello
    if not first.HasField("hello"):
        raise InvalidInput("the first message must be a hello", field="hello")
    if hello.version != LINK_VERSION:
        raise InvalidInput(f"version {hello.version} is not spoken here, {LINK_VERSION} is", field="hello.version")
    if hello.fingerprint not in ("", fingerprint):
        raise another_model(hello.fingerprint, fingerprint)
    return clip(hello.name)
