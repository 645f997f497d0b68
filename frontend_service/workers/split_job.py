"""A large rerank in parts, a worker each, and its scores put together again. Knows no workers; numpy only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import getrandbits

import numpy as np

from shared.jobs import Classify, Job, JobResult, Score
from shared.ragged import RaggedTokens
from shared.vectors import Layout

LEAST_TOKENS = 4096
"""Of a part: less is done sooner than it is worth another worker's while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWorker:
    """What a part has to expect there: seconds until its turn, tokens a second."""

    wait: float
    speed: float


def shared_head(job: Job) -> int | None:
    """How many sequences every part needs, its queries; None for a job that is not split.

    Documents of a matrix of scores, and pairs or texts that are classified, know nothing of each other.
    """
    match job.work:
        case Score(layout=Layout.MATRIX, queries=queries):
            return queries
        case Classify(tokens=False):
            return 0
    return None


def shares(tokens: int, workers: Sequence[SplitWorker]) -> list[float]:
    """How much of so many tokens each worker gets, so that all are done at once. 0 for one that is busy until then."""
    if not all(each.speed for each in workers):  # one has not told yet: nothing is known of the time
        return [tokens / len(workers)] * len(workers)
    able = list(workers)
    while True:
        end = (tokens + sum(each.speed * each.wait for each in able)) / sum(each.speed for each in able)
        late = [each for each in able if each.wait >= end]
        if not late:
            return [each.speed * (end - each.wait) if each in able else 0.0 for each in workers]
        able = [each for each in able if each not in late]


def cut(lengths: Sequence[int], wanted: Sequence[float]) -> list[range]:
    """Sequences in as many runs, of about so many tokens each; a run that would be too short is given to another."""
    ends = list(accumulate(lengths))
    total, found, start = ends[-1], [], 0
    for most in accumulate(wanted):
        stop = int(np.searchsorted(ends, min(most, total) + 0.5, side="right"))
        found.append(range(start, max(start, stop)))
        start = found[-1].stop
    last = next(place for place in reversed(range(len(found))) if wanted[place])
    found[last] = range(found[last].start, len(lengths))
    return found


def part(job: Job, head: int, run: range) -> Job:
    """The same for some documents: `run` counts behind the head."""
    chosen = [*range(head), *range(head + run.start, head + run.stop)]
    offsets = job.tokens.offsets
    ids = b"".join([job.tokens.ids[4 * offsets[each] : 4 * offsets[each + 1]] for each in chosen])

    def of(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[each] for each in chosen) if values else ()

    return replace(
        job,
        id=getrandbits(63),
        tokens=RaggedTokens(ids=ids, lengths=of(job.tokens.lengths)),
        prompt_lengths=of(job.prompt_lengths),
        second_segments=of(job.second_segments),
        unattended_tails=of(job.unattended_tails),
    )


def joined(head: int, results: Sequence[JobResult]) -> JobResult:
    """Of parts in their order. Explanations have one query, so they follow each other like its scores."""
    rows = max(head, 1)
    scores = [np.frombuffer(each.scores, dtype="<f4").reshape(rows, -1) for each in results]
    return JobResult(
        scores=np.concatenate(scores, axis=1).tobytes(),
        winners=b"".join(each.winners for each in results),
        similarities=b"".join(each.similarities for each in results),
        queue=max(each.queue for each in results),
        compute=max(each.compute for each in results),
    )
