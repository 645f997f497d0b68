"""Ways in which a worker lies: about a job's result, in its messages, of itself. Each is told of an honest one."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import Internal, SelvageError
from shared.jobs import Classify, Encode, Job, JobResult, MaxSim, Rows, Score, SparseRows
from shared.link_codec import UnsentOutcome, jobs_from_pb
from shared.vectors import DataType, OutputKind
from shared.wire import varint

WIDTH, LABELS, WEIGHTS = 8, 2, 3
"""Of the card: dimensions of both kinds of rows, and labels. Entries of each sparse vector of an honest worker."""
NAN, INFINITY = np.array([math.nan, math.inf], dtype="<f4")
WILD, TAMED = "\x1b[31m'red'\r\nnext\0\x9b\u202e.", r"\?\[31m'red'  next\?\?\?\."
"""What takes hold of a terminal, and the pattern of what is left of it."""
TYPES = {DataType.FLOAT32: "<f4", DataType.FLOAT16: "<f2", DataType.INT8: "i1"}


def job_of(message: pb.AttachRequest, index: int) -> Job:
    """A job of a message."""
    job = list(jobs_from_pb(message))[index][1]
    assert isinstance(job, Job)
    return job


def honest(job: Job) -> JobResult:
    """What a worker may answer: a half everywhere, and as many numbers as were asked for."""
    lengths, count = job.tokens.lengths, len(job.tokens)
    match job.work:
        case Encode() as work:
            dense = sparse = tokens = None
            if OutputKind.DENSE in work.outputs:
                dense = rows(count, work.data_type)
            if OutputKind.MULTI_VECTOR in work.outputs:
                tokens = rows(job.tokens.total, work.data_type)
            if OutputKind.SPARSE in work.outputs:
                ids = np.tile(np.arange(5, 5 + WEIGHTS, dtype="<i4"), count)
                sparse = SparseRows(lengths=(WEIGHTS,) * count, indices=ids.tobytes(), values=halves(len(ids)))
            return JobResult(
                dense=dense,
                sparse=sparse,
                tokens=tokens,
                row_lengths=lengths if tokens else (),
                token_ids=job.tokens.ids if work.token_ids else b"",
            )
        case Classify(tokens=True):
            return JobResult(scores=halves(job.tokens.total * LABELS), row_lengths=lengths)
        case Classify():
            return JobResult(scores=halves(count * LABELS))
        case Score() as work:
            documents = count - work.queries
            matches = documents * lengths[0] * work.explain
            return JobResult(
                scores=halves(work.queries * documents), winners=bytes(4 * matches), similarities=halves(matches)
            )
        case MaxSim() as work:
            assert work.queries is not None
            documents = len(work.documents.lengths)
            matches = work.queries.rows * documents * work.explain
            return JobResult(
                scores=halves(len(work.queries.lengths) * documents),
                winners=bytes(4 * matches),
                similarities=halves(matches),
            )


def halves(count: int) -> bytes:
    return np.full(count, 0.5, dtype="<f4").tobytes()


def rows(count: int, data_type: DataType = DataType.FLOAT32, width: int = WIDTH) -> Rows:
    data = np.full((count, width), 1 if data_type is DataType.INT8 else 0.5, dtype=TYPES[data_type])
    return Rows(dimensions=width, data=data.tobytes(), scales=halves(count) if data_type is DataType.INT8 else b"")


def with_number(data: bytes | memoryview, number: float, place: int = 1, kind: str = "<f4") -> bytes:
    """The same numbers, one of them another."""
    numbers = np.frombuffer(data, dtype=kind).copy()
    numbers[place] = number
    return numbers.tobytes()


def dense(change: Callable[[Rows], Rows | None]) -> Callable[[Job, JobResult], JobResult]:
    return lambda _, result: replace(result, dense=change(present(result.dense)))


def tokens(change: Callable[[Rows], Rows | None]) -> Callable[[Job, JobResult], JobResult]:
    return lambda _, result: replace(result, tokens=change(present(result.tokens)))


def sparse(change: Callable[[SparseRows], SparseRows | None]) -> Callable[[Job, JobResult], JobResult]:
    return lambda _, result: replace(result, sparse=change(present(result.sparse)))


def present(part: Any) -> Any:
    assert part is not None
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """`asked`: the call that gets to hear it. `result` changes an honest result; `messages` stand in place of those
    that an honest worker sends for a job. `told`: what the frontend says of it."""

    asked: str
    told: str
    result: Callable[[Job, JobResult], JobResult | SelvageError] | None = None
    messages: Callable[[Job], Iterator[bytes]] | None = None


def about(asked: str, told: str, change: Callable[[Job, JobResult], JobResult | SelvageError]) -> Lie:
    return Lie(asked=asked, told=told, result=change)


def instead(asked: str, told: str, messages: Callable[[Job], Iterator[bytes]]) -> Lie:
    return Lie(asked=asked, told=told, messages=messages)


def changed(**values: Any) -> Callable[[Job, JobResult], JobResult]:
    return lambda _, result: replace(result, **values)


def message(job: Job, outcome: JobResult | SelvageError) -> bytes:
    """One with a job's outcome."""
    response = pb.AttachResponse()
    UnsentOutcome(job.id, outcome).add_part(response, 1 << 26)
    return response.SerializeToString()


def nested(field: int, data: bytes) -> bytes:
    """A field of bytes."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def chunk(job: Job, kind: int, data: bytes) -> bytes:
    part = pb.AnswerPart(job_id=job.id, chunks=[pb.Chunk(kind=kind, data=data)])  # type: ignore[arg-type]
    return pb.AttachResponse(answers=[part]).SerializeToString()


LESS, MORE = "it sent less than was asked for", "it sent more than was asked for"
FINITE, ROWS = "numbers that are not finite", "other numbers of token rows than were asked for"
LIES = {
    "half of the vectors": about("dense", LESS, dense(lambda vectors: rows(1))),
    "a vector too many": about("dense", MORE, dense(lambda vectors: rows(4))),
    "vectors of other dimensions": about("dense", "other dimensions", dense(lambda vectors: rows(3, width=4))),
    "a vector without its last byte": about("dense", LESS, dense(lambda v: replace(v, data=v.data[:-1]))),
    "no vectors": about("dense", "other dimensions", changed(dense=None)),
    "other dimensions in as many bytes": about("dense", "other dimensions", dense(lambda v: replace(v, dimensions=4))),
    "NaN in a vector": about("dense", FINITE, dense(lambda v: replace(v, data=with_number(v.data, NAN)))),
    "infinity in a vector": about("dense", FINITE, dense(lambda v: replace(v, data=with_number(v.data, INFINITY)))),
    "NaN in half precision": about(
        "float16", FINITE, dense(lambda v: replace(v, data=with_number(v.data, NAN, kind="<f2")))
    ),
    "vectors without scales": about("int8", LESS, dense(lambda v: replace(v, scales=b""))),
    "a scale that is NaN": about("int8", FINITE, dense(lambda v: replace(v, scales=with_number(v.scales, NAN)))),
    "scores for vectors": about("dense", "a kind of numbers that was not asked for", changed(scores=halves(3))),
    "rows of fewer texts": about("tokens", ROWS, lambda _, result: replace(result, row_lengths=result.row_lengths[1:])),
    "numbers of rows for dense vectors": about("dense", ROWS, changed(row_lengths=(1,))),
    "NaN in a token row": about("tokens", FINITE, tokens(lambda v: replace(v, data=with_number(v.data, NAN)))),
    "fewer token rows than told": about("tokens", LESS, tokens(lambda v: replace(v, data=v.data[: -4 * WIDTH]))),
    "more token rows than told": about("tokens", MORE, lambda job, r: replace(r, tokens=rows(job.tokens.total + 1))),
    "no token ids": about("tokens", LESS, changed(token_ids=b"")),
    "a sparse weight that is NaN": about(
        "sparse", FINITE, sparse(lambda v: replace(v, values=with_number(v.values, NAN)))
    ),
    "sparse vectors of fewer texts": about(
        "sparse", "other sparse vectors", sparse(lambda v: replace(v, lengths=v.lengths[1:]))
    ),
    "no scores": about("rerank", LESS, changed(scores=b"")),
    "four scores for two documents": about("rerank", MORE, changed(scores=halves(4))),
    "a score that is NaN": about("rerank", FINITE, lambda _, r: replace(r, scores=with_number(r.scores, NAN))),
    "too few winners": about("explained", LESS, lambda _, r: replace(r, winners=r.winners[:-4])),
    "a similarity that is infinite": about(
        "explained", FINITE, lambda _, r: replace(r, similarities=with_number(r.similarities, INFINITY))
    ),
    "logits of a label too many": about("classify", MORE, changed(scores=halves(3 * (LABELS + 1)))),
    "logits of fewer tokens": about(
        "classify_tokens", MORE, lambda _, r: replace(r, row_lengths=(1, *r.row_lengths[1:]))
    ),
    "an error of a million letters": about("dense", r"failed: ü{500}\.\.\.", lambda *_: Internal("ü" * 10**6)),
    "an error that controls terminals": about("dense", "failed: " + TAMED, lambda *_: Internal(WILD, field=WILD)),
    "a piece of an unknown kind": instead("dense", "kind 77", lambda job: iter([chunk(job, 77, b"data")])),
    "pieces without end": instead(
        "dense", MORE, lambda job: (chunk(job, pb.CHUNK_KIND_DENSE, halves(2**18)) for _ in range(100))
    ),
}
"""Lies about one job, which fails. Those of the next table end the link, and are told to whoever waits for a job."""
ENDING_LIES = {
    "what is no message": instead("dense", "no message of the link", lambda _: iter([b"\xff" * 1000])),
    "a message of three million bytes": instead(
        "dense", "too many bytes", lambda _: iter([nested(9, bytes(3 * 10**6))])
    ),
    "a number of a million bytes": instead(
        "dense", "no message of the link", lambda _: iter([b"\x12\xff\xff\x7f\x08" + b"\x80" * 10**6])
    ),
}
HARMLESS = {
    "answers to jobs that nobody sent": lambda job: iter(
        [message(replace(job, id=5), honest(job)), message(job, honest(job))]
    ),
    "an answer twice": lambda job: iter([message(job, honest(job))] * 2),
}
"""What is sent beside right answers, and must not spoil them."""
