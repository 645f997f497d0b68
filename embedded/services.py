"""The worker, and the frontend's services on a unix socket, all on one event loop. Knows no client."""

import asyncio
import math
import os
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import quote

import structlog

from frontend_service.api.selvage_v1.servicers import register
from frontend_service.domain.limits import ExpectedReply, Limits
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Pipeline, ServedModel
from frontend_service.tokenizing.tokenizer import read_files
from gpu_worker.device.memory import keep_freed_memory
from gpu_worker.schedule.driver import DeviceLost, Driver
from gpu_worker.schedule.load import QUEUED_TOKENS
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import ModelWorker
from shared import reporting
from shared.errors import GivenBack, Internal, UnknownModel, WorkerUnavailable, clip
from shared.jobs import Job, JobResult
from shared.server.admission import Bounds
from shared.server.calls import Calls
from shared.server.grpc_server import Server
from shared.server.options import PUBLIC_SERVICES

T = TypeVar("T")
ANY = sys.maxsize
BOUNDS = Bounds(requests=ANY, size=ANY, slow_reads=ANY, streams=ANY, read_seconds=math.inf)
"""No limits: the only caller limits itself by its threads and by the parts that it has in flight."""
MOST_PATH_BYTES = 107
"""Longest path of a unix socket on Linux."""

log = structlog.get_logger("engine")


class Resident:
    """The `Workers` of the services: the worker of this process, without a link. `lost`: why it no longer computes."""

    def __init__(self, driver: Driver, *served: ServedModel) -> None:
        """`served`: the worker's model, and the adapters over it."""
        self._driver, self._served = driver, served
        self.lost = ""

    def model(self, name: str) -> ServedModel:
        """See `Workers`."""
        if self.lost:
            raise Internal(self.lost)  # a retry would not help
        for served in self._served:
            if name in ("", *served.card.names):
                return served
        ids = ", ".join(served.card.id for served in self._served)
        raise UnknownModel(f"no model is called {clip(name)}; there is {ids}", field="model")

    def models(self) -> tuple[ServedModel, ...]:
        """See `Workers`."""
        self.model("")
        return tuple(sorted(self._served, key=lambda served: served.card.id))

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        """See `Workers`. The reply comes from this process, and is not held against what is expected."""
        try:
            return await self._driver.result_of(model.job(job))
        except asyncio.CancelledError:
            self._driver.cancel([job.id])
            raise
        except GivenBack as error:  # there is no other worker
            raise WorkerUnavailable(error.message, retry_after=error.retry_after) from None


@asynccontextmanager
async def running_services(settings: WorkerSettings) -> AsyncIterator[str]:
    """Loads the model, and yields the address of the services, which only this user's processes can reach.

    There is no watchdog: callers wait for a step however long it takes, as they would wait for PyTorch. After a device
    has failed for good, every call fails with that error. Raises ModelRefused, DeviceLost, and RuntimeError where the
    path of the socket is too long.
    """
    reporting.hand_to_logging()
    worker = await ModelWorker.start(settings)
    try:
        if worker.model.placement.device.type == "cpu":
            keep_freed_memory()
        reading = await _aside(read_files, worker.model.tokenizer_files, worker.card)
        served = ServedModel(card=worker.card, texts=reading, queued_tokens=QUEUED_TOKENS)
        adapters = [replace(served, card=card, texts=reading.with_card(card), adapter=True) for card in worker.adapters]
        resident = Resident(worker.driver, served, *adapters)
        watching = asyncio.create_task(_watch(worker, resident))
        async with _frontend(resident) as address:
            worker.log_ready()
            yield address
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    finally:
        worker.serving.cancel()
        worker.driver.close()
        await asyncio.wait([worker.serving])
        await _aside(worker.shut_down)


async def _aside(work: Callable[..., T], *arguments: Any) -> T:
    """Runs what takes long in a thread of its own: the loop has the calls of other clients and engines too.

    Work goes on in its thread when this is cancelled, and nobody waits for it.
    """
    threads = ThreadPoolExecutor(1, "selvage-aside")
    try:
        running = asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    except RuntimeError:  # the interpreter ends, where no executor takes work any more
        return work(*arguments)
    try:
        return await running
    finally:
        threads.shutdown(wait=not running.cancelled())


@asynccontextmanager
async def _threads(count: int, name: str) -> AsyncIterator[ThreadPoolExecutor]:
    """Threads that have ended after the block."""
    threads = ThreadPoolExecutor(count, name)
    try:
        yield threads
    finally:
        await _aside(threads.shutdown)


@asynccontextmanager
async def _frontend(resident: Resident) -> AsyncIterator[str]:
    """Serves the services of a frontend until the block ends; yields their address."""
    thread_count = min(8, os.cpu_count() or 1)
    async with _threads(thread_count, "selvage-text") as texts, _threads(2, "selvage-message") as messages:
        with TemporaryDirectory(prefix="selvage-") as folder:  # for this user alone
            path = Path(folder, "frontend")
            if len(os.fsencode(path)) > MOST_PATH_BYTES:
                raise RuntimeError(f"{path} is too long for a socket: set TMPDIR to another folder")
            calls = Calls(timeout=math.inf, bounds=BOUNDS)
            pipeline = Pipeline(resident, Limits(), texts, messages, reserve=calls.admission.reserve)
            server = Server(PUBLIC_SERVICES, calls, threads=messages, connection_age=False)
            register(Frontend(pipeline, calls, thread_count=thread_count), server.grpc)
            address = f"unix:{quote(str(path))}"
            server.grpc.add_insecure_port(address)
            await server.grpc.start()
            try:
                yield address
            finally:
                await server.stop()


async def _watch(worker: ModelWorker, resident: Resident) -> None:
    """Has all calls refused with the reason for which the worker's loop has ended."""
    try:
        await worker.serving
    except DeviceLost as lost:
        resident.lost = f"the device is lost: {lost}"
    except Exception as error:
        log.error("bug", exc_info=error)
        resident.lost = "the engine failed; its log says why"
    worker.driver.close()
