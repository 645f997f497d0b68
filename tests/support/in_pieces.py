"""Jobs whose texts are cut, computed in steps of random sizes and in random company."""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.schedule.interface import JobSlice, StepHandle
from shared.jobs import Job, JobResult


def run_in_steps(engine: ModelEngine, jobs: Sequence[Job], seed: int = 0, most_units: int = 3) -> list[JobResult]:
    """Computes some units of some jobs in each step, with up to two steps under way."""
    chance = random.Random(seed)
    open_jobs = [engine.open(job) for job in jobs]
    positions = [0] * len(jobs)
    under_way = deque[StepHandle]()
    while any(position < len(job.costs) for position, job in zip(positions, open_jobs, strict=True)):
        slices = []
        for number, job in enumerate(open_jobs):
            left = len(job.costs) - positions[number]
            units = min(left, chance.randint(0, most_units))
            if units:
                start, positions[number] = positions[number], positions[number] + units
                slices.append(JobSlice(job=job, start=start, stop=start + units))
        chance.shuffle(slices)
        if slices:
            under_way.append(engine.launch(slices))
        if len(under_way) > chance.randint(0, 1):
            under_way.popleft().collect()
    for step in under_way:
        step.collect()
    return [job.result() for job in open_jobs]


@contextmanager
def cut_texts(engine: ModelEngine, **limits: Any) -> Iterator[None]:
    """The engine cuts texts for a while, or has them share first tokens, as these PieceLimits say."""
    engine.cut_texts(PieceLimits(**limits))
    try:
        yield
    finally:
        engine.cut_texts(PieceLimits())
