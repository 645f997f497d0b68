"""A large job split into parts for several workers, and their results joined. Knows no transport; numpy only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import getrandbits

import numpy as np

from shared.jobs import Classify, Job, JobResult, Score
from shared.ragged import RaggedTokens
from shared.vectors import Layout

LEAST_PART_TOKENS = 4096
"""Smallest part worth sending to another worker, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWorker:
    """A worker that may take a part of a job.

    `wait`: that of the whole job there (see `shared.estimate`), in seconds. `speed`: tokens a second, 0 where unknown.
    """

    wait: float
    speed: float


def shared_queries(job: Job) -> int | None:
    """The number of queries at the beginning of a job, which every part needs; None where the job cannot be split.

    A job can be split between documents of a matrix of scores, and between classified pairs or texts: their results do
    not depend on each other.
    """
    match job.work:
        case Score(layout=Layout.MATRIX, queries=queries):
            return queries
        case Classify(tokens=False):
            return 0
    return None


def token_shares(tokens: int, workers: Sequence[SplitWorker]) -> list[float]:
    """The tokens that each worker gets, so that all end at the same time; 0 for a worker whose wait is as long."""
    if not all(worker.speed for worker in workers):  # without a speed no end can be computed
        return [tokens / len(workers)] * len(workers)
    candidates = list(workers)
    while True:
        speed = sum(worker.speed for worker in candidates)
        end = (tokens + sum(worker.speed * worker.wait for worker in candidates)) / speed
        late = [worker for worker in candidates if worker.wait >= end]
        if not late:
            return [worker.speed * (end - worker.wait) if worker in candidates else 0.0 for worker in workers]
        candidates = [worker for worker in candidates if worker not in late]


def cut_runs(lengths: Sequence[int], wanted_tokens: Sequence[float]) -> list[range]:
    """Cuts sequences into runs of about so many tokens each; a run may be empty.

    The last run that is to have tokens takes the sequences that are left.
    """
    ends = list(accumulate(lengths))
    total, runs, start = ends[-1], [], 0
    for end in accumulate(wanted_tokens):
        stop = int(np.searchsorted(ends, min(end, total) + 0.5, side="right"))
        runs.append(range(start, max(start, stop)))
        start = runs[-1].stop
    last = next(place for place in reversed(range(len(runs))) if wanted_tokens[place])
    runs[last] = range(runs[last].start, len(lengths))
    return runs


def job_part(job: Job, queries: int, run: range) -> Job:
    """The part of a job that has all its queries and a run of the sequences after them, which `run` counts from 0."""
    places = [*range(queries), *range(queries + run.start, queries + run.stop)]
    offsets = job.tokens.offsets
    ids = b"".join([job.tokens.ids[4 * offsets[place] : 4 * offsets[place + 1]] for place in places])

    def select(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[place] for place in places) if values else ()

    return replace(
        job,
        id=getrandbits(63),
        tokens=RaggedTokens(ids=ids, lengths=select(job.tokens.lengths)),
        prompt_lengths=select(job.prompt_lengths),
        second_segments=select(job.second_segments),
        unattended_tails=select(job.unattended_tails),
    )


def join_results(queries: int, results: Sequence[JobResult]) -> JobResult:
    """The result of the whole job, from those of its parts in order. `queries`: see `shared_queries`.

    Only jobs with a single query are explained, so the winners of the parts follow each other as its scores do.
    """
    rows = max(queries, 1)
    scores = [np.frombuffer(result.scores, dtype="<f4").reshape(rows, -1) for result in results]
    return JobResult(
        scores=np.concatenate(scores, axis=1).tobytes(),
        winners=b"".join(result.winners for result in results),
        similarities=b"".join(result.similarities for result in results),
        queue=max(result.queue for result in results),
        compute=max(result.compute for result in results),
    )
