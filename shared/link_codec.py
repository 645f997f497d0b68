"""Messages of the link between frontend and worker <-> domain types, both directions side by side. Knows no gRPC.

A piece of a large answer is written at the head of a message and read from there. protobuf copies bytes three times
to write them and twice to read them. A message is fields end to end, so a piece may stand before what protobuf writes:
it is copied once, as the message is joined, and read where it lies. What protobuf makes of the whole message is the
same. Format: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from selvage.v1 import ranking_pb2
from selvage.worker.v1 import worker_pb2 as pb
from shared.caller import valid_traceparent
from shared.errors import Internal, InvalidInput, LimitExceeded, SelvageError
from shared.jobs import (
    MESSAGE_SEQUENCES,
    Classify,
    Encode,
    HybridWeights,
    Job,
    JobResult,
    MaxSim,
    PackedBytes,
    Priority,
    RaggedTokens,
    Rows,
    Score,
    SparseRows,
    TokenRanges,
    Work,
)
from shared.load import Backlog, Load
from shared.value_codec import (
    BYTES,
    VARINT,
    duration_from_pb,
    duration_to_pb,
    error_from_pb,
    error_to_pb,
    number,
    pooling_from_pb,
    pooling_to_pb,
    read_varint,
    varint,
    vectors_from_pb,
    vectors_to_pb,
)
from shared.vectors import DataType, InputType, Layout, OutputKind, ScoringMethod

MESSAGE_JOBS = 4096
"""Most jobs in one message."""
RANGE_BYTES = 6
"""Bytes of a token range in a message: its start and its stop, as varints."""
FRAME_BYTES, CHUNK_BYTES = 96, 16
"""Most bytes that a message holds beside an outcome's numbers and texts: for the outcome, and for each chunk of it."""
ANSWER = varint(pb.AttachResponse.ANSWERS_FIELD_NUMBER << 3 | BYTES)
JOB = varint(pb.AnswerPart.JOB_ID_FIELD_NUMBER << 3 | VARINT)
CHUNK = varint(pb.AnswerPart.CHUNKS_FIELD_NUMBER << 3 | BYTES)
KIND = varint(pb.Chunk.KIND_FIELD_NUMBER << 3 | VARINT)
DATA = varint(pb.Chunk.DATA_FIELD_NUMBER << 3 | BYTES)


def job_bytes(job: Job) -> int:
    """Approximate size of a job's message in bytes."""
    vectors = (job.work.queries, job.work.documents) if isinstance(job.work, MaxSim) else ()
    ranges = 0 if job.ranges is None else RANGE_BYTES * len(job.ranges)
    return len(job.tokens.ids) + ranges + sum(len(side.data) for side in vectors if side is not None)


def jobs_to_pb(jobs: Iterable[Job], fingerprint: str) -> pb.AttachRequest:
    """Writes jobs into one message. `fingerprint`: that of the worker's model, over which a job's own may lie."""
    request = pb.AttachRequest(fingerprint=fingerprint)
    ids = []
    for job in jobs:
        ids.append(job.tokens.ids)
        request.lengths.extend(job.tokens.lengths)
        message = request.jobs.add(
            id=job.id,
            sequences=len(job.tokens),
            priority=number(job.priority),
            key=job.key,
            request_id=job.request_id,
            traceparent=job.traceparent,
            prompt_lengths=job.prompt_lengths,
            second_segment_starts=job.second_segments,
            unattended_tails=job.unattended_tails,
            **_ranges_to_pb(job.ranges),
            fingerprint="" if job.model == fingerprint else job.model,
            **_work_to_pb(job.work),
        )
        if job.remaining is not None:
            message.remaining.CopyFrom(duration_to_pb(max(job.remaining, 0.0)))
    request.token_ids = b"".join(ids)
    return request


def jobs_from_pb(request: pb.AttachRequest) -> Iterator[tuple[int, Job | SelvageError]]:
    """Reads each job with its id, or the error of that job alone.

    Raises InvalidInput if the token ids and the table of jobs disagree: then no job can be told from its neighbours.
    """
    if len(request.jobs) > MESSAGE_JOBS:
        raise LimitExceeded(f"a message has {len(request.jobs)} jobs, the limit is {MESSAGE_JOBS}", field="jobs")
    if len(request.lengths) > MESSAGE_SEQUENCES:
        raise LimitExceeded(
            f"a message has {len(request.lengths)} sequences, the limit is {MESSAGE_SEQUENCES}", field="lengths"
        )
    lengths = tuple(request.lengths)
    counts = [job.sequences for job in request.jobs]
    if min(lengths, default=1) < 1 or min(counts, default=0) < 0:
        raise InvalidInput("a length is below 1, or a job has less than no sequences", field="lengths")
    if sum(counts) != len(lengths):
        raise InvalidInput("jobs claim another number of sequences than lengths has", field="jobs")
    if sum(lengths) * 4 != len(request.token_ids):
        raise InvalidInput("lengths and token_ids disagree", field="token_ids")
    return _jobs(request, lengths)


def _jobs(request: pb.AttachRequest, lengths: tuple[int, ...]) -> Iterator[tuple[int, Job | SelvageError]]:
    sequence, token, ids = 0, 0, request.token_ids
    encode_options, encode = pb.EncodeOptions(), None  # those of the job before, which most jobs have too
    for index, message in enumerate(request.jobs):
        job_lengths = lengths[sequence : sequence + message.sequences]
        end = token + sum(job_lengths)
        tokens = RaggedTokens(ids=ids[token * 4 : end * 4], lengths=job_lengths)
        sequence, token = sequence + message.sequences, end
        try:
            if encode is None or not message.HasField("encode") or message.encode != encode_options:
                work = _work_from_pb(message)
                encode_options, encode = message.encode, work if isinstance(work, Encode) else None
            yield message.id, _job_from_pb(message, tokens, encode or work)
        except SelvageError as error:
            yield message.id, error
        except ValueError as error:
            yield message.id, InvalidInput(f"jobs[{index}]: {error}", field=f"jobs[{index}]")


def _job_from_pb(message: pb.Job, tokens: RaggedTokens, work: Work) -> Job:
    return Job(
        id=message.id,
        tokens=tokens,
        work=work,
        prompt_lengths=_entries(message, "prompt_lengths", tokens),
        second_segments=_entries(message, "second_segment_starts", tokens),
        # Attention needs at least one token outside of the tail.
        unattended_tails=_entries(message, "unattended_tails", tokens, remain=1),
        ranges=_ranges_from_pb(message, tokens),
        remaining=duration_from_pb(message.remaining) if message.HasField("remaining") else None,
        priority=Priority(message.priority or Priority.DEFAULT),
        key=message.key,
        request_id=message.request_id,
        traceparent=valid_traceparent(message.traceparent) if message.traceparent else "",
        model=message.fingerprint,
    )


def _entries(message: pb.Job, name: str, tokens: RaggedTokens, remain: int = 0) -> tuple[int, ...]:
    """Reads a number of tokens for each sequence, of which so many must `remain`; empty where none is given."""
    entries = tuple(getattr(message, name))
    if not entries:
        return entries
    if len(entries) != len(tokens):
        raise ValueError(f"{name} has another length than the job has sequences")
    if any(not 0 <= entry <= length - remain for entry, length in zip(entries, tokens.lengths, strict=True)):
        raise ValueError(f"{name} has an entry outside its sequence")
    return entries


def _ranges_to_pb(ranges: TokenRanges | None) -> dict[str, tuple[int, ...]]:
    if ranges is None:
        return {}
    return {"range_counts": ranges.counts, "range_starts": ranges.starts, "range_stops": ranges.stops}


def _ranges_from_pb(message: pb.Job, tokens: RaggedTokens) -> TokenRanges | None:
    """Reads the token ranges of a job. Raises ValueError where they do not lie in its sequences."""
    if not (message.range_counts or message.range_starts or message.range_stops):
        return None
    if len(message.range_counts) != len(tokens):
        raise ValueError("range_counts has another length than the job has sequences")
    ranges = TokenRanges(
        counts=tuple(message.range_counts), starts=tuple(message.range_starts), stops=tuple(message.range_stops)
    )
    lengths = (length for length, count in zip(tokens.lengths, ranges.counts, strict=True) for _ in range(count))
    if any(stop > length for stop, length in zip(ranges.stops, lengths, strict=True)):
        raise ValueError("range_stops has an entry outside its sequence")
    return ranges


def _work_to_pb(work: Work) -> dict[str, object]:
    match work:
        case Encode():
            return {
                "encode": pb.EncodeOptions(
                    outputs=[number(kind) for kind in sorted(work.outputs)],
                    dimensions=work.dimensions,
                    normalize=work.normalize,
                    normalize_tokens=work.normalize_tokens,
                    data_type=number(work.data_type),
                    sparse_top_k=work.sparse_top_k,
                    token_ids=work.token_ids,
                    input_type=number(work.input_type),
                    pooling=pooling_to_pb(work.pooling),
                )
            }
        case Score():
            return {
                "score": pb.ScoreOptions(
                    method=number(work.method),
                    layout=number(work.layout),
                    queries=work.queries,
                    unit_rows=work.unit_rows,
                    mean=work.mean,
                    weights=_weights_to_pb(work.weights),
                    explain=work.explain,
                    pooling=pooling_to_pb(work.pooling),
                )
            }
        case Classify():
            return {"classify": pb.ClassifyOptions(tokens=work.tokens, token_id=work.token_id)}
        case MaxSim():
            return {
                "max_sim": pb.MaxSimOptions(
                    queries=None if work.queries is None else vectors_to_pb(work.queries),
                    documents=vectors_to_pb(work.documents),
                    layout=number(work.layout),
                    unit_rows=work.unit_rows,
                    mean=work.mean,
                    unit_queries=work.unit_queries,
                    explain=work.explain,
                )
            }


def _work_from_pb(message: pb.Job) -> Work:
    match message.WhichOneof("kind"):
        case "encode":
            encode = message.encode
            return Encode(
                outputs=frozenset(OutputKind(kind) for kind in encode.outputs),
                dimensions=encode.dimensions,
                normalize=encode.normalize,
                normalize_tokens=encode.normalize_tokens,
                data_type=DataType(encode.data_type),
                sparse_top_k=encode.sparse_top_k,
                token_ids=encode.token_ids,
                input_type=InputType(encode.input_type),
                pooling=pooling_from_pb(encode, "pooling"),
            )
        case "score":
            score = message.score
            return Score(
                method=ScoringMethod(score.method),
                layout=Layout(score.layout),
                queries=score.queries,
                unit_rows=score.unit_rows,
                mean=score.mean,
                weights=weights_from_pb(score.weights) if score.HasField("weights") else None,
                explain=score.explain,
                pooling=pooling_from_pb(score, "pooling"),
            )
        case "classify":
            classify = message.classify
            token_id = classify.token_id if classify.HasField("token_id") else None
            return Classify(tokens=classify.tokens, token_id=token_id)
        case "max_sim":
            max_sim = message.max_sim
            return MaxSim(
                queries=vectors_from_pb(max_sim.queries, "queries") if max_sim.HasField("queries") else None,
                documents=vectors_from_pb(max_sim.documents, "documents"),
                layout=Layout(max_sim.layout),
                unit_rows=max_sim.unit_rows,
                mean=max_sim.mean,
                unit_queries=max_sim.unit_queries,
                explain=max_sim.explain,
            )
        case _:
            raise ValueError("a job says nothing to do")


def _weights_to_pb(weights: HybridWeights | None) -> ranking_pb2.HybridWeights | None:
    if weights is None:
        return None
    return ranking_pb2.HybridWeights(dense=weights.dense, sparse=weights.sparse, multi_vector=weights.multi_vector)


def weights_from_pb(message: ranking_pb2.HybridWeights) -> HybridWeights:
    """Reads the weights of a hybrid score. Raises ValueError if they make no sense."""
    return HybridWeights(dense=message.dense, sparse=message.sparse, multi_vector=message.multi_vector)


def load_to_pb(load: Load) -> pb.Load:
    message = pb.Load(
        queued_tokens=load.queued_tokens,
        queued_jobs=load.queued_jobs,
        tokens_per_second=load.tokens_per_second,
        draining=load.draining,
        stalled=load.stalled,
        turn=load.turn,
        busy_seconds=load.busy,
        express_tokens=load.express_tokens,
        step_tokens=load.step_tokens,
        coming=load.coming,
        others=load.others,
    )
    for priority, backlog in load.backlogs.items():
        message.backlogs.add(
            priority=number(priority),
            keys=backlog.keys,
            jobs=backlog.jobs,
            tokens=backlog.tokens,
            long_jobs=backlog.long_jobs,
            long_tokens=backlog.long_tokens,
        )
    return message


def load_from_pb(message: pb.Load) -> Load:
    return Load(
        queued_tokens=message.queued_tokens,
        queued_jobs=message.queued_jobs,
        tokens_per_second=message.tokens_per_second,
        backlogs={
            Priority(backlog.priority): Backlog(
                keys=backlog.keys,
                jobs=backlog.jobs,
                tokens=backlog.tokens,
                long_jobs=backlog.long_jobs,
                long_tokens=backlog.long_tokens,
            )
            for backlog in message.backlogs
        },
        draining=message.draining,
        stalled=message.stalled,
        turn=message.turn,
        busy=message.busy_seconds,
        express_tokens=message.express_tokens,
        step_tokens=message.step_tokens,
        coming=tuple(message.coming),
        others=message.others,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingPiece:
    """Bytes to append to one job's answer; `kind` is a ChunkKind."""

    job_id: int
    kind: int
    data: PackedBytes


def led_by(piece: LeadingPiece, message: bytes) -> bytes:
    """A message: the piece, and after it another `message` as protobuf writes it. This is our one copy of a row."""
    chunk = b"".join((KIND, varint(piece.kind), DATA, varint(len(piece.data))))
    part = b"".join((JOB, varint(piece.job_id), CHUNK, varint(len(chunk) + len(piece.data)), chunk))
    return b"".join((ANSWER, varint(len(part) + len(piece.data)), part, piece.data, message))


def leading_piece(raw: bytes) -> tuple[LeadingPiece, memoryview] | None:
    """The piece, a view of the message, and the rest; None where no such piece leads: then protobuf reads it all."""
    try:
        size, start = _after(ANSWER, raw, 0)
        job_id, place = _after(JOB, raw, start)
        chunk, chunk_start = _after(CHUNK, raw, place)
        kind, place = _after(KIND, raw, chunk_start)
        data, data_start = _after(DATA, raw, place)
    except (IndexError, ValueError):
        return None
    end = start + size
    if not end == chunk_start + chunk == data_start + data <= len(raw):
        return None  # more than this is in it
    view = memoryview(raw)
    return LeadingPiece(job_id=job_id, kind=kind, data=view[data_start:end]), view[end:]


def _after(tag: bytes, raw: bytes, place: int) -> tuple[int, int]:
    """The number behind a tag, and where it ends. Raises ValueError where there is another tag, IndexError."""
    if not raw.startswith(tag, place):
        raise ValueError
    return read_varint(raw, place + len(tag))


class UnsentOutcome:
    """The outcome of a job on its way into messages.

    `left`: bytes of vectors and scores that no message has taken yet. `frame`: most bytes of everything else, such as
    lengths, or the words of an error.
    """

    def __init__(self, job_id: int, outcome: JobResult | SelvageError) -> None:
        self.job_id, self._outcome = job_id, outcome
        chunks = [] if isinstance(outcome, SelvageError) else _chunks(outcome)
        self.left = sum([len(data) for _, data in chunks])
        self.frame = FRAME_BYTES + CHUNK_BYTES * len(chunks) + _end_bytes(outcome)
        self._waiting = iter([(kind, memoryview(data)) for kind, data in chunks])
        self._open: tuple[int, memoryview] | None = next(self._waiting, None)

    @property
    def size(self) -> int:
        """Most bytes that the rest of the outcome takes in a message."""
        return self.left + self.frame

    def add_part(self, message: pb.AttachResponse, most: int) -> None:
        """Adds a part with at most `most` bytes of vectors and scores; it has the end once nothing is left."""
        part = message.answers.add(job_id=self.job_id)
        while self._open is not None and most > 0:
            piece = self.take_piece(most)
            part.chunks.add(kind=piece.kind, data=bytes(piece.data))  # protobuf takes bytes, no views
            most -= len(piece.data)
        if self._open is None:
            _end(part.end, self._outcome)

    def take_piece(self, most: int) -> LeadingPiece:
        """Takes at most `most` of the bytes that are left, uncopied, for the head of a message, without the end."""
        assert self._open is not None
        kind, data = self._open
        piece = data[:most]
        self.left -= len(piece)
        self._open = (kind, data[len(piece) :]) if len(piece) < len(data) else next(self._waiting, None)
        return LeadingPiece(job_id=self.job_id, kind=kind, data=piece)


def _chunks(result: JobResult) -> list[tuple[int, PackedBytes]]:
    """The kinds of numbers that a result has, with their bytes."""
    dense, sparse, tokens = result.dense, result.sparse, result.tokens
    chunks: list[tuple[int, PackedBytes]] = [] if dense is None else [(pb.CHUNK_KIND_DENSE, dense.data)]
    if dense is not None and dense.scales:
        chunks.append((pb.CHUNK_KIND_DENSE_SCALES, dense.scales))
    if tokens is not None:
        chunks += (pb.CHUNK_KIND_MULTI_VECTOR, tokens.data), (pb.CHUNK_KIND_MULTI_VECTOR_SCALES, tokens.scales)
    if sparse is not None:
        chunks += (pb.CHUNK_KIND_SPARSE_INDICES, sparse.indices), (pb.CHUNK_KIND_SPARSE_VALUES, sparse.values)
    chunks += (
        (pb.CHUNK_KIND_TOKEN_IDS, result.token_ids),
        (pb.CHUNK_KIND_SCORES, result.scores),
        (pb.CHUNK_KIND_WINNERS, result.winners),
        (pb.CHUNK_KIND_SIMILARITIES, result.similarities),
    )
    return [chunk for chunk in chunks if len(chunk[1])]


def _end_bytes(outcome: JobResult | SelvageError) -> int:
    """Most bytes of the lengths, or of an error's words, in the end of an outcome."""
    if isinstance(outcome, SelvageError):
        return sum(len(word.encode()) for word in (outcome.reason, outcome.message, outcome.field))
    sparse_lengths = outcome.sparse.lengths if outcome.sparse else ()
    lists = (outcome.row_lengths, sparse_lengths)
    return sum(len(lengths) * len(varint(max(lengths))) for lengths in lists if lengths)


def _end(end: pb.JobEnd, outcome: JobResult | SelvageError) -> None:
    if isinstance(outcome, SelvageError):
        end.error.CopyFrom(error_to_pb(outcome))
        return
    end.dense_dimensions = outcome.dense.dimensions if outcome.dense else 0
    end.token_dimensions = outcome.tokens.dimensions if outcome.tokens else 0
    end.row_lengths.extend(outcome.row_lengths)
    end.sparse_lengths.extend(outcome.sparse.lengths if outcome.sparse else ())
    end.queue.CopyFrom(duration_to_pb(outcome.queue))
    end.compute.CopyFrom(duration_to_pb(outcome.compute))


@dataclass(slots=True)
class ResultAssembly:
    """The parts of a job's outcome as they come, the other direction of `UnsentOutcome`. `sizes`: bytes by kind."""

    chunks: dict[int, list[PackedBytes]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    end: pb.JobEnd | None = None

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(self.sizes.values())

    def add(self, part: pb.AnswerPart) -> bool:
        """Takes a part. Returns whether it was the last one. Raises the job's own error."""
        for chunk in part.chunks:
            self.append(chunk.kind, chunk.data)
        if not part.HasField("end"):
            return False
        if part.end.HasField("error"):
            raise error_from_pb(part.end.error)
        self.end = part.end
        return True

    def append(self, kind: int, data: PackedBytes) -> None:
        """Takes a piece of the bytes of a kind."""
        self.chunks.setdefault(kind, []).append(data)
        self.sizes[kind] = self.sizes.get(kind, 0) + len(data)

    def result(self) -> JobResult:
        """All parts put together. Raises Internal where the end is missing."""
        end = self.end
        if end is None:
            raise Internal("the worker ended without an answer")
        return JobResult(
            dense=self._rows(end.dense_dimensions, pb.CHUNK_KIND_DENSE, pb.CHUNK_KIND_DENSE_SCALES),
            tokens=self._rows(end.token_dimensions, pb.CHUNK_KIND_MULTI_VECTOR, pb.CHUNK_KIND_MULTI_VECTOR_SCALES),
            sparse=self._sparse(tuple(end.sparse_lengths)),
            row_lengths=tuple(end.row_lengths),
            token_ids=self._bytes(pb.CHUNK_KIND_TOKEN_IDS),
            scores=self._bytes(pb.CHUNK_KIND_SCORES),
            winners=self._bytes(pb.CHUNK_KIND_WINNERS),
            similarities=self._bytes(pb.CHUNK_KIND_SIMILARITIES),
            queue=duration_from_pb(end.queue),
            compute=duration_from_pb(end.compute),
        )

    def _bytes(self, kind: int) -> bytes:
        return b"".join(self.chunks.get(kind, ()))  # of one part that is bytes: the part

    def _rows(self, dimensions: int, data: int, scales: int) -> Rows | None:
        if not dimensions:
            return None
        return Rows(dimensions=dimensions, data=self._bytes(data), scales=self._bytes(scales))

    def _sparse(self, lengths: tuple[int, ...]) -> SparseRows | None:
        if not lengths:
            return None
        indices, values = (self._bytes(kind) for kind in (pb.CHUNK_KIND_SPARSE_INDICES, pb.CHUNK_KIND_SPARSE_VALUES))
        return SparseRows(lengths=lengths, indices=indices, values=values)
