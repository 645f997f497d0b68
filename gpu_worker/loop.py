"""Submit, plan, launch, collect: the one loop of the worker, synchronous. Knows no torch, no asyncio and no gRPC.

Two steps at most are under way: while one is computed, the next is planned, packed and launched, and the one before is
answered. `turn` is the whole loop for whoever may wait. The scheduler calls its parts: `launch` and `gather` from a
thread if it likes, never two of them at once, all others from one thread only.
"""

import concurrent.futures
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_worker.planning import FairQueue
from gpu_worker.step.flight import Engine, Flight, OutOfMemory, Part
from gpu_worker.under_way import Held, Launched, NotLaunched, Planned
from shared.errors import DeadlineExceeded, InputTooLarge, Internal, InvalidInput, Overloaded, SelvageError
from shared.jobs import Job, JobResult

SPEED_MEMORY = 0.9
Outcome = JobResult | SelvageError
Report = Callable[[str, Exception, int], None]
"""Told what went wrong, by what error, and in a step of how many parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The one answer of a job, by its id."""

    id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the worker is."""

    queued_tokens: int
    queued_jobs: int
    tokens_per_second: float


def silent(event: str, error: Exception, parts: int) -> None:
    """Tells nobody."""


class Loop:
    """Takes jobs and answers each exactly once: with a result or with one error."""

    def __init__(
        self,
        engine: Engine,
        *,
        step_tokens: int,
        queued_tokens: int,
        report: Report = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`step_tokens`: budget of a step. `queued_tokens`: above it further jobs are refused."""
        self._engine, self._report, self._clock = engine, report, clock
        self._step_tokens, self._queued_tokens = step_tokens, queued_tokens
        self._queue = FairQueue(quantum=max(1, step_tokens // 8))
        self._held: dict[int, Held] = {}
        self._under_way: list[Launched] = []
        self._speed = self._ended = 0.0

    def submit(self, job: Job) -> None:
        """Takes a job. Raises what is known at once."""
        if job.id in self._held:
            raise InvalidInput(f"a job with id {job.id} is held already", field="jobs")
        progress = self._engine.open(job)
        cost, waiting = sum(progress.costs), self._queue.waiting
        if waiting and waiting + cost > self._queued_tokens:
            retry_after = waiting / self._speed if self._speed else 1.0
            raise Overloaded(
                f"{waiting} tokens wait, this job has {cost}, the limit is {self._queued_tokens}",
                retry_after=min(max(retry_after, 0.1), 60.0),
            )
        self._queue.add(job.id, progress.costs)
        now = self._clock()
        deadline = None if job.remaining is None else now + job.remaining
        self._held[job.id] = Held(job=job, progress=progress, submitted=now, deadline=deadline)

    def cancel(self, identity: int) -> bool:
        """Drops a job without an answer; whether it was held. What is under way of it still ends with its step."""
        self._queue.remove(identity)
        return self._held.pop(identity, None) is not None

    def drop_expired(self) -> list[Answer]:
        """Answers jobs whose deadline passed."""
        now = self._clock()
        passed = [each for each in self._held.values() if each.deadline is not None and each.deadline <= now]
        error = "the deadline passed while the job waited"
        return [self._answer(each, DeadlineExceeded(error)) for each in passed]

    def drop_all(self, error: SelvageError) -> list[Answer]:
        """Answers all jobs that are held with one error."""
        return [self._answer(each, error) for each in list(self._held.values())]

    @property
    def load(self) -> Load:
        """Tokens and jobs that wait, and the recent speed."""
        return Load(queued_tokens=self._queue.waiting, queued_jobs=len(self._held), tokens_per_second=self._speed)

    @property
    def under_way(self) -> list[Launched]:
        """Steps that are launched and not gathered, the older first; two at most."""
        return self._under_way

    @property
    def worth_a_launch(self) -> bool:
        """Whether the next step should be launched beside the one that computes.

        It should once a whole step waits. Less would leave out what comes meanwhile: single requests would be computed
        one by one for ever.
        """
        if not self._under_way:
            return self._queue.waiting > 0
        return self.may_launch and self._queue.waiting >= self._step_tokens

    @property
    def may_launch(self) -> bool:
        """Whether there is room for another step: two at most, and none behind one that is run again."""
        return len(self._under_way) < 2 and not any(each.suspect for each in self._under_way)

    def plan(self) -> Planned | None:
        """Takes what the next step is made of; None where nothing waits."""
        shares = self._queue.next_step(self._step_tokens)
        if not shares:
            return None
        jobs = [self._held[share.job] for share in shares]
        parts = [
            Part(progress=held.progress, start=share.start, stop=share.stop)
            for held, share in zip(jobs, shares, strict=True)
        ]
        return Planned(jobs=jobs, parts=parts)

    def launch(self, planned: Planned) -> None:
        """Hands a step to the engine, behind what is under way."""
        assert len(self._under_way) < 2
        start = self._clock()
        try:
            flight: Flight = self._engine.launch(planned.parts)
        except Exception as error:  # told when it is gathered, like what fails on the device
            flight = NotLaunched(error)
        self._under_way.append(Launched(planned=planned, flight=flight, start=start))

    def gather(self) -> list[tuple[Held, Outcome]]:
        """Waits for the older step, gives its jobs their shares, and makes the results of those that end with it.

        A step that failed is run again in parts, so that only the guilty job fails.
        """
        launched = self._under_way[0]
        failures = dict(self._serve(launched))
        ended: list[tuple[Held, Outcome]] = []
        for held, part in zip(launched.planned.jobs, launched.planned.parts, strict=True):
            error = failures.get(part)
            if error is not None:
                ended.append((held, error))
            elif part.last and self._held.get(held.job.id) is held:
                ended.append((held, self._result(held)))
        return ended

    def settle(self, ended: list[tuple[Held, Outcome]]) -> list[Answer]:
        """After `gather`: forgets the step, and answers the jobs that ended with it."""
        launched = self._under_way.pop(0)
        begin, end = max(launched.start, self._ended), self._clock()  # it was computed after the one before it
        for held in launched.planned.jobs:
            held.started = begin if held.started is None else held.started
        self._ended = end
        self._measure(launched.planned.tokens, end - begin)
        return [
            self._answer(held, self._timed(held, outcome, end))
            for held, outcome in ended
            if self._held.get(held.job.id) is held  # else it was cancelled, or another job has taken the id since
        ]

    def turn(self) -> list[Answer]:
        """One turn: launches the next step if any work waits, then answers the one before it."""
        answers = self.drop_expired()
        before = bool(self._under_way)
        planned = self.plan() if self.may_launch else None
        if planned is not None:
            self.launch(planned)
        if before:
            answers += self.settle(self.gather())
        return answers

    def until_idle(self) -> Iterator[Answer]:
        """Turns until every job is answered."""
        while self._held or self._under_way:
            yield from self.turn()

    def _serve(self, launched: Launched) -> list[tuple[Part, SelvageError]]:
        parts = launched.planned.parts
        if launched.suspect:
            concurrent.futures.wait([launched.flight.arrived])
            jobs = zip(launched.planned.jobs, parts, strict=True)
            asked = [part for held, part in jobs if self._held.get(held.job.id) is held]
            return [failed for part in asked for failed in self._again(part)]
        failure = self._collect(launched.flight, len(parts))
        if failure is None:
            return []
        self._suspect_the_later(parts)
        if len(parts) == 1:
            return self._smaller(parts[0], failure)
        return [failed for part in parts for failed in self._again(part)]

    def _suspect_the_later(self, failed: Sequence[Part]) -> None:
        """Of the steps behind a failed one those that go on with its jobs."""
        jobs = {id(part.progress) for part in failed}
        for later in self._under_way[1:]:
            later.suspect = any(id(part.progress) in jobs for part in later.planned.parts)

    def _again(self, part: Part) -> list[tuple[Part, SelvageError]]:
        """A part by itself, without anything beside it."""
        try:
            flight: Flight = self._engine.launch([part])
        except Exception as error:
            flight = NotLaunched(error)
        failure = self._collect(flight, 1)
        return [] if failure is None else self._smaller(part, failure)

    def _smaller(self, part: Part, failure: SelvageError) -> list[tuple[Part, SelvageError]]:
        """After a part failed by itself: by halves, where memory was what was missing."""
        if isinstance(failure, InputTooLarge) and part.stop - part.start > 1:
            for half in part.halves():
                for _, error in self._again(half):
                    return [(part, error)]
            return []
        return [(part, failure)]

    def _collect(self, flight: Flight, parts: int) -> SelvageError | None:
        """The error that its jobs get, or None."""
        try:
            flight.collect()
        except SelvageError as error:
            return error
        except OutOfMemory as error:
            _let_go(error)
            return InputTooLarge("the device ran out of memory on this input alone")
        except Exception as error:
            self._report("step failed", error, parts)
            _let_go(error)
            return Internal("the step failed; the log of the worker has it")
        return None

    def _result(self, held: Held) -> Outcome:
        try:
            return held.progress.result()
        except SelvageError as error:
            return error
        except Exception as error:
            self._report("result failed", error, 1)
            return Internal("the result could not be made; the log of the worker has it")

    def _timed(self, held: Held, outcome: Outcome, end: float) -> Outcome:
        if isinstance(outcome, SelvageError):
            return outcome
        started = held.submitted if held.started is None else held.started
        return replace(outcome, queue=started - held.submitted, compute=end - started)

    def _answer(self, held: Held, outcome: Outcome) -> Answer:
        self.cancel(held.job.id)
        return Answer(id=held.job.id, outcome=outcome)

    def _measure(self, tokens: int, seconds: float) -> None:
        speed = tokens / max(seconds, 1e-6)
        self._speed = SPEED_MEMORY * self._speed + (1 - SPEED_MEMORY) * speed if self._speed else speed


def _let_go(error: BaseException | None) -> None:
    """Frees what the frames of an error hold: a failed step's tensors, whose memory its retries need."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
