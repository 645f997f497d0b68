"""What a step leaves behind when it is done: nothing that waits for a full garbage collection."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.startup.trials import warm_up_jobs
from harness.synchronous_driver import until_idle
from support.random_models import random_model
from support.tiny import CPU


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """What only a collection would free, once `gc.collect` was called."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize(
    "name",
    [
        "tiny-bge-m3",
        *(pytest.param(f"tiny-{each}", marks=pytest.mark.slow) for each in ("classifier", "splade", "colbert")),
    ],
)
def test_no_tensor_waits_for_the_garbage_collector(name: str, garbage: list[object]) -> None:
    """Of jobs of every kind: a circle through a step would hold hundreds of megabytes of it for minutes."""
    model = load(random_model(name), CPU)
    scheduler = Scheduler(ModelEngine(model), step_tokens=2048, queued_tokens=10**6)
    gc.collect()
    garbage.clear()  # what loading left
    for job in warm_up_jobs(model):
        scheduler.submit(job)
    assert list(until_idle(scheduler))
    gc.collect()
    assert [type(each) for each in garbage if isinstance(each, torch.Tensor | np.ndarray)] == []
