"""Composition root of the frontend: settings -> objects -> serve until SIGTERM."""

import asyncio
import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import structlog

from frontend_service.doors.selvage_v1.server import register
from frontend_service.frontend import Frontend
from frontend_service.service import Service
from frontend_service.settings import FrontendSettings
from frontend_service.worker.link import WorkerLink
from shared import logs
from shared.calls import Calls
from shared.services import PUBLIC_SERVICES
from shared.serving import Server, until_told_to_stop

log = structlog.get_logger("frontend")


async def main(settings: FrontendSettings) -> None:
    threads, messages = ThreadPoolExecutor(settings.thread_count, "text"), ThreadPoolExecutor(2, "message")
    calls = Calls(timeout=settings.default_timeout)
    server = Server(PUBLIC_SERVICES, calls, threads=messages, reflect=settings.reflection, connection_age=True)
    worker = WorkerLink(settings.worker, messages, server.set_ready)
    register(Frontend(Service(worker, settings.limits, threads, messages), calls), server.grpc)
    gc.collect()
    gc.freeze()  # what is there now stays; each full collection would look at all of it, and stop every request
    await server.start(settings.listen)
    supervising = asyncio.create_task(worker.supervise())
    told = asyncio.create_task(until_told_to_stop())
    await asyncio.wait([told, supervising], return_when=asyncio.FIRST_COMPLETED)
    if supervising.done():
        supervising.result()  # a bug of ours: supervision never ends by itself
    await server.announce_drain()
    await asyncio.sleep(settings.drain_delay)
    await server.stop(settings.drain_seconds)
    calls.refuse()  # the link to the worker ends next: what a door still lets in is refused by name, not lost in it
    supervising.cancel()
    await worker.close()
    log.info("stopped")


if __name__ == "__main__":
    chosen = FrontendSettings.read(sys.argv[1:])
    logs.configure(chosen.log_format, chosen.log_level)
    asyncio.run(main(chosen))
