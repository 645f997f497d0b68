"""A worker over real gRPC that computes nothing: it is honest but for one lie about a job, its messages or itself."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np

from harness.random_models import synthetic
from selvage.worker.v1 import worker_pb2 as pb
from shared import value_codec as codec
from shared.card import ModelCard
from shared.errors import Internal, SelvageError
from shared.jobs import Classify, Encode, Job, JobResult, Rows, Score, SparseRows
from shared.link_codec import UnsentOutcome, jobs_from_pb, load_to_pb
from shared.load import Load
from shared.server.options import LINK_VERSION, WORKER_SERVICES, server_options
from shared.value_codec import varint
from shared.vectors import OutputKind, ScoringMethod, Task

WIDTH, LABELS, WEIGHTS = 8, 2, 3
"""Of the card: dimensions of both kinds of rows, and labels. Entries of each sparse vector of an honest worker."""
NAN, INFINITY = np.array([math.nan, math.inf], dtype="<f4")
WILD, TAMED = "\x1b[31m'red'\r\nnext\0\x9b\u202e.", r"\?\[31m'red'  next\?\?\?\."
"""What takes hold of a terminal, and the pattern of what is left of it."""
VOCABULARY = 1000
TOKENIZER = synthetic.tokenizer(VOCABULARY).content


def honest_card(name: str) -> ModelCard:
    return ModelCard(
        id=name,
        family="bert",
        outputs=tuple(OutputKind),
        methods=(ScoringMethod.DENSE, ScoringMethod.LATE_INTERACTION),
        default_method=ScoringMethod.DENSE,
        pooling="mean",
        dimensions=WIDTH,
        multi_vector_dimensions=WIDTH,
        normalizes=True,
        max_tokens=100,
        vocabulary_size=VOCABULARY,
        dtype="float32",
        device="cpu",
        attention="",
        linear="",
        fingerprint=f"that of {name}",
        tasks=tuple(Task),
        sparse_head="lexical",
        labels=tuple(f"label {number}" for number in range(LABELS)),
    )


def halves(count: int) -> bytes:
    return np.full(count, 0.5, dtype="<f4").tobytes()


def rows(count: int, width: int = WIDTH) -> Rows:
    return Rows(dimensions=width, data=halves(count * width))


def honest(job: Job) -> JobResult:
    """What a worker may answer: a half everywhere, and as many numbers as were asked for."""
    lengths, count = job.tokens.lengths, len(job.tokens)
    match job.work:
        case Encode() as work:
            several = OutputKind.MULTI_VECTOR in work.outputs
            ids = np.tile(np.arange(5, 5 + WEIGHTS, dtype="<i4"), count)
            sparse = SparseRows(lengths=(WEIGHTS,) * count, indices=ids.tobytes(), values=halves(len(ids)))
            return JobResult(
                dense=rows(count) if OutputKind.DENSE in work.outputs else None,
                sparse=sparse if OutputKind.SPARSE in work.outputs else None,
                tokens=rows(job.tokens.total) if several else None,
                row_lengths=lengths if several else (),
                token_ids=job.tokens.ids if work.token_ids else b"",
            )
        case Classify():
            return JobResult(scores=halves(count * LABELS))
        case Score() as work:
            documents = count - work.queries
            matches = documents * lengths[0] * work.explain
            return JobResult(
                scores=halves(work.queries * documents), winners=bytes(4 * matches), similarities=halves(matches)
            )
    raise AssertionError(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """`asked`: the call that gets to hear it. `result` changes an honest result; `messages` stand in place of those
    that an honest worker sends for a job. `told`: what the frontend says of it."""

    asked: str = "dense"
    told: str = ""
    result: Callable[[Job, JobResult], JobResult | SelvageError] | None = None
    messages: Callable[[Job], Iterator[bytes]] | None = None


def with_number(data: bytes | memoryview, number: float) -> bytes:
    """The same numbers, the second of them another."""
    numbers = np.frombuffer(data, dtype="<f4").copy()
    numbers[1] = number
    return numbers.tobytes()


def changed(**values: Any) -> Callable[[Job, JobResult], JobResult]:
    return lambda _, result: replace(result, **values)


def within(part: str, number: float) -> Callable[[Job, JobResult], JobResult]:
    """A number of one part of the result, of its rows or of its bytes."""

    def change(_: Job, result: JobResult) -> JobResult:
        own: Any = getattr(result, part)
        field = "data" if isinstance(own, Rows) else "values"
        spoilt = with_number(own if isinstance(own, bytes) else getattr(own, field), number)
        return replace(result, **{part: spoilt if isinstance(own, bytes) else replace(own, **{field: spoilt})})

    return change


def message(job: Job, outcome: JobResult | SelvageError) -> bytes:
    """One with a job's outcome."""
    response = pb.AttachResponse()
    UnsentOutcome(job.id, outcome).add_part(response, 1 << 26)
    return response.SerializeToString()


def chunk(job: Job, kind: int, data: bytes) -> bytes:
    part = pb.AnswerPart(job_id=job.id, chunks=[pb.Chunk(kind=kind, data=data)])  # type: ignore[arg-type]
    return pb.AttachResponse(answers=[part]).SerializeToString()


LESS, MORE = "it sent less than was asked for", "it sent more than was asked for"
FINITE, ROWS = "numbers that are not finite", "other numbers of token rows than were asked for"
LIES = {
    "half of the vectors": Lie(told=LESS, result=changed(dense=rows(1))),
    "a vector too many": Lie(told=MORE, result=changed(dense=rows(4))),
    "vectors of other dimensions": Lie(told="other dimensions", result=changed(dense=rows(6, width=4))),
    "NaN in a vector": Lie(told=FINITE, result=within("dense", NAN)),
    "scores for vectors": Lie(told="a kind of numbers that was not asked for", result=changed(scores=halves(3))),
    "rows of fewer texts": Lie(
        asked="tokens", told=ROWS, result=lambda _, result: replace(result, row_lengths=result.row_lengths[1:])
    ),
    "NaN in a token row": Lie(asked="tokens", told=FINITE, result=within("tokens", NAN)),
    "a sparse weight that is NaN": Lie(asked="sparse", told=FINITE, result=within("sparse", NAN)),
    "a score that is infinite": Lie(asked="explained", told=FINITE, result=within("scores", INFINITY)),
    "too few winners": Lie(
        asked="explained", told=LESS, result=lambda _, result: replace(result, winners=result.winners[:-4])
    ),
    "logits of a label too many": Lie(asked="classify", told=MORE, result=changed(scores=halves(3 * (LABELS + 1)))),
    "an error of a million letters": Lie(told=r"failed: ü{500}\.\.\.", result=lambda *_: Internal("ü" * 10**6)),
    "an error that controls terminals": Lie(told="failed: " + TAMED, result=lambda *_: Internal(WILD, field=WILD)),
    "a piece of an unknown kind": Lie(told="kind 77", messages=lambda job: iter([chunk(job, 77, b"data")])),
    "pieces without end": Lie(
        told=MORE, messages=lambda job: (chunk(job, pb.CHUNK_KIND_DENSE, halves(2**18)) for _ in range(100))
    ),
}
"""Lies about one job, which fails. Those of the next table end the link, and are told to whoever waits for a job."""
ENDING_LIES = {
    "what is no message": Lie(told="no message of the link", messages=lambda _: iter([b"\xff" * 1000])),
    "a message of three million bytes": Lie(
        told="too many bytes",
        messages=lambda _: iter([varint(9 << 3 | 2) + varint(3 * 10**6) + bytes(3 * 10**6)]),
    ),
}
HARMLESS = {
    "answers to jobs that nobody sent": Lie(
        messages=lambda job: iter([message(replace(job, id=5), honest(job)), message(job, honest(job))])
    ),
    "an answer twice": Lie(messages=lambda job: iter([message(job, honest(job))] * 2)),
}
"""What is sent beside right answers, and must not spoil them."""


class LyingWorker:
    """Answers raw bytes, since not all that it sends is a message. `attached`: how often a frontend has attached.

    `load`: what it tells of its load. `tokenizer`: its only file. `welcome`: changes to the first message of the link.
    """

    def __init__(self, name: str, lie: Lie | None = None, *, tokenizer: bytes = TOKENIZER, **welcome: Any) -> None:
        self.name, self._lie, self.attached = name, lie, 0
        self.load = Load()
        self.description = pb.DescribeResponse(card=codec.card_to_pb(honest_card(name)), queued_tokens=10**6)
        self._tokenizer = tokenizer
        usual = {"version": LINK_VERSION, "instance": "the only one", "fingerprint": self.description.card.fingerprint}
        self._welcome = pb.Welcome(**usual | welcome)
        self.address = ""  # once it has started

    async def start(self) -> None:
        """Makes the server, which belongs to the running event loop."""
        self._server = grpc.aio.server(options=server_options(connection_age=False))
        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
            "GetTokenizer": grpc.unary_stream_rpc_method_handler(self._get_tokenizer),
            "Attach": grpc.stream_stream_rpc_method_handler(self._attach),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(WORKER_SERVICES[0], methods),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _describe(self, request: bytes, context: Any) -> bytes:
        return self.description.SerializeToString()

    async def _get_tokenizer(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=self._tokenizer).SerializeToString()

    async def _attach(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await anext(requests)
        self.attached += 1
        writing = asyncio.Lock()
        welcome = pb.AttachResponse(welcome=self._welcome, load=load_to_pb(self.load))
        await context.write(welcome.SerializeToString())
        beating = asyncio.create_task(self._beat(context, writing))
        try:
            async for raw in requests:
                for _, job in jobs_from_pb(pb.AttachRequest.FromString(raw)):
                    assert isinstance(job, Job)
                    for reply in self._replies(job):
                        async with writing:
                            await context.write(reply)
        finally:
            beating.cancel()

    def _replies(self, job: Job) -> Iterator[bytes]:
        if self._lie is not None and self._lie.messages is not None:
            return self._lie.messages(job)
        result = honest(job)
        if self._lie is not None and self._lie.result is not None:
            return iter([message(job, self._lie.result(job, result))])
        return iter([message(job, result)])

    async def _beat(self, context: Any, writing: asyncio.Lock) -> None:
        while True:
            await asyncio.sleep(1)
            async with writing:
                await context.write(pb.AttachResponse(load=load_to_pb(self.load)).SerializeToString())


def never_serving() -> list[tuple[LyingWorker, str]]:
    """Workers that no frontend may serve, and what it says of each."""
    unknown = LyingWorker("unknown output")
    unknown.description.card.outputs[:] = [99]  # type: ignore[list-item]  # it is none of the contract
    later, ours = LINK_VERSION + 1, LINK_VERSION
    return [
        (LyingWorker("broken tokenizer", tokenizer=b"[" * 10**6), "its tokenizer cannot be read"),
        (LyingWorker("wrong welcome", fingerprint="that of another model"), "another model's fingerprint"),
        (
            LyingWorker("later version", version=later),
            f"it speaks version {later} of the link, this frontend version {ours}",
        ),
        (unknown, "its card is not understood"),
    ]
