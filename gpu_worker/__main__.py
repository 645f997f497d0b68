"""Composition root of the worker: settings -> objects -> serve until SIGTERM."""

import asyncio
import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

# libgomp, which reads it when torch is loaded, lets threads spin for milliseconds after a step: cores that the event
# loop and frontends beside could have had. Some tenths of a millisecond bridge the gaps inside a step.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import structlog
import torch
from transformers.utils import logging as transformers_logging

from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.device.placement import Placement
from gpu_worker.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.rehearsal import check, rehearsal
from gpu_worker.scheduler import Scheduler
from gpu_worker.server import Ready, WorkerServicer
from gpu_worker.settings import WorkerSettings
from selvage.worker.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from shared import logs
from shared.calls import Calls
from shared.errors import ModelRefused, SelvageError
from shared.services import WORKER_SERVICES
from shared.serving import LAST_WORDS, Server, until_told_to_stop

log = structlog.get_logger("worker")


def load_model(settings: WorkerSettings) -> Model:
    """Runs in the device thread. Raises ModelRefused in one line."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    placement = Placement.choose(settings.device, settings.dtype)
    return load(
        settings.model,
        placement,
        served_name=settings.served_name,
        max_tokens=settings.max_tokens,
        trust_remote_code=settings.trust_remote_code,
        late=settings.late_overrides(),
    )


async def warm_up(scheduler: Scheduler, model: Model) -> None:
    """Runs every path once, so that no request pays for first-time work."""
    for job in rehearsal(model):
        await scheduler.submit(job)


async def main(settings: WorkerSettings) -> None:
    threads = ThreadPoolExecutor(2, "parse")
    servicer = WorkerServicer(threads)
    server = Server(
        WORKER_SERVICES,
        Calls(timeout=None),
        threads=threads,
        reflect=settings.reflection,
        connection_age=False,
    )
    add_WorkerServiceServicer_to_server(servicer, server.grpc)
    await server.start(settings.listen)
    log.info("loading", model=settings.model)
    # Loading shares the thread with computing: OpenMP keeps a pool for every thread that ever used it, and more pools
    # than cores make each parallel region go to sleep.
    device = ThreadPoolExecutor(1, "device")
    try:
        model = await asyncio.get_running_loop().run_in_executor(device, load_model, settings)
    except ModelRefused as error:
        await server.stop()
        print(f"--model = {settings.model!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    host = ThreadPoolExecutor(1, "host")
    # On a processor what the device's thread computes has arrived; an accelerator is waited for beside it.
    arrivals = ThreadPoolExecutor(1, "arrivals") if model.placement.device.type != "cpu" else None
    scheduler = Scheduler(
        ModelEngine(model, device, arrivals),
        host,
        step_tokens=settings.step_tokens or model.placement.step_tokens,
        queued_tokens=settings.queued_tokens,
    )
    serving = asyncio.create_task(scheduler.run())
    try:
        await warm_up(scheduler, model)
    except SelvageError as error:
        await server.stop()
        print(f"--model = {settings.model!r}: it fails on its first texts: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    gc.collect()
    gc.freeze()  # what is there now stays; each full collection would look at all of it, and stop every request
    card = card_of(model)
    servicer.ready = Ready(
        card=card, tokenizer=model.tokenizer.content, scheduler=scheduler, queued_tokens=settings.queued_tokens
    )
    await server.set_ready(True)
    log.info("ready", model=card.id, fingerprint=card.fingerprint, attention=card.attention, linear=card.linear)
    if card.notice:
        log.warning("beware", notice=card.notice)
    await _serve_until_told(server, scheduler, serving, settings.drain_seconds)
    for executor in (host, device, *([arrivals] if arrivals else [])):
        executor.shutdown()


async def _serve_until_told(
    server: Server, scheduler: Scheduler, serving: asyncio.Task[None], drain_seconds: float
) -> None:
    told = asyncio.create_task(until_told_to_stop())
    await asyncio.wait([told, serving], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()  # a bug of ours: the scheduler never ends by itself
    await server.announce_drain()
    scheduler.refuse()
    await server.finish(drain_seconds)
    scheduler.close()
    await server.stop(LAST_WORDS)
    serving.cancel()
    await asyncio.wait([serving])
    log.info("stopped")


if __name__ == "__main__":
    chosen = WorkerSettings.read(sys.argv[1:])
    logs.configure(chosen.log_format, chosen.log_level)
    transformers_logging.disable_progress_bar()
    keep_freed_memory()
    if chosen.check:
        raise SystemExit(check(chosen.model, partial(load_model, chosen)))
    asyncio.run(main(chosen))
