"""The worker and the frontend's services on one event loop, in a thread of its own. Knows no client."""

import asyncio
import math
import os
import sys
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from frontend_service.doors.spoken import Doors
from frontend_service.frontend import Frontend
from frontend_service.limits import Limits
from frontend_service.service import Service
from frontend_service.tokenization import Tokenization
from frontend_service.worker.protocol import ServedModel
from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.settings import WorkerSettings
from gpu_worker.watchdog import DeviceLost
from gpu_worker.worker import Worker
from selvage.engine.resident import Resident
from shared import logs
from shared.admission import Bounds
from shared.calls import Calls
from shared.together import first_of

BOUNDS = Bounds(memory=sys.maxsize, read_seconds=math.inf)
"""Memory that the rest of this process takes says nothing of requests, and who reads slowly keeps nobody waiting."""

T = TypeVar("T")


class Handlers(dict[str, Any]):
    """`grpc.RpcMethodHandler`s of all services that are added to it, as to a server, by the path of their method."""

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same handlers in another form."""

    def add_registered_method_handlers(self, service: str, handlers: "Mapping[str, Any]") -> None:
        self.update({f"/{service}/{name}": handler for name, handler in handlers.items()})


class Pair:
    """`handlers`: of all methods; `calls`: what holds for each call; `messages`: threads that make large messages."""

    handlers: Handlers
    calls: Calls

    def __init__(self, settings: WorkerSettings) -> None:
        """Returns when the model is ready. Raises ModelRefused, DeviceLost."""
        logs.hand_to_logging()
        self.messages = ThreadPoolExecutor(2, "selvage-message")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._closing, self._closed = threading.Lock(), False
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._live, args=(settings, ready), daemon=True, name="selvage-engine")
        self._thread.start()
        ready.result()

    def run(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begins it on the event loop. Raises RuntimeError once this is closed."""
        with self._closing:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise RuntimeError("closed")

    def close(self) -> None:
        """Cancels what is under way, and waits for all threads. From any of them, and as often as one likes."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _live(self, settings: WorkerSettings, ready: "Future[None]") -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, self.messages:
            runner.run(self._serve(settings, ready))

    async def _serve(self, settings: WorkerSettings, ready: "Future[None]") -> None:
        """Until it is told to stop; then the loop cancels what is under way."""
        try:
            worker = await Worker.start(settings)
            tokenization = Tokenization(worker.model.tokenizer.content, worker.card)
        except BaseException as error:
            ready.set_exception(error)
            return
        worker.say_ready()
        if worker.model.placement.device.type == "cpu":
            keep_freed_memory()
        served = ServedModel(card=worker.card, tokenization=tokenization, queued_tokens=settings.queued_tokens)
        resident = Resident(worker.scheduler, served)
        threads = min(8, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, "selvage-text") as texts:
            self.calls = Calls(timeout=math.inf, bounds=BOUNDS)
            service = Service(resident, Limits(), texts, self.messages, reserve=self.calls.admission.reserve)
            self.handlers = Handlers()
            Doors(["grpc"]).register(Frontend(service, self.calls, threads=threads), self.handlers)  # type: ignore[arg-type]
            ready.set_result(None)
            await self._until_told(worker, resident)
            service.close()
        worker.shut_down()

    async def _until_told(self, worker: Worker, resident: Resident) -> None:
        """A device that is lost stays so: from then on every call is told."""
        stopping = asyncio.create_task(self._stopped())
        watching = asyncio.create_task(worker.scheduler.watch(_heeded))
        try:
            await first_of(stopping, worker.serving, watching)
        except DeviceLost as lost:
            resident.lost = f"the device is lost: {lost}"
        for endless in (worker.serving, watching):
            endless.cancel()
        worker.scheduler.close()
        await stopping

    async def _stopped(self) -> None:
        await self._stop.wait()


async def _heeded(_: bool) -> None:
    """The scheduler refuses by itself while a step stalls."""
