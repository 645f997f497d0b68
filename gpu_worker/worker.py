"""A worker without its port: a loaded model that was measured and warmed up, and the driver that runs it.

`__main__` serves it to frontends; `selvage.Engine` has one in its own process.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from random import getrandbits

import structlog
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.tune.graphs import GraphSettings
from gpu_worker.schedule.driver import DeviceLost, Driver
from gpu_worker.schedule.interface import OutOfMemory, WorkerFigures
from gpu_worker.schedule.load import QUEUED_TOKENS
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.piece_limits import (
    adapters_by_fingerprint,
    cache_bytes,
    card_with_limits,
    piece_limits,
    summary,
)
from gpu_worker.startup.trials import StepTimes, Trial, choose_step, warm_up_jobs
from shared.card import ModelCard
from shared.errors import ModelRefused, SelvageError
from shared.jobs import Job, Priority
from shared.tasks import first_of

log = structlog.get_logger("worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWorker:
    """A loaded model and the driver that computes its jobs. `adapters`: the cards of the models over it.

    `engine`: launches the steps. `serving`: the task that runs the driver until it is cancelled; it ends by itself only
    with DeviceLost. `threads`: all that the worker started, one thread each. `loading_bytes`: most bytes that an
    accelerator took until the model was loaded. `trials`, `times`: what the size of a step was chosen by.
    """

    model: Model
    card: ModelCard
    adapters: tuple[ModelCard, ...]
    engine: ModelEngine
    driver: Driver
    serving: asyncio.Task[None]
    threads: tuple[ThreadPoolExecutor, ...]
    loading_bytes: int
    trials: Sequence[Trial]
    times: StepTimes

    @classmethod
    async def start(cls, settings: WorkerSettings) -> "ModelWorker":
        """Loads the model and runs every path of it once, so that no request pays for first-time work.

        Raises ModelRefused with one line, and DeviceLost.
        """
        threads = [ThreadPoolExecutor(1, "host"), ThreadPoolExecutor(1, "device")]
        try:
            return await cls._start(settings, threads)
        except BaseException:
            for executor in threads:
                executor.shutdown(wait=False)  # its thread may hang in the device
            raise

    @classmethod
    async def _start(cls, settings: WorkerSettings, threads: list[ThreadPoolExecutor]) -> "ModelWorker":
        host, device = threads
        # Loading shares the thread with computing: OpenMP keeps a pool for every thread that ever used it, and more
        # pools than cores make each parallel region go to sleep.
        model = await asyncio.get_running_loop().run_in_executor(device, load_model, settings)
        arrivals = create_arrivals_thread(model.placement)
        threads += [arrivals] if arrivals else []
        pooling = ThreadPoolExecutor(1, "pooling", initializer=model.placement.enter)
        threads.append(pooling)
        engine = ModelEngine(model, device, arrivals, pooling=pooling)
        kept_bytes = cache_bytes(model, settings.cache_megabytes)
        loading_bytes = model.placement.device_memory.peak if model.placement.device_memory else 0
        trials, times = await step_of(model, device, settings, kept_bytes)
        step_tokens = times.tokens
        limits = piece_limits(model, step_tokens, settings.chunk_tokens, kept_bytes)
        adapters = adapters_by_fingerprint(model, limits)
        engine.cut_texts(limits, adapters)
        card = card_with_limits(model, limits)
        jobs = list(warm_up_jobs(model, card.max_tokens))
        jobs += [replace(jobs[0], id=len(jobs) + number, model=name) for number, name in enumerate(adapters, 2)]
        driver = Driver(
            _create_scheduler(engine, step_tokens, settings),
            host,
            device_check=replace(jobs[0], id=getrandbits(63), priority=Priority.INTERACTIVE),
        )
        serving = asyncio.create_task(driver.run())
        try:
            await _warm_up(driver, serving, jobs)
        except BaseException:
            serving.cancel()
            raise
        cards = tuple(card_with_limits(adapter, limits) for adapter in model.adapters)
        return cls(
            model=model,
            card=card,
            adapters=cards,
            engine=engine,
            driver=driver,
            serving=serving,
            threads=tuple(threads),
            loading_bytes=loading_bytes,
            trials=trials,
            times=times,
        )

    def log_ready(self) -> None:
        """Logs that the worker is ready, and what was measured when the model was loaded."""
        for trial in self.trials:
            log_trial = log.info if trial.fits else log.warning
            log_trial("largest step", fits=trial.fits, measured=str(trial))
        if self.times.seconds:
            bounded = {"seconds_at_most": self.times.bound} if self.times.bound < inf else {}  # JSON has no infinity
            log.info("largest step", tokens=self.times.tokens, **bounded, measured=str(self.times))
        for measurement in self.model.findings:
            log.info("measured at load", told=measurement)
        card = self.card
        if card.formats:
            log.info("number formats", told=card.formats)
        log.info("long texts", told=summary(self.model, card))
        log.info("texts that begin alike", told=self.model.sharing)
        log.info("bits of a text", told=self.model.bits)
        log.info("ready", model=card.id, fingerprint=card.fingerprint, attention=card.attention, linear=card.linear)
        if card.notice:
            log.warning("beware", notice=card.notice)
        for adapter in self.adapters:
            kibibytes = adapter.weight_bytes // 1024
            log.info("adapter", model=adapter.id, fingerprint=adapter.fingerprint, kib=kibibytes, told=adapter.notice)

    def with_figures(self, figures: WorkerFigures) -> WorkerFigures:
        """Adds the figures that the model and its engine know. May be called from other threads."""
        return replace(
            figures,
            memory=self.model.placement.memory,
            padding=self.model.encoder.padding_tokens,
            pieces=self.engine.pieces,
            shared_tokens=self.engine.shared_tokens,
        )

    def shut_down(self) -> None:
        """Waits for the threads. `serving` must have ended."""
        for executor in self.threads:
            executor.shutdown()


def load_model(settings: WorkerSettings) -> Model:
    """Loads the model, in the caller's thread, which should be the one that computes. Raises ModelRefused."""
    # In a forked process PyTorch makes its thread pool anew at the first call, without a lock: the threads that load
    # weights would race for it. Here it is made before they start.
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    int8 = settings.dtype == "int8"
    placement = Placement.choose(settings.device, "float32" if settings.dtype == "int8" else settings.dtype)
    options = LoadOptions(
        names=settings.served_name,
        max_tokens=settings.max_tokens,
        trust_remote_code=settings.trust_remote_code,
        late=Path(settings.late_interaction) if settings.late_interaction else None,
        score_template=Path(settings.score_template) if settings.score_template else None,
        revision=settings.revision,
        graphs=_graphs(placement),
        linear="int8" if int8 else "auto",
        cuts=settings.chunk_tokens != 0,
        adapters=settings.named_adapters(),
    )
    return load(settings.model, placement, options)


def _graphs(placement: Placement) -> GraphSettings | None:
    """Chooses the graphs to capture; None on a processor."""
    if placement.device.type == "cpu":
        return None
    return GraphSettings(step_tokens=placement.step_tokens)


def create_arrivals_thread(placement: Placement) -> ThreadPoolExecutor | None:
    """Creates the thread that waits for an accelerator's steps. None on a processor: what it computed has arrived."""
    if placement.device.type == "cpu":
        return None
    return ThreadPoolExecutor(1, "arrivals", initializer=placement.enter)


async def step_of(
    model: Model, device: Executor, settings: WorkerSettings, kept_bytes: int = 0
) -> tuple[list[Trial], StepTimes]:
    """Chooses the tokens of the largest step, see `choose_step`: as many as pay, within the bound of time and the
    memory of an accelerator. `kept_bytes`: memory that is for other things.

    Raises ModelRefused where a step fails.
    """
    bound = settings.step_limit(model.placement.step_seconds)
    choosing = partial(choose_step, model, bound, kept_bytes)
    try:
        return await asyncio.get_running_loop().run_in_executor(device, choosing)
    except ModelRefused:
        raise
    except Exception as error:
        log.error("step failed", exc_info=error)
        why = "there is too little memory" if isinstance(error, OutOfMemory) else f"{type(error).__name__}: {error}"
        raise ModelRefused(f"a trial step fails: {why.splitlines()[0]}") from None  # its frames hold the step's tensors


def _create_scheduler(engine: ModelEngine, step_tokens: int, settings: WorkerSettings) -> Scheduler:
    return Scheduler(
        engine,
        step_tokens=step_tokens,
        queued_tokens=QUEUED_TOKENS,
        queue_seconds=settings.queue_limit,
        step_seconds=settings.step_limit(engine.model.placement.step_seconds),
        cache_bytes=engine.limits.cache_bytes,
        chunk_tokens=engine.limits.longest or inf,
    )


async def _warm_up(driver: Driver, serving: asyncio.Task[None], jobs: Sequence[Job]) -> None:
    """Computes the warm-up jobs, one after the other. Raises ModelRefused, DeviceLost."""

    async def run_jobs() -> None:
        for job in jobs:
            await driver.result_of(job)

    try:
        await first_of(asyncio.create_task(run_jobs()), serving)
    except DeviceLost:
        driver.close()
        raise
    except SelvageError as error:
        raise ModelRefused(f"it fails on its first texts: {error}") from error
