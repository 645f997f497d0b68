"""The worker over gRPC: finds it, keeps an eye on it, sends it jobs; domain errors back."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend_service.service import ServedModel
from frontend_service.tokenization import Tokenization
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared import codec, job_codec, result_codec
from shared.errors import SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult
from shared.offload import offload
from shared.rpc import call_metadata, channel_options, to_domain_error

SERVICE = "selvage.worker.v1.WorkerService"
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
DESCRIBE_TIMEOUT = 10.0
DEADLINE_SLACK = 1.0
"""Seconds by which a call outlives its job's deadline, so that the worker's own word on it still arrives."""

log = structlog.get_logger("worker_client")


def _serialise(job: Job) -> bytes:
    return job_codec.jobs_to_pb([job]).SerializeToString()


class WorkerClient:
    """One worker. `run` fails at once while it is not ready; `supervise` finds it again."""

    def __init__(self, target: str, threads: Executor, on_ready: Callable[[bool], Awaitable[None]]) -> None:
        """`on_ready` is told whenever the worker becomes usable or stops being so."""
        self._target = target
        self._threads = threads
        self._on_ready = on_ready
        self._channel = grpc.aio.insecure_channel(target, options=channel_options())
        self._worker = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)
        self._execute: Any = self._channel.unary_stream(
            f"/{SERVICE}/Execute",  # takes bytes: large requests are serialised in a thread
            response_deserializer=pb.ExecuteResponse.FromString,
        )
        self._model: ServedModel | None = None
        self._tokenization: Tokenization | None = None
        self._ready = False
        self._why = "no worker has answered yet"

    @property
    def model(self) -> ServedModel:
        if self._model is None or not self._ready:
            raise WorkerUnavailable(f"the worker is not ready: {self._why}", retry_after=1.0)
        return self._model

    async def run(self, job: Job) -> JobResult:
        """Raises the job's own error, WorkerUnavailable or DeadlineExceeded."""
        payload = await offload(self._threads, job_codec.job_bytes(job), _serialise, job)
        assembly = result_codec.ResultAssembly()
        timeout = None if job.remaining is None else job.remaining + DEADLINE_SLACK
        try:
            async for message in self._execute(payload, timeout=timeout, metadata=call_metadata()):
                assembly.add(message)
        except grpc.aio.AioRpcError as error:
            raise to_domain_error(error) from None
        return await offload(self._threads, assembly.size, result_codec.ResultAssembly.result, assembly)

    async def supervise(self) -> None:
        """Follows the worker's health for ever; after a failure tries again, soon and then less soon."""
        wait = FIRST_WAIT
        while True:
            try:
                watch = self._health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
                async for response in watch:
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        await self._meet()
                        wait = FIRST_WAIT
                    else:
                        await self._lose("it reports NOT_SERVING")
                await self._lose("it ended the health watch")
            except grpc.aio.AioRpcError as error:
                await self._lose(error.code().name)
            except SelvageError as error:
                await self._lose(error.message)
            except Exception as error:  # a card or tokenizer of another version: stay alive, and say so
                log.error("worker not understood", target=self._target, exc_info=error)
                await self._lose("its card or tokenizer is not understood; the log of the frontend has it")
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, LONGEST_WAIT)

    async def close(self) -> None:
        await self._channel.close()

    async def _meet(self) -> None:
        """Takes the card and, the first time, the tokenizer. Raises WorkerUnavailable for another model."""
        describe: Any = await self._worker.Describe(pb.DescribeRequest(), timeout=DESCRIBE_TIMEOUT)
        card = codec.card_from_pb(describe.card)
        if self._tokenization is None or self._model is None:
            content = await self._tokenizer()
            loop = asyncio.get_running_loop()
            self._tokenization = await loop.run_in_executor(self._threads, Tokenization, content, card)
        elif card.fingerprint != self._model.card.fingerprint:
            log.error("fingerprint differs", worker=card.fingerprint, known=self._model.card.fingerprint)
            raise WorkerUnavailable("it came back with another model; restart this frontend to serve that")
        self._model = ServedModel(card=card, tokenization=self._tokenization, queued_tokens=describe.queued_tokens)
        self._ready = True
        log.info("worker ready", target=self._target, model=card.id, fingerprint=card.fingerprint)
        await self._on_ready(True)

    async def _tokenizer(self) -> bytes:
        pieces = self._worker.GetTokenizer(pb.GetTokenizerRequest(), timeout=DESCRIBE_TIMEOUT)
        return b"".join([piece.data async for piece in pieces if piece.name == "tokenizer.json"])

    async def _lose(self, why: str) -> None:
        if why != self._why:
            log.warning("worker not ready", target=self._target, why=why)
        self._ready, self._why = False, why
        await self._on_ready(False)
