"""One message with jobs of every kind, over the link of the worker."""

import numpy as np

from harness.stack import Stack
from shared.jobs import HybridWeights, Job
from shared.vectors import OutputKind, ScoringMethod
from support.references import attached
from support.tiny import assert_same, encode, score, tokens

DENSE, SPARSE, MULTI = OutputKind.DENSE, OutputKind.SPARSE, OutputKind.MULTI_VECTOR
WEIGHTS = HybridWeights(dense=0.4, sparse=0.2, multi_vector=0.4)
WORKS = [
    (encode(DENSE, dimensions=8), tokens(5, 40, 9, seed=1)),
    (encode(DENSE, dimensions=32), tokens(9, 9, seed=2)),
    (encode(DENSE), tokens(1, 300, 17, seed=3)),
    (encode(SPARSE), tokens(20, 3, seed=4)),
    (encode(SPARSE, sparse_top_k=4), tokens(20, 60, seed=5)),
    (encode(MULTI, token_ids=True), tokens(2, 33, seed=6)),
    (encode(DENSE, SPARSE, MULTI), tokens(12, 7, seed=7)),
    (score(ScoringMethod.LATE_INTERACTION, 1, mean=True), tokens(6, 30, 2, 44, seed=8)),
    (score(ScoringMethod.HYBRID, 1, weights=WEIGHTS), tokens(6, 30, 2, 44, seed=8)),
    (score(ScoringMethod.SPARSE, 2), tokens(6, 30, 2, 44, seed=9)),
]
JOBS = [Job(id=10 + index, work=work, tokens=ids) for index, (work, ids) in enumerate(WORKS)]


async def test_mixed_jobs_of_one_message_equal_the_same_jobs_alone(bge: Stack) -> None:
    """Dense at three dimensions, sparse, token rows, all at once, and reranks by three methods."""
    async with attached(bge.worker.address) as link:
        alone = []
        for job in JOBS:
            await link.ask(job)
            alone.append((await link.answers(1))[job.id])
        await link.ask(*JOBS)
        together = await link.answers(len(JOBS))
    assert sorted(together) == [job.id for job in JOBS]
    for job, expected in zip(JOBS, alone, strict=True):
        assert_same(together[job.id], expected)
    rows = [together[11 + each].dense for each in (0, 1)]
    assert [each.dimensions for each in rows if each is not None] == [32, 64]
    assert np.isfinite(np.frombuffer(together[18].scores, "<f4")).all()
