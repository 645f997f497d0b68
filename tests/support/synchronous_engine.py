"""A fake engine that computes when a step is launched, for tests of the scheduler."""

from collections.abc import Sequence
from concurrent.futures import Future

from gpu_worker.schedule.interface import JobSlice, OutOfMemory
from gpu_worker.schedule.steps import EndedJob
from shared.jobs import Encode, Job, JobResult, Priority, RaggedTokens
from shared.vectors import OutputKind

WORK = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)


def cut(lengths: Sequence[int], chunk: int) -> tuple[list[int], list[int]]:
    """Costs and room of the units of sequences of these lengths, in pieces of at most `chunk` tokens."""
    costs, room = list[int](), list[int]()
    for length in lengths:
        sizes = [min(chunk, length - start) for start in range(0, length, chunk)]
        costs += sizes
        room += [length, *[0] * (len(sizes) - 2), -length] if len(sizes) > 1 else [0]
    return costs, room if any(room) else []


class FakeProgress:
    def __init__(self, job: Job, chunk: int = 0) -> None:
        """`chunk`: longest piece of a sequence; 0 for whole ones."""
        self.job = job
        self.costs: Sequence[int] = job.tokens.lengths
        self.room: Sequence[int] = ()
        self.spared: Sequence[int] = ()
        if chunk:
            self.costs, self.room = cut(job.tokens.lengths, chunk)
        self.computed: set[int] = set()
        self.served: list[int] = []

    def result(self) -> JobResult:
        return JobResult(row_lengths=tuple(self.served))


class FakeEngine:
    """A device that computes at once, in order; a unit needs all before it, as documents need their queries' rows.

    A unit of length 13 is out of memory `failing` times; `events` tell what was launched and collected.
    """

    def __init__(self, failing: int = 0, chunk: int = 0) -> None:
        self.failing, self.chunk = failing, chunk
        self.events: list[tuple[str, int]] = []
        self.launched = 0

    def open(self, job: Job) -> FakeProgress:
        return FakeProgress(job, self.chunk)

    def reclaim(self) -> None:
        self.events.append(("reclaim", self.launched))

    def launch(self, parts: Sequence[JobSlice]) -> "FakeFlight":
        self.launched += 1
        self.events.append(("launch", self.launched))
        chosen: list[tuple[FakeProgress, range]] = [(part.job, range(part.start, part.stop)) for part in parts]
        error: Exception | None = None
        if self.failing and any(progress.costs[unit] == 13 for progress, units in chosen for unit in units):
            self.failing -= 1
            error = OutOfMemory()
        elif any(not set(range(units.start)) <= progress.computed for progress, units in chosen):
            error = KeyError("rows that a step before should have left")
        else:
            for progress, units in chosen:
                progress.computed |= set(units)
        return FakeFlight(self, self.launched, chosen, error)


class FakeFlight:
    def __init__(
        self, engine: FakeEngine, number: int, chosen: list[tuple[FakeProgress, range]], error: Exception | None
    ) -> None:
        self._engine, self._number, self._chosen, self._error = engine, number, chosen, error
        self.shared_tokens = 0
        self.arrived: Future[None] = Future()
        self.arrived.set_result(None)

    def collect(self) -> None:
        self._engine.events.append(("collect", self._number))
        if self._error is not None:
            raise self._error
        for progress, units in self._chosen:
            progress.served.extend(progress.costs[unit] for unit in units)


def job(
    identity: int, *lengths: int, remaining: float | None = None, priority: Priority = Priority.DEFAULT, key: str = ""
) -> Job:
    tokens = RaggedTokens.of([[0] * length for length in lengths])
    return Job(id=identity, work=WORK, tokens=tokens, remaining=remaining, priority=priority, key=key)


def shown(answer: EndedJob) -> tuple[int, object]:
    outcome = answer.outcome
    return answer.id, outcome.row_lengths if isinstance(outcome, JobResult) else type(outcome)
