"""Composition root of the frontend: settings -> objects -> serve until SIGTERM."""

import asyncio
import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import structlog

from frontend_service.server import SERVICES, register
from frontend_service.service import Service
from frontend_service.settings import FrontendSettings
from frontend_service.worker_client import WorkerClient
from shared import logs
from shared.serving import Server, until_told_to_stop

log = structlog.get_logger("frontend")


async def main(settings: FrontendSettings) -> None:
    threads, messages = ThreadPoolExecutor(settings.thread_count, "text"), ThreadPoolExecutor(2, "message")
    server = Server(
        SERVICES,
        threads=messages,
        timeout=settings.default_timeout,
        reflect=settings.reflection,
        connection_age=True,
    )
    worker = WorkerClient(settings.worker, messages, server.set_ready)
    register(Service(worker, settings.limits, threads, messages), server.grpc, settings.default_timeout)
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
    supervising.cancel()
    await worker.close()
    log.info("stopped")


if __name__ == "__main__":
    chosen = FrontendSettings.read(sys.argv[1:])
    logs.configure(chosen.log_format, chosen.log_level)
    asyncio.run(main(chosen))
