"""Composition root of the worker: settings -> objects -> serve until SIGTERM."""

import asyncio
import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import structlog
from transformers.utils import logging as transformers_logging

from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.link.server import Ready, WorkerServicer
from gpu_worker.link.unread import Unread
from gpu_worker.loop.async_loop import AsyncLoop
from gpu_worker.loop.loop import Observe
from gpu_worker.loop.watchdog import EXIT_STATUS, DeviceLost
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.warm_up import check
from gpu_worker.worker import ModelWorker, load_model
from selvage.worker.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from shared.errors import ModelRefused
from shared.security import guards
from shared.server.calls import Calls
from shared.server.services import WORKER_SERVICES
from shared.server.serving import LAST_WORDS, Server, until_told_to_stop
from shared.telemetry import logs, observers
from shared.together import first_of

if TYPE_CHECKING:
    from shared.telemetry.metrics import Page  # its library is imported only where metrics are asked for

log = structlog.get_logger("worker")


async def main(settings: WorkerSettings) -> None:
    page, spans = observers.page(settings), observers.spans(settings, "selvage-worker")
    metrics = page.worker() if page else None
    threads = ThreadPoolExecutor(2, "parse")
    servicer = WorkerServicer(
        threads,
        Unread(settings.max_unsent_bytes),
        log_jobs=settings.log_calls,
        tell_job=[each.job for each in (metrics, spans) if each],
    )
    server = _server(settings, threads, page)
    add_WorkerServiceServicer_to_server(servicer, server.grpc)
    await server.start(settings.listen)

    def tell_step(seconds: float, tokens: int, sequences: int) -> None:
        if metrics and servicer.ready:  # before, steps are of the rehearsal: slow, and nobody's
            metrics.step(seconds, tokens, sequences)

    worker = await _started(server, settings, tell_step)
    gc.collect()
    gc.freeze()  # what is there now stays; each full collection would look at all of it, and stop every request
    servicer.ready = _ready(worker, settings)
    if metrics:
        placement, encoder = worker.model.placement, worker.model.encoder
        metrics.read(lambda: replace(servicer.figures, memory=placement.memory, padding=encoder.padded))
    await server.set_ready(True)
    worker.say_ready()
    try:
        await _serve_until_told(server, servicer, worker, settings.drain_seconds)
    except DeviceLost as lost:
        worker.scheduler.close()
        await _give_up(server, str(lost))
    worker.shut_down()
    for observer in (page, spans):
        if observer:
            observer.stop()


def _server(settings: WorkerSettings, threads: ThreadPoolExecutor, page: "Page | None") -> Server:
    """With what guards it; who listens where nothing does is told."""
    tls, secret = guards.tls_of(settings), guards.link_secret_of(settings)
    guards.warn_if_open(
        settings.listen, {"--tls-certificate": tls, "--link-secret-file or --tls-ca": secret or settings.tls_ca}
    )
    return Server(
        WORKER_SERVICES,
        Calls(timeout=None, identify=secret.identify if secret else None, log_calls=settings.log_calls),
        threads=threads,
        reflect=settings.reflection,
        connection_age=False,
        rpcs=page.rpcs if page else None,
        tls=tls,
    )


async def _started(server: Server, settings: WorkerSettings, observe: Observe) -> ModelWorker:
    """Ends the process with a line: with status 2 where the model is refused, and where the device is lost."""
    try:
        return await ModelWorker.start(settings, observe)
    except ModelRefused as error:
        await server.stop()
        print(f"--model = {settings.model!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except DeviceLost as lost:
        await _give_up(server, str(lost))


def _ready(worker: ModelWorker, settings: WorkerSettings) -> Ready:
    return Ready(
        card=worker.card,
        tokenizer=worker.model.tokenizer.content,
        scheduler=worker.scheduler,
        queued_tokens=settings.queued_tokens,
        queue_seconds=settings.queue_seconds,
    )


async def _serve_until_told(
    server: Server, servicer: WorkerServicer, worker: ModelWorker, drain_seconds: float
) -> None:
    scheduler, serving = worker.scheduler, worker.serving
    watching = asyncio.create_task(scheduler.watch(lambda stalls: server.set_ready(not stalls)))
    await first_of(asyncio.create_task(until_told_to_stop()), serving, watching)
    await first_of(asyncio.create_task(_drain(server, servicer, scheduler, drain_seconds)), serving, watching)
    if scheduler.stalled:  # its thread could not be joined
        raise DeviceLost(scheduler.stalled)
    for endless in (serving, watching):
        endless.cancel()
    await asyncio.wait([serving, watching])
    log.info("stopped")


async def _drain(server: Server, servicer: WorkerServicer, scheduler: AsyncLoop, seconds: float) -> None:
    """Takes nothing new, and answers what is held."""
    await server.announce_drain()
    scheduler.refuse()
    await asyncio.gather(server.finish(seconds), servicer.drained(seconds))
    scheduler.close()
    await server.stop(LAST_WORDS)


async def _give_up(server: Server, why: str) -> NoReturn:
    """Sends what is answered, and ends the process at once: a thread that hangs in the device cannot be joined."""
    log.error("device lost", why=why, exit_status=EXIT_STATUS)
    await server.set_ready(False)
    await server.stop(LAST_WORDS)
    sys.stderr.flush()
    os._exit(EXIT_STATUS)


if __name__ == "__main__":
    chosen = WorkerSettings.read(sys.argv[1:])
    logs.configure(chosen.log_format, chosen.log_level)
    transformers_logging.disable_progress_bar()
    keep_freed_memory()
    if chosen.check:
        raise SystemExit(check(chosen.model, partial(load_model, chosen), chosen.step_tokens))
    asyncio.run(main(chosen))
