"""One worker: found, attached to, lost and found again. Knows its model, and nothing of other workers."""

import asyncio
import os
import random
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import grpc
import structlog

from frontend_service.workers.description import describe
from frontend_service.workers.interface import ServedModel
from frontend_service.workers.stream import SILENCE, Stream
from frontend_service.workers.tokenizer import tokenization_of
from frontend_service.workers.transport import Metadata, WorkerTransport
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import GivenBack, SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult, Priority
from shared.load import Load
from shared.server.rpc import LINK_VERSION
from shared.server.rpc.status import to_domain_error
from shared.server.services import WORKER_SERVICES

FIRST_WAIT, LONGEST_WAIT = 0.1, 1.0
"""Seconds between two tries."""

log = structlog.get_logger("worker")


class Link:
    """`model` is what the worker had when it was last attached, None before; `why` says why it does not serve."""

    def __init__(
        self, target: str, host: str, way: WorkerTransport, threads: Executor, on_change: Callable[[], None]
    ) -> None:
        """`target`: HOST:PORT, found by the name `host`. `on_change` is called whenever `serving` has changed."""
        self.target, self._host, self._way = target, host, way
        self._threads, self._on_change = threads, on_change
        self.model: ServedModel | None = None
        self._stream: Stream | None = None
        self.why = "no worker has answered yet"

    @property
    def serving(self) -> ServedModel | None:
        """The model, while the worker takes jobs."""
        stream = self._stream
        return self.model if stream is not None and not (stream.load.draining or stream.load.stalled) else None

    @property
    def attached(self) -> bool:
        """Whether a stream is open, though the worker may drain or stall: jobs may be under way."""
        return self._stream is not None

    def wait(self, tokens: int, priority: Priority, key: str) -> float:
        """Seconds, at most, until the turn of a new job of so many tokens; 0 where unknown.

        By the load that the worker told last, what was sent since, and what this frontend has there for the same key.
        """
        return self._expected(Load.wait, tokens, priority, key)

    def queue(self, tokens: int, priority: Priority, key: str) -> float:
        """The part of it that the worker bounds: without lower classes, and what is served beside because it fits."""
        return self._expected(Load.queue_seconds, tokens, priority, key)

    def _expected(
        self, seconds: Callable[[Load, int, Priority, int], float], tokens: int, priority: Priority, key: str
    ) -> float:
        stream = self._stream
        if stream is None or not stream.load.tokens_per_second:
            return 0.0
        # What is there for the same key may be under way already, and then the key waits for nothing.
        known = max(seconds(stream.load, tokens, priority, own) for own in {0, stream.keys[key]})
        return known + stream.unheard(tokens) / stream.load.tokens_per_second

    @property
    def speed(self) -> float:
        """Tokens a second of late; 0 where unknown."""
        return 0.0 if self._stream is None else self._stream.load.tokens_per_second

    def takes(self, tokens: int) -> float:
        """Seconds to compute so many tokens; 0 where unknown."""
        return tokens / self.speed if self.speed else 0.0

    async def run(self, job: Job) -> JobResult:
        """Raises the job's own error, GivenBack or WorkerUnavailable. Cancelling it cancels the job."""
        if self._stream is None:
            raise GivenBack(f"the worker is not ready: {self.why}", retry_after=1.0)
        return await self._stream.run(job)

    async def follow(self) -> None:
        """Never returns; after a failure tries again, soon and then less soon."""
        wait = FIRST_WAIT
        while True:
            try:
                await self._attach()
            except grpc.aio.AioRpcError as error:
                why = to_domain_error(error).message
            except SelvageError as error:
                why = error.message
            except OSError as error:  # a certificate that is not there
                why = str(error)
            except Exception as error:  # a card or tokenizer of another version: stay alive, and say so
                log.error("worker not understood", target=self.target, exc_info=error)
                why = "its card or tokenizer is not understood; the log of the frontend has it"
            if self._stream is not None:
                wait = FIRST_WAIT
            self._lose(why)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, LONGEST_WAIT)

    async def _attach(self) -> None:
        """Until the worker is lost; always raises. A channel of its own each time: what is dead stays behind."""
        channel, metadata = self._way.channel(self.target, self._host), self._way.metadata
        try:
            told = await describe(channel, metadata)
            known, card = self.model, told.card
            if known is not None and known.card.fingerprint == card.fingerprint:
                tokenization = known.tokenization
            else:
                tokenization = await tokenization_of(channel, metadata, card, self._threads)
            call = await _hello(channel, metadata, card.fingerprint)
            stream = Stream(call, card.fingerprint, self._threads, self._on_change)
            self.model = ServedModel(
                card=card,
                tokenization=tokenization,
                queued_tokens=told.queued_tokens,
                queue_seconds=told.queue_seconds,
            )
            self._stream = stream
            log.info("worker ready", target=self.target, model=card.id, fingerprint=card.fingerprint)
            self._on_change()
            await stream.serve()
        finally:
            await channel.close()

    def _lose(self, why: str) -> None:
        if why != self.why:
            log.warning("worker not ready", target=self.target, why=why)
        self._stream, self.why = None, why
        self._on_change()


async def _hello(channel: grpc.aio.Channel, metadata: Metadata, fingerprint: str) -> Any:
    """An attached call. Raises WorkerUnavailable where the worker speaks another version or does not answer."""
    # Takes bytes, since large jobs are serialised in a thread, and gives bytes, of which rows are views.
    attach: Any = channel.stream_stream(f"/{WORKER_SERVICES[0]}/Attach")
    call = attach(metadata=metadata)
    name = f"{socket.gethostname()}:{os.getpid()}"
    hello = pb.Hello(version=LINK_VERSION, name=name, fingerprint=fingerprint)
    try:
        async with asyncio.timeout(SILENCE):
            await call.write(pb.AttachRequest(hello=hello).SerializeToString())
            first = await call.read()
    except TimeoutError:
        raise WorkerUnavailable(f"it did not answer for {SILENCE:g} s") from None
    if first is grpc.aio.EOF or pb.AttachResponse.FromString(first).welcome.version != LINK_VERSION:
        raise WorkerUnavailable(f"it does not speak version {LINK_VERSION} of the link")
    return call
