"""The worker and the frontend's services on one event loop, in a thread of its own. Knows no client."""

import asyncio
import math
import os
import sys
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from embedded.resident import Resident
from frontend_service.api.enabled import SELVAGE, EnabledApis
from frontend_service.application.frontend import Frontend
from frontend_service.domain.limits import Limits
from frontend_service.services.pipeline import Pipeline
from frontend_service.tokenizing.tokenizer import read_files
from frontend_service.workers.interface import ServedModel
from gpu_worker.device.memory import keep_freed_memory
from gpu_worker.schedule.driver import DeviceLost
from gpu_worker.schedule.load import QUEUED_TOKENS
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import ModelWorker
from shared.server.admission import Bounds
from shared.server.calls import Calls
from shared.tasks import first_of
from shared.telemetry import reporting

ANY = sys.maxsize
BOUNDS = Bounds(requests=ANY, size=ANY, slow_reads=ANY, streams=ANY, read_seconds=math.inf)
"""No limits: the only caller limits itself by its threads and by the parts that it has in flight."""
CLOSED = "the engine was closed"

T = TypeVar("T")
log = structlog.get_logger("engine")


class Over(Exception):
    """The pair takes no more calls; the message says why."""


class Handlers(dict[str, Any]):
    """`grpc.RpcMethodHandler`s of all services that are added to it, as to a server, by the path of their method."""

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignored: the same handlers come by `add_registered_method_handlers`."""

    def add_registered_method_handlers(self, service: str, handlers: "Mapping[str, Any]") -> None:
        self.update({f"/{service}/{name}": handler for name, handler in handlers.items()})


class Pair:
    """Both services, running in a thread of this process.

    `handlers`: the rpc handlers of all methods, by path. `calls`: what the services do around each call. `messages`:
    threads that make large messages. There is no watchdog: callers wait for a step however long it takes, as they would
    wait for PyTorch. After a device has failed for good, every call fails with that error.
    """

    calls: Calls

    def __init__(self, settings: WorkerSettings) -> None:
        """Returns when the model is ready. Raises ModelRefused, DeviceLost."""
        reporting.hand_to_logging()
        self.handlers = Handlers()
        self.messages = ThreadPoolExecutor(2, "selvage-message")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._process = os.getpid()
        self._ending, self._over = threading.Lock(), ""
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(settings, ready), daemon=True, name="selvage-engine")
        self._thread.start()
        try:
            ready.result()
        except BaseException:  # Ctrl-C too: what is loaded then goes again
            self.stop()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begins a coroutine on the event loop. Raises Over, and RuntimeError in a forked process."""
        if os.getpid() != self._process:
            work.close()
            raise RuntimeError("an engine does not survive a fork: make one in each process")
        with self._ending:
            over = self._over
            if not over:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise Over(over)

    def stop(self) -> None:
        """Cancels calls in progress without waiting. May be called from any thread, and repeatedly."""
        with self._ending:
            over, self._over = self._over, self._over or CLOSED
            if not over and os.getpid() == self._process:
                self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        """Stops the pair and waits until its thread has ended."""
        self.stop()
        if os.getpid() == self._process and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, settings: WorkerSettings, ready: "Future[None]") -> None:
        with self.messages, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._live(settings, ready))
            except BaseException as error:
                if ready.done():
                    log.error("bug", exc_info=error)
                else:  # whoever waits for the model is told, whatever went wrong
                    ready.set_exception(error)

    async def _live(self, settings: WorkerSettings, ready: "Future[None]") -> None:
        """Runs the worker and its services from start to end."""
        try:
            worker = await ModelWorker.start(settings)
            try:
                await self._serve(worker, ready)
            finally:
                await self._end()
                worker.serving.cancel()
                worker.driver.close()
                worker.shut_down()
        finally:
            await self._end()

    async def _serve(self, worker: ModelWorker, ready: "Future[None]") -> None:
        """Serves calls until the pair is stopped."""
        reading = read_files(worker.model.tokenizer_files, worker.card)
        served = ServedModel(card=worker.card, texts=reading, queued_tokens=QUEUED_TOKENS)
        adapters = [replace(served, card=card, texts=reading.with_card(card), adapter=True) for card in worker.adapters]
        resident, threads = Resident(worker.driver, served, *adapters), min(8, os.cpu_count() or 1)
        if worker.model.placement.device.type == "cpu":
            keep_freed_memory()
        with ThreadPoolExecutor(threads, "selvage-text") as texts:
            self.calls = Calls(timeout=math.inf, bounds=BOUNDS)
            service = Pipeline(resident, Limits(), texts, self.messages, reserve=self.calls.admission.reserve)
            frontend = Frontend(service, self.calls, thread_count=threads)
            EnabledApis([SELVAGE]).register(frontend, self.handlers)  # type: ignore[arg-type]
            worker.log_ready()
            ready.set_result(None)
            await self._until_stopped(worker, resident)

    async def _until_stopped(self, worker: ModelWorker, resident: Resident) -> None:
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await first_of(stopping, worker.serving)
        except DeviceLost as lost:
            resident.lost = f"the device is lost: {lost}"
            worker.driver.close()
            await stopping

    async def _end(self) -> None:
        """Refuses further calls. Accepted ones become tasks, which end with the loop."""
        with self._ending:
            self._over = self._over or "the engine failed; its log says why"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.handlers.clear()  # nothing of the model stays with whoever keeps the engine
