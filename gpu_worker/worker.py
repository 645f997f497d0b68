"""A worker but for its port: a model that is loaded, measured and rehearsed, and the scheduler that runs it.

`__main__` serves one to frontends; `selvage.Engine` has one in its own process.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from random import getrandbits

import structlog
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.loop.async_loop import AsyncLoop
from gpu_worker.loop.loop import Observe, unobserved
from gpu_worker.loop.watchdog import DeviceLost
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune.encoder_forms import Forms
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.memory_probe import settled
from gpu_worker.startup.warm_up import rehearsal
from shared.card import ModelCard
from shared.errors import ModelRefused, SelvageError
from shared.jobs import Priority
from shared.together import first_of

log = structlog.get_logger("worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWorker:
    """`serving` runs the scheduler until it is cancelled; it ends by itself only with DeviceLost."""

    model: Model
    card: ModelCard
    scheduler: AsyncLoop
    serving: asyncio.Task[None]
    threads: tuple[ThreadPoolExecutor, ...]

    @classmethod
    async def start(cls, settings: WorkerSettings, observe: Observe = unobserved) -> "ModelWorker":
        """Loads the model and runs every path of it once, so that no request pays for first-time work.

        Raises ModelRefused with one line, and DeviceLost.
        """
        threads = [ThreadPoolExecutor(1, "host"), ThreadPoolExecutor(1, "device")]
        try:
            return await cls._start(settings, observe, threads)
        except BaseException:
            for each in threads:
                each.shutdown(wait=False)  # one may hang in the device
            raise

    @classmethod
    async def _start(
        cls, settings: WorkerSettings, observe: Observe, threads: list[ThreadPoolExecutor]
    ) -> "ModelWorker":
        host, device = threads
        log.info("loading", model=settings.model, revision=settings.revision or None)
        # Loading shares the thread with computing: OpenMP keeps a pool for every thread that ever used it, and more
        # pools than cores make each parallel region go to sleep.
        model = await asyncio.get_running_loop().run_in_executor(device, load_model, settings)
        arrivals = arrivals_of(model.placement)
        threads += [arrivals] if arrivals else []
        engine = ModelEngine(model, device, arrivals)
        scheduler = _scheduler(engine, host, await step_tokens_of(engine, host, settings), settings, observe)
        serving = asyncio.create_task(scheduler.run())
        await _warm_up(scheduler, serving, model)
        return cls(model=model, card=card_of(model), scheduler=scheduler, serving=serving, threads=tuple(threads))

    def say_ready(self) -> None:
        """In the log, with what was measured."""
        for each in self.model.told:
            log.info("measured at load", told=each)
        card = self.card
        log.info("ready", model=card.id, fingerprint=card.fingerprint, attention=card.attention, linear=card.linear)
        if card.notice:
            log.warning("beware", notice=card.notice)

    def shut_down(self) -> None:
        """Once `serving` has ended: waits for its threads."""
        for executor in self.threads:
            executor.shutdown()


def load_model(settings: WorkerSettings) -> Model:
    """Runs in the device thread. Raises ModelRefused in one line."""
    # In a process that was forked, PyTorch makes its pool of threads anew at the first call, without a lock: two of the
    # threads that load weights would race for it, and one find none. Here it is made before them.
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    placement = Placement.choose(settings.device, settings.dtype)
    return load(
        settings.model,
        placement,
        served_names=settings.served_name,
        max_tokens=settings.max_tokens,
        trust_remote_code=settings.trust_remote_code,
        late=settings.late_overrides(),
        revision=settings.revision,
        forms=_forms(settings, placement),
        linear=settings.linear,
    )


def _forms(settings: WorkerSettings, placement: Placement) -> Forms | None:
    """None on a processor, which runs an encoder as it is written."""
    if placement.device.type == "cpu":
        return None
    step_tokens = settings.step_tokens or placement.step_tokens
    return Forms(compile=settings.compile, graphs=settings.graphs, step_tokens=step_tokens)


def arrivals_of(placement: Placement) -> ThreadPoolExecutor | None:
    """On a processor what the device's thread computes has arrived; an accelerator is waited for beside it."""
    if placement.device.type == "cpu":
        return None
    return ThreadPoolExecutor(1, "arrivals", initializer=placement.enter)


async def step_tokens_of(engine: ModelEngine, host: ThreadPoolExecutor, settings: WorkerSettings) -> int:
    """As the user says, else as suits the device, and on an accelerator as fits its memory.

    Raises ModelRefused where that does not fit.
    """
    placement = engine.model.placement
    measuring = partial(settled, engine, placement.measured, settings.step_tokens, _failed)
    try:
        trials = await asyncio.get_running_loop().run_in_executor(host, measuring)
    except SelvageError as error:
        raise ModelRefused(str(error)) from error
    for trial in trials:
        tell = log.info if trial.fits else log.warning
        tell("largest step", fits=trial.fits, measured=str(trial))
    return trials[-1].tokens if trials else settings.step_tokens or placement.step_tokens


def _failed(event: str, error: Exception, parts: int) -> None:
    log.error(event, parts=parts, exc_info=error)


def _scheduler(
    engine: ModelEngine, host: ThreadPoolExecutor, step_tokens: int, settings: WorkerSettings, observe: Observe
) -> AsyncLoop:
    """What the files and the machine suggest, unless a setting says otherwise."""
    model = engine.model
    return AsyncLoop(
        engine,
        host,
        step_tokens=step_tokens,
        queued_tokens=settings.queued_tokens,
        queue_seconds=settings.queue_seconds or inf,
        step_seconds=settings.step_seconds(model.placement.step_seconds),
        probe=replace(next(rehearsal(model)), id=getrandbits(63), priority=Priority.INTERACTIVE),
        observe=observe,
    )


async def _warm_up(scheduler: AsyncLoop, serving: asyncio.Task[None], model: Model) -> None:
    async def answered() -> None:
        for job in rehearsal(model):
            await scheduler.answer(job)

    try:
        await first_of(asyncio.create_task(answered()), serving)
    except DeviceLost:
        scheduler.close()
        raise
    except SelvageError as error:
        raise ModelRefused(f"it fails on its first texts: {error}") from error
