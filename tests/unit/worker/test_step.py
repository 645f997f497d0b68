"""What a step costs beside its model does not grow with its jobs: one gather, one pack, one copy each way."""

import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_worker.device import transfer
from gpu_worker.device.transfer import Upload
from gpu_worker.engine import engine as module
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.step.step import Step
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.loading import load
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.schedule.interface import JobSlice
from selvage.worker.v1 import worker_pb2
from shared.jobs import Classify, Encode, Job
from shared.link_codec import UnsentOutcome, led_by
from shared.vectors import DataType
from support.random_models import random_model
from support.tiny import CPU, DENSE, MULTI, encode, run, tokens

JOBS = 64


class Counting(TorchDispatchMode):
    """Operators that run; `after` the encoder only."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.after = False

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if self.after:
            self.seen[str(function)] += 1
        return function(*arguments, **(keywords or {}))


@cache
def engine_of(name: str) -> ModelEngine:
    return ModelEngine(load(random_model(name), CPU))


def jobs(count: int, work: Encode | Classify) -> list[Job]:
    return [Job(id=number, work=work, tokens=tokens(5 + number % 7, seed=number)) for number in range(count)]


def operators(engine: ModelEngine, count: int, work: Encode, monkeypatch: pytest.MonkeyPatch) -> int:
    counting = Counting()
    honest: Callable[[Encoder, RaggedBatch], Tensor] = type(engine.model.encoder).__call__

    def counted(encoder: Encoder, batch: RaggedBatch) -> Tensor:
        hidden = honest(encoder, batch)
        counting.after = True
        return hidden

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.model.encoder), "__call__", counted)
        with counting:
            run(engine, jobs(count, work))
    return counting.seen.total()


@pytest.mark.parametrize(
    "work",
    [encode(DENSE), encode(DENSE, dimensions=16, data_type=DataType.INT8), encode(DENSE, MULTI)],
    ids=["dense", "cut and int8", "dense and token rows"],
)
def test_many_jobs_run_as_many_operators_as_one(work: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("tiny-bert")
    alone = operators(engine, 1, work, monkeypatch)
    assert alone > 0
    assert operators(engine, JOBS, work, monkeypatch) <= alone + 4


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-colbert", "tiny-gemma2", "tiny-classifier"])
def test_many_jobs_go_to_the_device_in_one_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids, positions, offsets and all indices of all jobs."""
    copies: list[int] = []

    def copied(host: Tensor, _: torch.device) -> Tensor:
        copies.append(host.numel())
        return host.clone()

    monkeypatch.setattr(module, "Upload", lambda _: Upload(torch.device("xpu")))
    monkeypatch.setattr(transfer, "to_device", copied)
    engine = engine_of(name)
    heads = {DENSE: engine.model.heads.dense, MULTI: engine.model.heads.multi_vector}
    outputs = [output for output, head in heads.items() if head is not None]
    work = encode(*outputs) if outputs else Classify()
    for count in (1, JOBS):
        copies.clear()
        run(engine, jobs(count, work))
        assert len(copies) == 1


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-colbert", "tiny-qwen3"])
def test_a_job_that_is_not_cut_is_packed_as_if_all_its_texts_were_looked_at(name: str) -> None:
    """Whole jobs and parts of them, with tails, in one step."""
    engine = engine_of(name)
    output = DENSE if engine.model.heads.dense is not None else MULTI
    tails = {} if name == "tiny-qwen3" else {"unattended_tails": (2, 0, 1)}
    opened = [
        engine.open(Job(id=1, work=encode(output), tokens=tokens(9, 3, 5), **tails)),
        engine.open(Job(id=2, work=encode(output), tokens=tokens(7))),
    ]
    for units in ((0, 3), (1, 3), (2, 2)):
        fast = [opened[0].selection(*units), opened[1].selection(0, 1)]
        assert all(part.uncut for part in fast)
        slow = [replace(part, uncut=False) for part in fast]
        packed = [Step.pack(parts, CPU.device, None, None, Upload(CPU.device)) for parts in (fast, slow)]
        for ours, theirs in zip(*(step.packed for step in packed), strict=True):
            assert (ours.numbers.tolist(), ours.places.tolist()) == (theirs.numbers.tolist(), theirs.places.tolist())
        for ours, theirs in zip(fast, slow, strict=True):
            assert ours.whole.tolist() == theirs.whole.tolist() == ours.ended.tolist() == theirs.ended.tolist()
            assert ours.whole_numbers.tolist() == theirs.whole_numbers.tolist()
            assert ours.pieces() == theirs.pieces() == []


def test_a_row_is_copied_once_from_the_download_to_its_message() -> None:
    """What is shipped is what the result shows; the message's own bytes are the one copy."""
    engine = engine_of("tiny-bert")
    texts = tokens(*[200] * 60)
    progress = engine.open(Job(id=1, work=encode(MULTI), tokens=texts))
    flight = engine.launch([JobSlice(job=progress, start=0, stop=len(texts))])
    flight.arrived.result()
    tracemalloc.start()
    try:
        flight.collect()
        result = progress.result()
        assert result.tokens is not None
        size = len(result.tokens.data)
        assert size > 1_000_000
        assert tracemalloc.get_traced_memory()[1] < size / 4
        message = led_by(UnsentOutcome(1, result).take_piece(size), b"")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size <= peak < 1.25 * size
    assert worker_pb2.AttachResponse.FromString(message).answers[0].chunks[0].data == result.tokens.data


def test_a_launch_waits_for_nothing() -> None:
    """Not even for the device's thread to begin; the step arrives when it has computed."""
    computing = threading.Event()
    with ThreadPoolExecutor(1) as device:
        engine = ModelEngine(engine_of("tiny-bert").model, device)
        device.submit(computing.wait)
        progress = engine.open(jobs(1, encode(DENSE))[0])
        flight = engine.launch([JobSlice(job=progress, start=0, stop=1)])
        assert not flight.arrived.done()
        computing.set()
        flight.collect()
        assert flight.arrived.done()
    assert progress.result().dense is not None
