"""One Execute with jobs of every kind, over the wire of the worker."""

from collections import defaultdict

import grpc
import numpy as np
from tiny import assert_same, encode, score, tokens

from harness.stack import stack
from selvage.worker.v1 import worker_pb2_grpc
from shared import job_codec, result_codec
from shared.jobs import HybridWeights, Job, JobResult
from shared.vectors import OutputKind, ScoringMethod

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


async def execute(channel: grpc.aio.Channel, jobs: list[Job]) -> dict[int, JobResult]:
    """The results of one call, by the job's id."""
    parts: dict[int, result_codec.ResultAssembly] = defaultdict(result_codec.ResultAssembly)
    async for message in worker_pb2_grpc.WorkerServiceStub(channel).Execute(job_codec.jobs_to_pb(jobs)):
        parts[message.job_id].add(message)
    return {identity: assembly.result() for identity, assembly in parts.items()}


async def test_mixed_jobs_of_one_call_equal_the_same_jobs_alone() -> None:
    """Dense at three dimensions, sparse, token rows, all at once, and reranks by three methods."""
    async with stack("random:tiny-bge-m3") as pair, grpc.aio.insecure_channel(pair.worker.address) as channel:
        alone = [(await execute(channel, [job]))[job.id] for job in JOBS]
        together = await execute(channel, JOBS)
    assert sorted(together) == [job.id for job in JOBS]
    for job, expected in zip(JOBS, alone, strict=True):
        assert_same(together[job.id], expected)
    rows = [together[11 + each].dense for each in (0, 1)]
    assert [each.dimensions for each in rows if each is not None] == [32, 64]
    assert np.isfinite(np.frombuffer(together[18].scores, "<f4")).all()
