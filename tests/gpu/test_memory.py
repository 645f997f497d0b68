"""Memory on CUDA: what a load and the largest step take, that it does not grow, and that running out is an answer."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch

from gpu_worker.device.memory import DeviceMemory, ran_out
from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import Model, load
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.startup.trials import run_largest_steps, try_step_sizes, warm_up_jobs
from harness.synchronous_driver import until_idle
from shared.jobs import Job, JobResult, RaggedTokens
from support.random_models import random_model
from support.tiny import DENSE, dense_rows, encode

pytestmark = pytest.mark.gpu

SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
NAMES = ["tiny-bge-m3", "tiny-splade", "tiny-colbert", "tiny-cross-encoder", "tiny-qwen3"]
MEBIBYTE = 1 << 20


@cache
def model(name: str) -> Model:
    return load(random_model(name), Placement.choose("cuda:0", "bfloat16"))


@pytest.fixture
def memory(cuda: torch.device) -> DeviceMemory:
    return DeviceMemory(cuda)


@pytest.fixture
def little(cuda: torch.device) -> Iterator[int]:
    """Room for 512 MiB more than is taken, as on a card that others use as well; gives it back."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(cuda).total_memory
    allowed = torch.cuda.memory_reserved(cuda) + 512 * MEBIBYTE
    torch.cuda.set_per_process_memory_fraction(allowed / total, cuda)
    yield allowed
    torch.cuda.set_per_process_memory_fraction(1.0, cuda)
    torch.cuda.empty_cache()


class Within:
    """The device's memory, of which this process may have a part only; the driver knows nothing of that."""

    def __init__(self, memory: DeviceMemory, available: int) -> None:
        self.reset_peak, self._memory, self.available = memory.reset_peak, memory, available

    @property
    def peak(self) -> int:
        return self._memory.peak


@pytest.mark.parametrize("name", NAMES)
def test_the_default_step_fits_and_takes_what_is_told(name: str, memory: DeviceMemory) -> None:
    """One trial, where there is plenty; its peak is PyTorch's own figure, and below the room."""
    chosen = model(name)
    trials = try_step_sizes(ModelEngine(chosen), chosen.placement.device_memory)
    assert [trial.tokens for trial in trials] == [chosen.placement.step_tokens]
    assert trials[0].taken == memory.peak
    assert chosen.weight_bytes < memory.peak < trials[0].available
    assert trials[0].available <= torch.cuda.get_device_properties(0).total_memory


@pytest.mark.parametrize("name", NAMES)
def test_memory_after_many_largest_steps_is_that_after_one(name: str, cuda: torch.device, memory: DeviceMemory) -> None:
    """Of tensors, to the byte; what the allocator reserves does not grow either."""
    engine = ModelEngine(model(name))
    tokens = engine.model.placement.step_tokens
    for _ in range(2):
        run_largest_steps(engine, memory, tokens)
    used, peak = torch.cuda.memory_allocated(cuda), memory.peak
    for _ in range(10):
        run_largest_steps(engine, memory, tokens)
        assert torch.cuda.memory_allocated(cuda) == used
        assert memory.peak <= peak + 2 * MEBIBYTE


def test_a_step_is_halved_until_it_fits(little: int, memory: DeviceMemory) -> None:
    """On a device of which this process may have little."""
    engine, available = ModelEngine(model("minilm-l6")), Within(memory, little)
    trials = try_step_sizes(engine, available)
    assert trials[-1].tokens <= engine.model.placement.step_tokens
    assert trials[-1].fits


def encoded(identity: int, *lengths: int) -> Job:
    texts = [[1000 + identity] * length for length in lengths]
    return Job(id=identity, work=encode(DENSE), tokens=RaggedTokens.of(texts))


def test_running_out_in_serving_is_an_answer(little: int) -> None:
    """A step that is too large is run in parts, and its rows are those of small steps; the worker goes on."""
    engine = ModelEngine(model("minilm-l6"))
    jobs = [encoded(number, *[500] * 600) for number in range(3)]

    def rows(step_tokens: int) -> list[np.ndarray]:
        scheduler = Scheduler(engine, step_tokens=step_tokens, queued_tokens=10**9)
        for job in jobs:
            scheduler.submit(job)
        answers = sorted(until_idle(scheduler), key=lambda answer: answer.id)
        results = [answer.outcome for answer in answers if isinstance(answer.outcome, JobResult)]
        assert len(results) == len(jobs)
        return [dense_rows(result) for result in results]

    for small, large in zip(rows(4096), rows(10**6), strict=True):
        assert np.abs(small - large).max() < 0.02


def test_the_devices_own_errors_are_known(cuda: torch.device, little: int) -> None:
    """PyTorch's, and CUDA's for pinned memory that no machine has."""
    with pytest.raises(RuntimeError) as full:
        torch.empty(1 << 40, dtype=torch.uint8, device=cuda)
    assert ran_out(full.value)
    with pytest.raises(RuntimeError) as pinned:
        torch.empty(1 << 46, dtype=torch.uint8, pin_memory=True)
    assert ran_out(pinned.value)
    assert float(torch.ones(3, device=cuda).sum()) == 3  # the device is well


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has one device")
@pytest.mark.parametrize("name", ["tiny-bge-m3", "tiny-colbert"])
def test_a_second_device_serves_alone(name: str) -> None:
    """Every kind of job runs on it, with nothing of it on the first one."""
    before = torch.cuda.memory_allocated(0)
    placement = Placement.choose("cuda:1", "bfloat16")
    engine = ModelEngine(load(random_model(name), placement))
    assert torch.cuda.current_device() == 1
    try:
        scheduler = Scheduler(engine, step_tokens=16384, queued_tokens=10**6)
        for job in warm_up_jobs(engine.model):
            scheduler.submit(job)
        assert not [answer for answer in until_idle(scheduler) if isinstance(answer.outcome, Exception)]
        assert torch.cuda.memory_allocated(0) == before
        assert torch.cuda.memory_allocated(1) > engine.model.weight_bytes / 2
    finally:
        torch.cuda.set_device(0)
