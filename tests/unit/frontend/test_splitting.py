"""A rerank in parts has the scores of the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend_service.workers.split_job import (
    SplitWorker,
    cut_runs,
    job_part,
    join_results,
    shared_queries,
    token_shares,
)
from shared.jobs import Classify, Encode, Job, JobResult, Score
from shared.ragged import RaggedTokens
from shared.vectors import Layout, OutputKind, ScoringMethod

SPEEDS = st.lists(st.tuples(st.floats(0, 10), st.floats(10, 1000)), min_size=1, max_size=5)


def score(queries: int, layout: Layout = Layout.MATRIX, *, explain: bool = False) -> Score:
    late = ScoringMethod.LATE_INTERACTION
    return Score(method=late, layout=layout, queries=queries, unit_rows=True, mean=False, explain=explain)


def compute(job: Job) -> JobResult:
    """Each score from the ids of its query and document, and the place of neither."""
    sequences = np.split(np.frombuffer(job.tokens.ids, dtype="<i4"), job.tokens.offsets[1:-1])
    queries = job.work.queries if isinstance(job.work, Score) else 0
    sums = np.array(
        [each.sum() + tail for each, tail in zip(sequences, job.unattended_tails, strict=True)], dtype="<f4"
    )
    scores = np.add.outer(sums[:queries] * 100, sums[queries:]) if queries else sums
    winners = np.concatenate([each[:1] for each in sequences[queries:]]).astype("<i4").tobytes()
    return JobResult(
        scores=scores.tobytes(), winners=winners, similarities=winners, queue=1.0, compute=float(len(sums))
    )


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=3, max_size=20),
    st.integers(0, 2),
    st.lists(st.floats(0, 30), min_size=1, max_size=4).filter(any),
)
def test_parts_joined_are_the_whole(texts: list[list[int]], head: int, wanted: list[float]) -> None:
    """Whatever the cuts, for pairs as well as for a matrix of several queries."""
    work = score(head) if head else Classify()
    tails = tuple(number % 3 for number in range(len(texts)))
    job = Job(id=1, work=work, tokens=RaggedTokens.of(texts), unattended_tails=tails, key="k", remaining=3.0)
    assert shared_queries(job) == head
    runs = [run for run in cut_runs(job.tokens.lengths[head:], wanted) if run]
    assert [each for run in runs for each in run] == list(range(len(texts) - head))
    parts = [job_part(job, head, run) for run in runs]
    assert len({each.id for each in (job, *parts)}) == len(parts) + 1
    assert all((each.key, each.remaining) == ("k", 3.0) for each in parts)
    found, expected = join_results(head, [compute(each) for each in parts]), compute(job)
    assert (found.scores, found.winners, found.similarities) == (
        expected.scores,
        expected.winners,
        expected.similarities,
    )
    assert (found.queue, found.compute) == (1.0, max(len(run) for run in runs) + head)


@given(st.integers(1, 100_000), SPEEDS)
def test_shares_end_at_the_same_time(tokens: int, told: list[tuple[float, float]]) -> None:
    """But for workers that are busy for longer: they get nothing."""
    workers = [SplitWorker(wait=wait, speed=speed) for wait, speed in told]
    found = token_shares(tokens, workers)
    assert sum(found) == pytest.approx(tokens)
    ends = [each.wait + share / each.speed for each, share in zip(workers, found, strict=True) if share]
    assert max(ends) == pytest.approx(min(ends))
    assert all(each.wait >= max(ends) - 1e-6 for each, share in zip(workers, found, strict=True) if not share)


def test_workers_of_unknown_speed_share_evenly() -> None:
    """They have just started."""
    assert token_shares(
        90, [SplitWorker(wait=0, speed=0), SplitWorker(wait=0, speed=5), SplitWorker(wait=0, speed=0)]
    ) == [
        30,
        30,
        30,
    ]


def test_what_belongs_together_is_not_split() -> None:
    """Vectors of an Embed, pairs of a Score, labels of tokens."""
    works = [
        Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True),
        score(2, Layout.PAIRS),
        Classify(tokens=True),
    ]
    assert [shared_queries(Job(id=1, work=work)) for work in works] == [None] * 3
