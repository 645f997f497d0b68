"""In which pattern jobs come: a closed loop, a burst, or one big job against its encoder alone. Each gives a row."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.accelerator.in_flight import Finished, InFlight
from gpu_worker.engine import ModelEngine
from gpu_worker.step.flight import Engine, Part, Progress
from gpu_worker.step.sequences import Step
from shared.jobs import Job, JobResult

WARMUP = 0.3
"""Of a closed loop's seconds, before they count."""
ROUNDS = 3
"""Of a burst or a big job; one more before them warms up."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was answered in so many seconds, and the tokens that were served."""

    seconds: float
    tokens: float
    finished: Sequence[Finished]

    def figures(self) -> Row:
        """For JSON."""
        middle, late = np.quantile([each.seconds * 1e3 for each in self.finished], (0.5, 0.99))
        return {
            "requests": len(self.finished),
            "seconds": round(self.seconds, 4),
            "requests_per_second": round(len(self.finished) / self.seconds, 2),
            "tokens_per_second": round(self.tokens / self.seconds),
            "latency_ms": {"p50": round(float(middle), 3), "p99": round(float(late), 3)},
        }


def closed(engine: ModelEngine, jobs: Iterator[Job], in_flight: int, seconds: float) -> Row:
    """So many jobs open at any time. The span that rates are divided by reaches from an answer to an answer."""
    flight = InFlight(engine, engine.model.placement.step_tokens)

    def answered(least: float) -> Run:
        """Goes on for so many seconds, and then until something is answered."""
        start, found, before = time.perf_counter(), list[Finished](), flight.served
        while True:
            while len(flight) < in_flight:
                flight.open(next(jobs))
            latest = flight.step()
            found += latest
            spent = time.perf_counter() - start
            if latest and spent >= least:
                return Run(seconds=spent, tokens=flight.served - before, finished=found)

    answered(WARMUP * seconds)
    return {"in_flight": in_flight} | answered(seconds).figures()


def burst(engine: ModelEngine, jobs: Sequence[Job]) -> Row:
    """All jobs at once: the round of median length."""
    runs = [_at_once(engine, jobs, engine.model.placement.step_tokens) for _ in range(1 + ROUNDS)]
    return {"in_flight": len(jobs)} | _median(runs[1:]).figures()


def against_encoder(engine: ModelEngine, job: Job) -> Row:
    """One job at a time, in turns with the same steps through the trunk alone."""
    alone, step_tokens = _TrunkAlone(engine), engine.model.placement.step_tokens
    whole, trunk = list[Run](), list[Run]()
    for _ in range(1 + ROUNDS):
        whole.append(_at_once(engine, [job], step_tokens))
        trunk.append(_at_once(alone, [job], step_tokens))
    ours, encoder = _median(whole[1:]), _median(trunk[1:]).seconds
    return (
        {"in_flight": 1}
        | ours.figures()
        | {
            "encoder_seconds": round(encoder, 5),
            "share_of_encoder": round(encoder / ours.seconds, 4),
        }
    )


def _at_once(engine: Engine, jobs: Sequence[Job], step_tokens: int) -> Run:
    """All jobs come at the same moment; opening them is part of their time."""
    flight, start = InFlight(engine, step_tokens), time.perf_counter()
    for job in jobs:
        flight.open(job, start)
    finished = []
    while len(flight):
        finished += flight.step()
    return Run(seconds=time.perf_counter() - start, tokens=flight.served, finished=finished)


def _median(runs: Sequence[Run]) -> Run:
    return sorted(runs, key=lambda each: each.seconds)[len(runs) // 2]


class _Unanswered:
    """A job that is planned and encoded, and nothing else."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.costs = progress.costs

    def result(self) -> JobResult:
        return JobResult()


class _TrunkAlone:
    """An `Engine` whose steps end with the hidden states."""

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine

    def open(self, job: Job) -> Progress:
        return _Unanswered(self._engine.open(job))

    def step(self, parts: Sequence[Part]) -> None:
        model, real = self._engine.model, []
        for part in parts:
            assert isinstance(part.progress, _Unanswered)
            real.append(Part(progress=part.progress.progress, start=part.start, stop=part.stop))
        with torch.inference_mode():
            step = Step.of(real, model.placement.device, model.trunk.uncounted, model.trunk.token_types)
            model.trunk(step.batch)
        if model.placement.device.type == "cuda":
            torch.cuda.synchronize(model.placement.device)
