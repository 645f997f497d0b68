"""Memory may run out anywhere in a step: the step is run again in parts, and whoever asked for too much is told."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.device import placement
from gpu_worker.device.memory import ran_out
from gpu_worker.device.placement import Placement
from gpu_worker.device.transfer import StepDownload, Upload
from gpu_worker.engine import engine as engine_module
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.job import EncodeJob
from gpu_worker.engine.step.outputs import SliceRows
from gpu_worker.engine.step.step import Step
from gpu_worker.model.loading import Model, load
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.schedule.steps import EndedJob
from harness.synchronous_driver import until_idle
from shared.errors import InputTooLarge
from shared.jobs import Job, JobResult
from support.random_models import random_model
from support.tiny import CPU, DENSE, dense_rows, encode, tokens

ERRORS = {
    "device": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of"),
    "pinned": RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia"),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "Triton": RuntimeError("Triton Error [CUDA]: out of memory"),
    "processor": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory"
    ),
    "host": MemoryError("Unable to allocate 12.0 GiB for an array"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_they_all_mean_that_memory_was_missing(error: Exception) -> None:
    assert ran_out(error)


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal memory access"), ValueError("out of memory")])
def test_others_do_not(error: Exception) -> None:
    """To run them again in parts would hide a bug."""
    assert not ran_out(error)


@cache
def model() -> Model:
    return load(random_model("tiny-bert"), CPU)


class Crowded:
    """Whoever is asked for more tokens than there is room for raises; the others do their work."""

    def __init__(self, room: int, error: Exception) -> None:
        self.room, self.error, self.refused = room, error, 0

    def heed(self, count: int) -> None:
        if count > self.room:
            self.refused += 1
            raise self.error


def packing(crowded: Crowded, patch: pytest.MonkeyPatch) -> None:
    """The host's memory, in `launch` itself."""
    pack = Step.pack

    def packed(chosen: Any, *arguments: Any, **options: Any) -> Step:
        crowded.heed(sum(int((each.stops - each.starts).sum()) for each in chosen))
        return pack(chosen, *arguments, **options)

    patch.setattr(engine_module.Step, "pack", packed)


def uploading(crowded: Crowded, patch: pytest.MonkeyPatch) -> None:
    """Pinned memory of what goes to the device."""
    send = Upload.send

    def sent(self: Upload) -> None:
        crowded.heed(self._arrays[0].array.shape[-1])
        send(self)

    patch.setattr(Upload, "send", sent)


def computing(crowded: Crowded, patch: pytest.MonkeyPatch) -> None:
    encoder = type(model().encoder)
    call = encoder.__call__

    def called(self: Any, batch: Any) -> torch.Tensor:
        crowded.heed(batch.total)
        return call(self, batch)

    patch.setattr(encoder, "__call__", called)


def downloading(crowded: Crowded, patch: pytest.MonkeyPatch) -> None:
    """Pinned memory of what comes back."""
    patch.setattr(StepDownload, "send", lambda self: crowded.heed(len(self._tensors[0])))


def waiting(crowded: Crowded, patch: pytest.MonkeyPatch) -> None:
    """Where errors show that a device had told late."""
    wait = StepDownload.wait

    def waited(self: StepDownload) -> StepDownload:
        if self._tensors:
            crowded.heed(len(self._tensors[0]))
        return wait(self)

    patch.setattr(StepDownload, "wait", waited)


def filling(crowded: Crowded, patch: pytest.MonkeyPatch) -> None:
    """The host's memory, where a job's table is made and filled."""
    put = EncodeJob.put

    def filled(self: EncodeJob, slice_rows: SliceRows) -> None:
        crowded.heed(slice_rows.packed.tokens)
        put(self, slice_rows)

    patch.setattr(EncodeJob, "put", filled)


PLACES = [packing, uploading, computing, downloading, waiting, filling]
Place = Callable[[Crowded, pytest.MonkeyPatch], None]


def answered(*jobs: Job) -> list[EndedJob]:
    scheduler = Scheduler(ModelEngine(model()), step_tokens=1000, queued_tokens=10**6)
    for each in jobs:
        scheduler.submit(each)
    return list(until_idle(scheduler))


def job(identity: int, *lengths: int) -> Job:
    return Job(id=identity, work=encode(DENSE), tokens=tokens(*lengths, seed=identity))


def rows(answer: EndedJob) -> np.ndarray:
    assert isinstance(answer.outcome, JobResult)
    return dense_rows(answer.outcome)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_step_that_ran_out_is_answered_in_parts(
    place: Place, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs get the rows that they get with room enough; one that does not fit alone gets its error."""
    jobs = job(1, 30, 60, 20), job(2, 90), job(3, 300), job(4, 7, 5)
    expected = {each.id: each for each in answered(*jobs)}
    reclaimed: list[int] = []
    crowded = Crowded(100, error)
    monkeypatch.setattr(Placement, "reclaim", lambda _: reclaimed.append(crowded.refused))
    place(crowded, monkeypatch)
    found = {each.id: each for each in answered(*jobs)}
    assert isinstance(found[3].outcome, InputTooLarge)
    for each in (1, 2, 4):
        assert np.allclose(rows(found[each]), rows(expected[each]), atol=1e-6)
    assert reclaimed == list(range(1, crowded.refused + 1))  # once after each refusal, before the next try


def test_what_is_kept_for_nobody_is_given_back_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(placement, "reclaim", lambda: calls.append("reclaim"))
    CPU.reclaim()
    assert calls == []
    replace(CPU, device=torch.device("cuda:1")).reclaim()
    assert calls == ["reclaim"]
