"""Domain types <-> worker messages, both directions side by side. Nothing here knows gRPC."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

from google.protobuf.duration_pb2 import Duration

from selvage.v1 import model_pb2, vectors_pb2
from selvage.worker.v1 import worker_pb2 as pb
from shared.card import ModelCard
from shared.errors import Internal, InvalidInput, SelvageError, UnsupportedTask, error_classes
from shared.jobs import Encode, Job, JobResult, MaxSim, Rows, Score
from shared.ragged import RaggedTokens
from shared.vectors import DataType, Layout, MultiVectors, OutputKind, ScoringMethod

CHUNK_BYTES = 4 * 1024 * 1024 - 1024
"""Payload of one message: big ones are (de)serialised on the event loop, so none is over 4 MiB."""


def _number(value: IntEnum) -> Any:
    """The stubs want the contract's own enum types; numbers are equal, as a test holds."""
    return int(value)


def duration_to_pb(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def duration_from_pb(message: Duration) -> float:
    return message.ToNanoseconds() / 1e9


def vectors_to_pb(vectors: MultiVectors) -> vectors_pb2.MultiVectors:
    return vectors_pb2.MultiVectors(
        data_type=_number(vectors.data_type),
        dimensions=vectors.dimensions,
        lengths=vectors.lengths,
        data=vectors.data,
        scales=vectors.scales,
    )


def vectors_from_pb(message: vectors_pb2.MultiVectors, field_name: str) -> MultiVectors:
    """Raises InvalidInput, naming `field_name`, where bytes and shape disagree."""
    try:
        return MultiVectors(
            data_type=DataType(message.data_type or DataType.FLOAT32),
            dimensions=message.dimensions,
            lengths=tuple(message.lengths),
            data=message.data,
            scales=message.scales,
        )
    except ValueError as error:
        raise InvalidInput(f"{field_name}: {error}", field=field_name) from error


def job_bytes(job: Job) -> int:
    """About what a job's message holds."""
    given = (job.work.queries, job.work.documents) if isinstance(job.work, MaxSim) else ()
    return len(job.tokens.ids) + sum(len(each.data) for each in given)


def jobs_to_pb(jobs: Iterable[Job]) -> pb.ExecuteRequest:
    request = pb.ExecuteRequest()
    ids = []
    for job in jobs:
        ids.append(job.tokens.ids)
        request.lengths.extend(job.tokens.lengths)
        message = request.jobs.add(
            id=job.id, sequences=len(job.tokens), prompt_lengths=job.prompt_lengths, **_work_to_pb(job.work)
        )
        if job.remaining is not None:
            message.remaining.CopyFrom(duration_to_pb(max(job.remaining, 0.0)))
    request.token_ids = b"".join(ids)
    return request


def jobs_from_pb(request: pb.ExecuteRequest) -> list[Job]:
    """Raises InvalidInput where the flat list and the job table disagree."""
    lengths = tuple(request.lengths)
    if sum(job.sequences for job in request.jobs) != len(lengths):
        raise InvalidInput("jobs claim another number of sequences than lengths has", field="jobs")
    if sum(lengths) * 4 != len(request.token_ids):
        raise InvalidInput("lengths and token_ids disagree", field="token_ids")
    jobs, sequence, token = [], 0, 0
    for index, message in enumerate(request.jobs):
        own = lengths[sequence : sequence + message.sequences]
        ids = request.token_ids[token * 4 : (token + sum(own)) * 4]
        sequence, token = sequence + message.sequences, token + sum(own)
        try:
            jobs.append(_job_from_pb(message, RaggedTokens(ids=ids, lengths=own)))
        except ValueError as error:
            raise InvalidInput(f"jobs[{index}]: {error}", field=f"jobs[{index}]") from error
    return jobs


def _job_from_pb(message: pb.Job, tokens: RaggedTokens) -> Job:
    for name in ("priority", "second_segment_starts", "unattended_tails"):
        if getattr(message, name):
            raise UnsupportedTask(f"this worker does not know {name} yet", field=name)
    if message.prompt_lengths and len(message.prompt_lengths) != len(tokens):
        raise ValueError("prompt_lengths has another length than the job has sequences")
    return Job(
        id=message.id,
        tokens=tokens,
        work=_work_from_pb(message),
        prompt_lengths=tuple(message.prompt_lengths),
        remaining=duration_from_pb(message.remaining) if message.HasField("remaining") else None,
    )


def _work_to_pb(work: Encode | Score | MaxSim) -> dict[str, object]:
    match work:
        case Encode():
            return {
                "encode": pb.EncodeOptions(
                    outputs=[_number(kind) for kind in sorted(work.outputs)],
                    dimensions=work.dimensions,
                    normalize=work.normalize,
                    normalize_tokens=work.normalize_tokens,
                    data_type=_number(work.data_type),
                )
            }
        case Score():
            return {
                "score": pb.ScoreOptions(
                    method=_number(work.method),
                    layout=_number(work.layout),
                    queries=work.queries,
                    unit_rows=work.unit_rows,
                    mean=work.mean,
                )
            }
        case MaxSim():
            return {
                "max_sim": pb.MaxSimOptions(
                    queries=vectors_to_pb(work.queries),
                    documents=vectors_to_pb(work.documents),
                    layout=_number(work.layout),
                    unit_rows=work.unit_rows,
                    mean=work.mean,
                )
            }


def _work_from_pb(message: pb.Job) -> Encode | Score | MaxSim:
    match message.WhichOneof("kind"):
        case "encode":
            encode = message.encode
            return Encode(
                outputs=frozenset(OutputKind(kind) for kind in encode.outputs),
                dimensions=encode.dimensions,
                normalize=encode.normalize,
                normalize_tokens=encode.normalize_tokens,
                data_type=DataType(encode.data_type),
            )
        case "score":
            score = message.score
            return Score(
                method=ScoringMethod(score.method),
                layout=Layout(score.layout),
                queries=score.queries,
                unit_rows=score.unit_rows,
                mean=score.mean,
            )
        case "max_sim":
            given = message.max_sim
            return MaxSim(
                queries=vectors_from_pb(given.queries, "queries"),
                documents=vectors_from_pb(given.documents, "documents"),
                layout=Layout(given.layout),
                unit_rows=given.unit_rows,
                mean=given.mean,
            )
        case _:
            raise ValueError("a job says nothing to do")


def result_to_pb(job_id: int, result: JobResult) -> Iterator[pb.ExecuteResponse]:
    """The messages of a finished job, none larger than 4 MiB."""
    dense, tokens = result.dense, result.tokens
    for kind, data in (
        (pb.CHUNK_KIND_DENSE, dense.data if dense else b""),
        (pb.CHUNK_KIND_DENSE_SCALES, dense.scales if dense else b""),
        (pb.CHUNK_KIND_MULTI_VECTOR, tokens.data if tokens else b""),
        (pb.CHUNK_KIND_MULTI_VECTOR_SCALES, tokens.scales if tokens else b""),
        (pb.CHUNK_KIND_SCORES, result.scores),
    ):
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = pb.Chunk(kind=kind, data=data[start : start + CHUNK_BYTES])
            yield pb.ExecuteResponse(job_id=job_id, chunk=chunk)
    end = pb.JobEnd(
        dense_dimensions=dense.dimensions if dense else 0,
        token_dimensions=tokens.dimensions if tokens else 0,
        row_lengths=result.row_lengths,
        queue=duration_to_pb(result.queue),
        compute=duration_to_pb(result.compute),
    )
    yield pb.ExecuteResponse(job_id=job_id, end=end)


@dataclass(slots=True)
class ResultAssembly:
    """The parts of one job's answer as they come; the other direction of `result_to_pb`. `size` is in bytes."""

    chunks: dict[int, list[bytes]] = field(default_factory=dict)
    end: pb.JobEnd | None = None
    size: int = 0

    def add(self, message: pb.ExecuteResponse) -> None:
        """Takes a part. Raises the job's own error."""
        if message.WhichOneof("part") == "chunk":
            self.chunks.setdefault(message.chunk.kind, []).append(message.chunk.data)
            self.size += len(message.chunk.data)
        elif message.end.HasField("error"):
            raise error_from_pb(message.end.error)
        else:
            self.end = message.end

    def result(self) -> JobResult:
        """All parts put together. Raises Internal where the end is missing."""
        end = self.end
        if end is None:
            raise Internal("the worker ended without an answer")
        return JobResult(
            dense=self._rows(end.dense_dimensions, pb.CHUNK_KIND_DENSE, pb.CHUNK_KIND_DENSE_SCALES),
            tokens=self._rows(end.token_dimensions, pb.CHUNK_KIND_MULTI_VECTOR, pb.CHUNK_KIND_MULTI_VECTOR_SCALES),
            row_lengths=tuple(end.row_lengths),
            scores=self._bytes(pb.CHUNK_KIND_SCORES),
            queue=duration_from_pb(end.queue),
            compute=duration_from_pb(end.compute),
        )

    def _bytes(self, kind: int) -> bytes:
        parts = self.chunks.get(kind, [])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _rows(self, dimensions: int, data: int, scales: int) -> Rows | None:
        if not dimensions:
            return None
        return Rows(dimensions=dimensions, data=self._bytes(data), scales=self._bytes(scales))


def error_to_pb(job_id: int, error: SelvageError) -> pb.ExecuteResponse:
    message = pb.JobError(reason=error.reason, message=error.message, field=error.field)
    if error.retry_after is not None:
        message.retry_after.CopyFrom(duration_to_pb(error.retry_after))
    return pb.ExecuteResponse(job_id=job_id, end=pb.JobEnd(error=message))


def error_from_pb(message: pb.JobError) -> SelvageError:
    kind = error_classes().get(message.reason, Internal)
    retry_after = duration_from_pb(message.retry_after) if message.HasField("retry_after") else None
    return kind(message.message, field=message.field, retry_after=retry_after)


def card_to_pb(card: ModelCard) -> model_pb2.ModelCard:
    return model_pb2.ModelCard(**{each.name: getattr(card, each.name) for each in fields(card)})


def card_from_pb(message: model_pb2.ModelCard) -> ModelCard:
    values = {each.name: getattr(message, each.name) for each in fields(ModelCard)}
    return ModelCard(
        **values
        | {
            "outputs": tuple(map(OutputKind, message.outputs)),
            "methods": tuple(map(ScoringMethod, message.methods)),
            "default_method": ScoringMethod(message.default_method),
            "allowed_dimensions": tuple(message.allowed_dimensions),
            "prompts": dict(message.prompts),
            "special_tokens": dict(message.special_tokens),
        }
    )
