"""Starts the worker: creates all objects from the settings, and serves until SIGTERM."""

from shared.command import begin

if __name__ == "__main__":
    begin("worker")

import asyncio
import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

import structlog
from transformers.utils import logging as transformers_logging

from gpu_worker.check import check
from gpu_worker.device.memory import keep_freed_memory
from gpu_worker.link.request_check import check_message
from gpu_worker.link.server import Ready, WorkerServicer
from gpu_worker.schedule.driver import EXIT_STATUS, DeviceLost, Driver
from gpu_worker.schedule.load import QUEUED_TOKENS
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import ModelWorker
from selvage.worker.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from shared import reporting, security
from shared.errors import ModelRefused
from shared.server.calls import Calls
from shared.server.grpc_server import LAST_WORDS, Server, until_told_to_stop
from shared.server.options import WORKER_SERVICES
from shared.tasks import first_of

if TYPE_CHECKING:
    from gpu_worker.metrics import WorkerMetrics
    from shared.metrics import Page  # its library is imported only where metrics are asked for

log = structlog.get_logger("worker")


async def main(settings: WorkerSettings) -> None:
    """Loads the model and serves it."""
    page, spans = reporting.page(settings), reporting.spans("selvage-worker")
    metrics = _metrics(page) if page else None
    threads = ThreadPoolExecutor(2, "parse")
    servicer = WorkerServicer(
        threads,
        on_job=[observer.job for observer in (metrics, spans) if observer],
    )
    server = _create_server(settings, threads, page)
    add_WorkerServiceServicer_to_server(servicer, server.grpc)
    await server.start(settings.listen)

    worker = await _start_worker(server, settings)
    gc.collect()
    gc.freeze()  # else every full collection would visit all objects of the model, and delay every request
    servicer.ready = _create_ready(worker, settings)
    if metrics:
        metrics.read(lambda: worker.with_figures(servicer.figures))
        worker.driver.on_step = lambda step: metrics.step(step.seconds, step.tokens, step.units)
    await server.set_ready(True)
    worker.log_ready()
    try:
        await _serve_until_stopped(server, servicer, worker, settings.drain_seconds)
    except DeviceLost as lost:
        worker.driver.close()
        await _exit_at_once(server, str(lost))
    worker.shut_down()
    for observer in (page, spans):
        if observer:
            observer.stop()


def _metrics(page: "Page") -> "WorkerMetrics":
    from gpu_worker.metrics import WorkerMetrics

    return WorkerMetrics(page.registry)


def _create_server(settings: WorkerSettings, threads: ThreadPoolExecutor, page: "Page | None") -> Server:
    """Creates the server with its TLS and link secret. Warns where it can be reached from elsewhere without any."""
    tls, secret = security.tls_of(settings), security.link_secret_of(settings)
    security.warn_if_open(settings.listen, {"--tls-certificate": tls, "--link-secret-file": secret})
    return Server(
        WORKER_SERVICES,
        Calls(timeout=None, identify=secret.identify if secret else None),
        threads=threads,
        connection_age=False,
        rpcs=page.rpcs if page else None,
        tls=tls,
        check_large=check_message,
    )


async def _start_worker(server: Server, settings: WorkerSettings) -> ModelWorker:
    """Starts the worker. A refused model ends the process with a line and status 2, a lost device with its own."""
    log.info("loading", model=settings.model, revision=settings.revision or None)
    try:
        return await ModelWorker.start(settings)
    except ModelRefused as error:
        await server.stop()
        print(f"--model = {settings.model!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except DeviceLost as lost:
        await _exit_at_once(server, str(lost))


def _create_ready(worker: ModelWorker, settings: WorkerSettings) -> Ready:
    return Ready(
        card=worker.card,
        adapters=worker.adapters,
        files=worker.model.tokenizer_files,
        driver=worker.driver,
        queued_tokens=QUEUED_TOKENS,
        queue_seconds=settings.queue_limit,
    )


async def _serve_until_stopped(
    server: Server, servicer: WorkerServicer, worker: ModelWorker, drain_seconds: float
) -> None:
    """Serves until SIGTERM, and then drains. Raises DeviceLost."""
    driver, serving = worker.driver, worker.serving
    watching = asyncio.create_task(driver.watch(lambda stalls: server.set_ready(not stalls)))
    await first_of(asyncio.create_task(until_told_to_stop()), serving, watching)
    await first_of(asyncio.create_task(_drain(server, servicer, driver, drain_seconds)), serving, watching)
    if driver.stalled:  # the device's thread could not be joined
        raise DeviceLost(driver.stalled)
    for endless in (serving, watching):
        endless.cancel()
    await asyncio.wait([serving, watching])
    log.info("stopped")


async def _drain(server: Server, servicer: WorkerServicer, driver: Driver, seconds: float) -> None:
    """Accepts no further jobs, and answers those that were accepted."""
    await server.announce_drain()
    driver.refuse_jobs()
    await asyncio.gather(server.finish(seconds), servicer.wait_until_idle(seconds))
    driver.close()
    await server.stop(LAST_WORDS)


async def _exit_at_once(server: Server, why: str) -> NoReturn:
    """Sends the answers that there are, and ends the process: a thread that hangs in the device cannot be joined."""
    log.error("device lost", why=why, exit_status=EXIT_STATUS)
    await server.set_ready(False)
    await server.stop(LAST_WORDS)
    sys.stderr.flush()
    os._exit(EXIT_STATUS)


if __name__ == "__main__":
    worker_settings = WorkerSettings.read(sys.argv[1:])
    reporting.configure(worker_settings.log_level, console=sys.stderr.isatty())
    transformers_logging.disable_progress_bar()
    keep_freed_memory()
    if worker_settings.check:
        raise SystemExit(check(worker_settings))
    asyncio.run(main(worker_settings))
