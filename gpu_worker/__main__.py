"""Composition root of the worker: settings -> objects -> serve until SIGTERM."""

import asyncio
import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf
from random import getrandbits
from typing import TYPE_CHECKING, NoReturn

# libgomp, which reads it when torch is loaded, lets threads spin for milliseconds after a step: cores that the event
# loop and frontends beside could have had. Some tenths of a millisecond bridge the gaps inside a step.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# oneDNN keeps a product compiled for each number of tokens that a step had, half a mebibyte each, a thousand of them.
# PyTorch keeps as many again. With these many a step in which no number comes back is a few milliseconds slower.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
# Steps differ in size, and a block of CUDA's memory that one of them has left rarely suits another: segments that grow
# leave no gaps between. PyTorch reads the older names as well, and one that is set is its user's.
if not any(f"PYTORCH_{each}ALLOC_CONF" in os.environ for each in ("", "CUDA_", "HIP_")):
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import structlog
import torch
from transformers.utils import logging as transformers_logging

from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.device.placement import Placement
from gpu_worker.engine import ModelEngine
from gpu_worker.largest_step import settled
from gpu_worker.link.unread import Unread
from gpu_worker.loop import Observe
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.trunk import Forms
from gpu_worker.rehearsal import check, rehearsal
from gpu_worker.scheduler import Scheduler
from gpu_worker.server import Ready, WorkerServicer
from gpu_worker.settings import WorkerSettings
from gpu_worker.watchdog import EXIT_STATUS, DeviceLost
from selvage.worker.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from shared import guards, logs, observers
from shared.calls import Calls
from shared.card import ModelCard
from shared.errors import ModelRefused, SelvageError
from shared.jobs import Priority
from shared.services import WORKER_SERVICES
from shared.serving import LAST_WORDS, Server, until_told_to_stop

if TYPE_CHECKING:
    from shared.metrics import Page  # its library is imported only where metrics are asked for

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
        revision=settings.revision,
        forms=_forms(settings, placement),
        linear=settings.linear,
    )


def _forms(settings: WorkerSettings, placement: Placement) -> Forms | None:
    """None on a processor, which runs a trunk as it is written."""
    if placement.device.type == "cpu":
        return None
    step_tokens = settings.step_tokens or placement.step_tokens
    return Forms(compile=settings.compile, graphs=settings.graphs, step_tokens=step_tokens)


async def warm_up(scheduler: Scheduler, model: Model) -> None:
    """Runs every path once, so that no request pays for first-time work."""
    for job in rehearsal(model):
        await scheduler.answer(job)


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
    # Loading shares the thread with computing: OpenMP keeps a pool for every thread that ever used it, and more pools
    # than cores make each parallel region go to sleep.
    device, host = ThreadPoolExecutor(1, "device"), ThreadPoolExecutor(1, "host")
    model = await _loaded(server, device, settings)
    arrivals = _arrivals(model.placement)
    engine = ModelEngine(model, device, arrivals)
    step_tokens = await _step_tokens(server, engine, host, settings)

    def tell_step(seconds: float, tokens: int, sequences: int) -> None:
        if metrics and servicer.ready:  # before, steps are of the rehearsal: slow, and nobody's
            metrics.step(seconds, tokens, sequences)

    scheduler = _scheduler(engine, host, step_tokens, settings, tell_step)
    serving = asyncio.create_task(scheduler.run())
    await _warmed_up(server, scheduler, serving, model, settings)
    servicer.ready = _ready(model, scheduler, settings)
    if metrics:
        metrics.read(lambda: replace(servicer.figures, memory=model.placement.memory, padding=model.trunk.padded))
    await server.set_ready(True)
    _say_ready(servicer.ready.card, model)
    try:
        await _serve_until_told(server, servicer, scheduler, serving, settings.drain_seconds)
    except DeviceLost as lost:
        await _give_up(server, scheduler, str(lost))
    for executor in (host, device, *([arrivals] if arrivals else [])):
        executor.shutdown()
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


async def _loaded(server: Server, device: ThreadPoolExecutor, settings: WorkerSettings) -> Model:
    """Ends the process with status 2 and a line where the model is refused."""
    log.info("loading", model=settings.model, revision=settings.revision or None)
    try:
        return await asyncio.get_running_loop().run_in_executor(device, load_model, settings)
    except ModelRefused as error:
        await _refuse(server, settings, str(error))


def _arrivals(placement: Placement) -> ThreadPoolExecutor | None:
    """On a processor what the device's thread computes has arrived; an accelerator is waited for beside it."""
    if placement.device.type == "cpu":
        return None
    return ThreadPoolExecutor(1, "arrivals", initializer=placement.enter)


async def _step_tokens(server: Server, engine: ModelEngine, host: ThreadPoolExecutor, settings: WorkerSettings) -> int:
    """As the user says, else as suits the device, and on an accelerator as fits its memory.

    Ends the process with status 2 and a line where that does not fit.
    """
    placement = engine.model.placement
    measuring = partial(settled, engine, placement.measured, settings.step_tokens, _failed)
    try:
        trials = await asyncio.get_running_loop().run_in_executor(host, measuring)
    except (ModelRefused, SelvageError) as error:
        await _refuse(server, settings, str(error))
    for trial in trials:
        tell = log.info if trial.fits else log.warning
        tell("largest step", fits=trial.fits, measured=str(trial))
    return trials[-1].tokens if trials else settings.step_tokens or placement.step_tokens


def _failed(event: str, error: Exception, parts: int) -> None:
    log.error(event, parts=parts, exc_info=error)


def _scheduler(
    engine: ModelEngine, host: ThreadPoolExecutor, step_tokens: int, settings: WorkerSettings, observe: Observe
) -> Scheduler:
    """What the files and the machine suggest, unless a setting says otherwise."""
    model = engine.model
    return Scheduler(
        engine,
        host,
        step_tokens=step_tokens,
        queued_tokens=settings.queued_tokens,
        queue_seconds=settings.queue_seconds or inf,
        step_seconds=settings.step_seconds(model.placement.step_seconds),
        probe=replace(next(rehearsal(model)), id=getrandbits(63), priority=Priority.INTERACTIVE),
        observe=observe,
    )


async def _warmed_up(
    server: Server, scheduler: Scheduler, serving: asyncio.Task[None], model: Model, settings: WorkerSettings
) -> None:
    """Ends the process with status 2 and a line where the model fails on its first texts."""
    try:
        await _first_of(asyncio.create_task(warm_up(scheduler, model)), serving)
    except DeviceLost as lost:
        await _give_up(server, scheduler, str(lost))
    except SelvageError as error:
        await _refuse(server, settings, f"it fails on its first texts: {error}")
    gc.collect()
    gc.freeze()  # what is there now stays; each full collection would look at all of it, and stop every request


def _ready(model: Model, scheduler: Scheduler, settings: WorkerSettings) -> Ready:
    return Ready(
        card=card_of(model),
        tokenizer=model.tokenizer.content,
        scheduler=scheduler,
        queued_tokens=settings.queued_tokens,
        queue_seconds=settings.queue_seconds,
    )


def _say_ready(card: ModelCard, model: Model) -> None:
    for each in model.told:
        log.info("measured at load", told=each)
    log.info("ready", model=card.id, fingerprint=card.fingerprint, attention=card.attention, linear=card.linear)
    if card.notice:
        log.warning("beware", notice=card.notice)


async def _refuse(server: Server, settings: WorkerSettings, why: str) -> NoReturn:
    """Ends the process with status 2 and a line."""
    await server.stop()
    print(f"--model = {settings.model!r}: {why}", file=sys.stderr)
    raise SystemExit(2) from None


async def _serve_until_told(
    server: Server, servicer: WorkerServicer, scheduler: Scheduler, serving: asyncio.Task[None], drain_seconds: float
) -> None:
    watching = asyncio.create_task(scheduler.watch(lambda stalls: server.set_ready(not stalls)))
    await _first_of(asyncio.create_task(until_told_to_stop()), serving, watching)
    await _first_of(asyncio.create_task(_drain(server, servicer, scheduler, drain_seconds)), serving, watching)
    if scheduler.stalled:  # its thread could not be joined
        raise DeviceLost(scheduler.stalled)
    for endless in (serving, watching):
        endless.cancel()
    await asyncio.wait([serving, watching])
    log.info("stopped")


async def _first_of(task: asyncio.Task[None], *endless: asyncio.Task[None]) -> None:
    """Until the task has ended. Raises what it raised, or what ended one of those that never end by themselves."""
    await asyncio.wait([task, *endless], return_when=asyncio.FIRST_COMPLETED)
    for each in (*endless, task):
        if each.done():
            each.result()


async def _drain(server: Server, servicer: WorkerServicer, scheduler: Scheduler, seconds: float) -> None:
    """Takes nothing new, and answers what is held."""
    await server.announce_drain()
    scheduler.refuse()
    await asyncio.gather(server.finish(seconds), servicer.drained(seconds))
    scheduler.close()
    await server.stop(LAST_WORDS)


async def _give_up(server: Server, scheduler: Scheduler, why: str) -> None:
    """Answers what is held, and ends the process at once: a thread that hangs in the device cannot be joined."""
    log.error("device lost", why=why, exit_status=EXIT_STATUS)
    await server.set_ready(False)
    scheduler.close()
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
