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
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.job import EncodeJob
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


OTHERS = [RuntimeError("CUDA error: an illegal memory access"), ValueError("out of memory")]


def test_errors_of_every_library_mean_that_memory_was_missing() -> None:
    """And no others: to run them again in parts would hide a bug."""
    assert [name for name, error in ERRORS.items() if not ran_out(error)] == []
    assert [error for error in OTHERS if ran_out(error)] == []


@cache
def model() -> Model:
    return load(random_model("tiny-bert"), CPU)


PLACES: dict[str, tuple[type | None, str, Callable[..., int]]] = {
    "packing": (Step, "pack", lambda chosen, *_: sum(int((part.stops - part.starts).sum()) for part in chosen)),
    "pinned memory of what goes to the device": (Upload, "send", lambda upload: upload._arrays[0].array.shape[-1]),
    "computing": (None, "__call__", lambda _, batch: batch.total),
    "pinned memory of what comes back": (StepDownload, "send", lambda download: len(download._tensors[0])),
    "an error that a device had told late": (
        StepDownload,
        "wait",
        lambda download: len(download._tensors[0]) if download._tensors else 0,
    ),
    "a job's table": (EncodeJob, "put", lambda _, slice_rows: slice_rows.packed.tokens),
}
"""What is called in a step, and of how many tokens; None: of the encoder."""


def crowd(place: str, room: int, error: Exception, patch: pytest.MonkeyPatch) -> list[int]:
    """Whoever is asked there for more tokens than there is room for raises; the others do their work.

    Returns the numbers of tokens that were refused, to which later ones are added.
    """
    owner, name, count = PLACES[place]
    owner = owner or type(model().encoder)
    honest, refused = getattr(owner, name), list[int]()

    def called(*arguments: Any, **options: Any) -> Any:
        if count(*arguments) > room:
            refused.append(count(*arguments))
            raise error
        return honest(*arguments, **options)

    patch.setattr(owner, name, called)
    return refused


def answered(*jobs: Job) -> list[EndedJob]:
    scheduler = Scheduler(ModelEngine(model()), step_tokens=1000, queued_tokens=10**6)
    for submitted in jobs:
        scheduler.submit(submitted)
    return list(until_idle(scheduler))


def job(identity: int, *lengths: int) -> Job:
    return Job(id=identity, work=encode(DENSE), tokens=tokens(*lengths, seed=identity))


def rows(answer: EndedJob) -> np.ndarray:
    assert isinstance(answer.outcome, JobResult)
    return dense_rows(answer.outcome)


@pytest.mark.parametrize(("place", "error"), [*zip(PLACES, ERRORS.values(), strict=True)])
def test_a_step_that_ran_out_is_answered_in_parts(
    place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs get the rows that they get with room enough; one that does not fit alone gets its error."""
    jobs = job(1, 30, 60, 20), job(2, 90), job(3, 300), job(4, 7, 5)
    expected = {answer.id: answer for answer in answered(*jobs)}
    reclaimed: list[int] = []
    refused = crowd(place, 100, error, monkeypatch)
    monkeypatch.setattr(Placement, "reclaim", lambda _: reclaimed.append(len(refused)))
    answers = {answer.id: answer for answer in answered(*jobs)}
    assert isinstance(answers[3].outcome, InputTooLarge)
    for identity in (1, 2, 4):
        assert np.allclose(rows(answers[identity]), rows(expected[identity]), atol=1e-6)
    assert reclaimed == list(range(1, len(refused) + 1))  # once after each refusal, before the next try


def test_what_is_kept_for_nobody_is_given_back_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(placement, "reclaim", lambda: calls.append("reclaim"))
    CPU.reclaim()
    assert calls == []
    replace(CPU, device=torch.device("cuda:1")).reclaim()
    assert calls == ["reclaim"]
