"""Jobs on their way through an engine, planned as the scheduler plans them. One thread, no services."""

import time
from dataclasses import dataclass, replace
from itertools import count

from gpu_worker.step.flight import Engine, Part, Progress
from gpu_worker.planning import FairQueue
from shared.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job that was answered: seconds since it came."""

    seconds: float


@dataclass(slots=True, kw_only=True)
class _Held:
    progress: Progress
    came: float
    tokens: int
    unserved: int


class InFlight:
    """Opens jobs, runs steps over all that wait, and takes each result when it is due.

    `served`: tokens of all steps so far, also of jobs that are not answered yet.
    """

    def __init__(self, engine: Engine, step_tokens: int) -> None:
        """`step_tokens`: budget of a step."""
        self._engine = engine
        self._step_tokens = step_tokens
        self._queue = FairQueue(quantum=max(1, step_tokens // 8))
        self._held: dict[int, _Held] = {}
        self._ids = count()
        self.served = 0.0

    def __len__(self) -> int:
        """Jobs that are not answered yet."""
        return len(self._held)

    def open(self, job: Job, came: float | None = None) -> None:
        """Takes a job under an id of its own. `came`: when, by `time.perf_counter`; now, unless told."""
        came = time.perf_counter() if came is None else came
        identity = next(self._ids)
        progress = self._engine.open(replace(job, id=identity))
        self._queue.add(identity, progress.costs)
        self._held[identity] = _Held(
            progress=progress, came=came, tokens=job.tokens.total, unserved=len(progress.costs)
        )

    def step(self) -> list[Finished]:
        """Runs one step; what it finished."""
        shares = self._queue.next_step(self._step_tokens)
        parts = [Part(progress=self._held[each.job].progress, start=each.start, stop=each.stop) for each in shares]
        self._engine.step(parts)
        finished = []
        for share in shares:
            held = self._held[share.job]
            held.unserved -= share.stop - share.start
            costs = held.progress.costs  # in tokens, and what comparing takes beside them
            self.served += held.tokens * sum(costs[share.start : share.stop]) / sum(costs)
            if not held.unserved:
                held.progress.result()
                finished.append(Finished(seconds=time.perf_counter() - held.came))
                del self._held[share.job]
        return finished
